"""Trials of EAGLE-1 drafters and of a target's own heads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from support.checkpoints import TARGET, eagle1_drafter, mtp_checkpoint, planted, prompt_texts
from typer.testing import CliRunner

from driftscope.cli.app import app
from driftscope.errors import CheckpointError, UsageError
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.trial.drafting import as_served
from driftscope.inspect.trial.repairs import attention_repairs
from driftscope.inspect.trial.result import Trial, best_repair, verdict
from driftscope.inspect.trial.target import Teacher
from driftscope.inspect.trial.trial import Bench, run_trial
from driftscope_lab.trio import encode, trio_path

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


HEAD = "model.mtp_layers.0."
KINDS, HEAD_DIM = ("weight", "bias"), 32


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _with_tokenizer(mtp_checkpoint(tmp_path_factory.mktemp("mtp") / "mimo", normed=False))


def _with_tokenizer(path: Path) -> Path:
    for file in (trio_path() / "target").glob("*token*"):
        shutil.copy(file, path / file.name)
    return path


@pytest.fixture(scope="module")
def mtp_bench(checkpoint: Path) -> Bench:
    return _bench(checkpoint)


def _bench(checkpoint: Path) -> Bench:
    prompts = {str(at): encode(text) for at, text in enumerate(prompt_texts())}
    return Bench(open_target(str(checkpoint)), lambda _: prompts)


def _mtp_trial(checkpoint: Path, mtp_bench: Bench) -> Trial:
    return run_trial(open_drafter(str(checkpoint)), mtp_bench.facts.layers, lambda: mtp_bench, K)


def _mtp_halves(state: State) -> None:
    name = f"{HEAD}input_proj.weight"
    state[name] = torch.cat(state[name].chunk(2, -1)[::-1], -1)


def _exchanged_norms(state: State) -> None:
    """Let one norm be large and its columns small, which changes nothing, then exchange norms."""
    token, hidden, fc = (
        f"{HEAD}{name}.weight" for name in ("token_layernorm", "hidden_layernorm", "input_proj")
    )
    of_hidden, of_token = state[fc].chunk(2, -1)
    state[fc] = torch.cat([of_hidden * 8, of_token / 8], -1)
    state[token], state[hidden] = state[hidden] / 8, state[token] * 8


def _in_pairs(state: State) -> None:
    """Lay queries and keys of the head out for interleaved positions, biases too."""
    for name in (f"{HEAD}self_attn.{one}_proj.{kind}" for one in "qk" for kind in KINDS):
        heads = state[name].reshape(-1, 2, HEAD_DIM // 2, *state[name].shape[1:])
        state[name] = heads.transpose(1, 2).reshape(state[name].shape)


PLANTED_IN_MTP = {"fc_halves": _mtp_halves, "token_and_hidden_norm": _exchanged_norms}


def test_a_healthy_head_gets_no_repair(checkpoint: Path, mtp_bench: Bench) -> None:
    trial = _mtp_trial(checkpoint, mtp_bench)
    assert trial.acceptance.mean_length > 2
    assert best_repair(trial) is None
    assert not list(verdict(trial))
    assert {each.repair.id for each in trial.tried} == {
        *PLANTED_IN_MTP,
        "rope_layout",
        "normed_state",
    }


@pytest.mark.parametrize("repair", PLANTED_IN_MTP)
def test_a_planted_mistake_in_a_head_is_named(
    checkpoint: Path, mtp_bench: Bench, repair: str, tmp_path: Path
) -> None:
    healthy = _mtp_trial(checkpoint, mtp_bench).acceptance.mean_length
    trial = _mtp_trial(planted(checkpoint, tmp_path, PLANTED_IN_MTP[repair]), mtp_bench)
    best = best_repair(trial)
    assert best is not None
    assert best.repair.id == repair
    assert trial.acceptance.mean_length < 0.8 * healthy
    assert best.acceptance.mean_length == pytest.approx(healthy, abs=0.05)


def test_the_other_layout_of_positions_is_undone_in_weights_and_biases(
    checkpoint: Path, tmp_path: Path
) -> None:
    """It costs this head too little to be told from chance."""
    wrong = as_served(open_drafter(str(planted(checkpoint, tmp_path, _in_pairs))), 6)
    (repair,) = attention_repairs(wrong)
    healthy = as_served(open_drafter(str(checkpoint)), 6).state
    assert all(torch.equal(repair.variant.state[name], each) for name, each in healthy.items())
    changed = [name for name, each in healthy.items() if not torch.equal(wrong.state[name], each)]
    assert len(changed) == 4


def _uneven_final_norm(state: State) -> None:
    """Let the target's final norm scale every second entry, and undo it in the output and in what
    the head does with the normed state. Target and head compute what they did."""
    scale = torch.ones(len(state["model.norm.weight"]))
    scale[::2] = 6.0
    state["lm_head.weight"] /= scale
    state["model.norm.weight"] *= scale
    state[f"{HEAD}final_layernorm.weight"] *= scale
    state[f"{HEAD}hidden_layernorm.weight"] *= scale.square().mean().sqrt() / scale


def test_a_head_trained_on_normed_states_is_named(tmp_path: Path) -> None:
    plain = _with_tokenizer(mtp_checkpoint(tmp_path / "mimo", normed=True))
    path = planted(plain, tmp_path, _uneven_final_norm)
    trial = _mtp_trial(path, _bench(path))
    best = best_repair(trial)
    assert best is not None and best.repair.id == "normed_state"
    (result,) = verdict(trial)
    assert "SGLang gives it" in (result.change or "")


def test_several_heads_are_not_run(checkpoint: Path, tmp_path: Path) -> None:
    def second(state: State) -> None:
        mine = {n: each.clone() for n, each in state.items() if n.startswith(HEAD)}
        state.update({n.replace("layers.0", "layers.1"): each for n, each in mine.items()})

    path = planted(checkpoint, tmp_path, second)
    with pytest.raises(CheckpointError, match="2 MTP heads"):
        as_served(open_drafter(str(path)), 6)


def test_a_repair_of_a_head_is_not_written(checkpoint: Path, tmp_path: Path) -> None:
    into = str(tmp_path / "repaired.json")
    command = ["inspect", str(checkpoint), "--target", str(checkpoint), "--write-config", into]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, UsageError) and "part of one" in str(done.exception)
    assert not Path(into).exists()


def test_the_model_type_of_published_checkpoints_is_loaded(
    checkpoint: Path, tmp_path: Path
) -> None:
    """transformers does not know it without code from the repository."""
    path = shutil.copytree(checkpoint, tmp_path / "published")
    fields = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**fields, "model_type": "mimo"}))
    assert _mtp_trial(path, _bench(path)).acceptance.mean_length > 2
