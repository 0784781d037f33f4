"""A trial of an EAGLE-1 drafter finds what is wrong with it, and nothing with a healthy one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from support.checkpoints import TARGET, eagle1_drafter, planted, prompt_texts

from driftscope.errors import CheckpointError
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.trial.drafting import as_served
from driftscope.inspect.trial.result import Trial, best_repair, verdict
from driftscope.inspect.trial.target import Teacher
from driftscope.inspect.trial.trial import Bench, run_trial
from driftscope_lab.trio import encode

pytestmark = pytest.mark.slow
K = 5
State = dict[str, torch.Tensor]


def _prompts(_teacher: Teacher) -> dict[str, list[int]]:
    return {str(at): encode(text) for at, text in enumerate(prompt_texts())}


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(open_target(str(TARGET)), _prompts)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eagle1_drafter(tmp_path_factory.mktemp("eagle1"))


def _trial(drafter: Path, bench: Bench) -> Trial:
    return run_trial(open_drafter(str(drafter)), bench.facts.layers, lambda: bench, K)


def test_a_healthy_drafter_gets_no_repair(drafter: Path, bench: Bench) -> None:
    trial = _trial(drafter, bench)
    assert trial.acceptance.mean_length > 2
    assert best_repair(trial) is None
    assert not list(verdict(trial))
    assert {each.repair.id for each in trial.tried} == {"fc_halves", "rope_layout"}


def _halves(state: State) -> None:
    state["fc.weight"] = torch.cat(state["fc.weight"].chunk(2, -1)[::-1], -1)


def _other_embedding(state: State) -> None:
    torch.manual_seed(0)
    state["embed_tokens.weight"] = torch.randn(1024, 256) * 0.15


PLANTED = {"fc_halves": _halves, "targets_embedding": _other_embedding}


@pytest.mark.parametrize("repair", PLANTED)
def test_a_planted_mistake_is_named(
    drafter: Path, bench: Bench, repair: str, tmp_path: Path
) -> None:
    healthy = _trial(drafter, bench).acceptance.mean_length
    trial = _trial(planted(drafter, tmp_path, PLANTED[repair]), bench)
    best = best_repair(trial)
    assert best is not None
    assert best.repair.id == repair
    assert trial.acceptance.mean_length < 0.6 * healthy
    assert best.acceptance.mean_length == pytest.approx(healthy, abs=0.01)


def test_another_base_of_rotary_positions_is_named(
    drafter: Path, bench: Bench, tmp_path: Path
) -> None:
    path = shutil.copytree(drafter, tmp_path / "theta")
    fields = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**fields, "rope_theta": 100.0}))
    tried = {each.repair.id: each for each in _trial(path, bench).tried}
    assert tried["rope_theta"].gain.difference > 0


def test_it_has_the_targets_head_whatever_its_file_holds(drafter: Path, tmp_path: Path) -> None:
    def head(state: State) -> None:
        state["lm_head.weight"] = torch.zeros(1024, 256)

    path = planted(drafter, tmp_path, head)
    variant = as_served(open_drafter(str(path)), 6)
    variant.check()
    shared = variant.with_shared_head(torch.ones(1024, 256))
    assert shared.build("cpu").lm_head.weight.eq(1).all()
    assert shared.with_shared_head(torch.zeros(1024, 256)) is shared


def test_a_bias_that_vllm_has_no_place_for_is_not_run(drafter: Path, tmp_path: Path) -> None:
    path = planted(drafter, tmp_path, lambda state: state.update({"fc.bias": torch.ones(256)}))
    with pytest.raises(CheckpointError, match="fc has a bias"):
        as_served(open_drafter(str(path)), 6)


def test_a_bias_of_one_for_sglang_is_run(drafter: Path, bench: Bench, tmp_path: Path) -> None:
    path = planted(drafter, tmp_path, lambda state: state.update({"fc.bias": torch.ones(256)}))
    fields = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(
        json.dumps({**fields, "architectures": ["LlamaForCausalLMEagle"]})
    )
    assert as_served(open_drafter(str(path)), 6).config.fc_bias
    assert (
        _trial(path, bench).acceptance.mean_length
        < _trial(drafter, bench).acceptance.mean_length - 1
    )
