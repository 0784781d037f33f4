"""Trials of EAGLE-1 drafters and of a target's own heads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import TARGET, eagle1_drafter, mtp_checkpoint, planted, prompt_texts
from typer.testing import CliRunner

from driftscope.cli.app import app
from driftscope.errors import CheckpointError, UsageError
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.trial.drafting import as_served
from driftscope.inspect.trial.repairs import attention_repairs
from driftscope.inspect.trial.result import Trial
from driftscope.inspect.trial.trial import Bench, run_trial
from driftscope.inspect.trial.verdict import best_repair, verdict
from driftscope_lab.trio import encode, trio_path

pytestmark = pytest.mark.slow
K = 5
State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Kind:
    """A drafter of one kind, and its target with answers to the prompts."""

    drafter: Path
    bench: Bench

    @classmethod
    def of(cls, drafter: Path, target: Path) -> Kind:
        prompts = {str(at): encode(text) for at, text in enumerate(prompt_texts())}
        return cls(drafter, Bench(open_target(str(target)), lambda _: prompts))

    def trial(self, drafter: Path | None = None) -> Trial:
        """Return the trial of the drafter, or of another one of its target."""
        files = open_drafter(str(drafter or self.drafter))
        return run_trial(files, self.bench.facts.layers, lambda: self.bench, K)


@pytest.fixture(scope="module")
def eagle1(tmp_path_factory: pytest.TempPathFactory) -> Kind:
    return Kind.of(eagle1_drafter(tmp_path_factory.mktemp("eagle1")), TARGET)


@pytest.fixture(scope="module")
def mtp(tmp_path_factory: pytest.TempPathFactory) -> Kind:
    path = _with_tokenizer(mtp_checkpoint(tmp_path_factory.mktemp("mtp") / "mimo", normed=False))
    return Kind.of(path, path)


def _with_tokenizer(path: Path) -> Path:
    for file in (trio_path() / "target").glob("*token*"):
        shutil.copy(file, path / file.name)
    return path


def _with_fields(drafter: Path, path: Path, **fields: Any) -> Path:
    """Return a copy of a drafter with other fields in its config."""
    shutil.copytree(drafter, path, dirs_exist_ok=True)
    config = json.loads((drafter / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **fields}))
    return path


@pytest.mark.parametrize(
    ("name", "repairs"),
    [
        ("eagle1", {"fc_halves", "rope_layout"}),
        ("mtp", {"fc_halves", "token_and_hidden_norm", "rope_layout", "normed_state"}),
    ],
)
def test_a_healthy_drafter_gets_no_repair(
    request: pytest.FixtureRequest, name: str, repairs: set[str]
) -> None:
    trial = request.getfixturevalue(name).trial()
    assert trial.acceptance.mean_length > 2
    assert best_repair(trial) is None
    assert not list(verdict(trial))
    assert {tried.repair.id for tried in trial.tried} >= repairs


HEAD = "model.mtp_layers.0."
KINDS, HEAD_DIM = ("weight", "bias"), 32


def _halves(state: State, name: str = "fc.weight") -> None:
    state[name] = torch.cat(state[name].chunk(2, -1)[::-1], -1)


def _other_embedding(state: State) -> None:
    torch.manual_seed(0)
    state["embed_tokens.weight"] = torch.randn(1024, 256) * 0.15


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


MISTAKES: dict[str, dict[str, Callable[[State], None]]] = {
    "eagle1": {"fc_halves": _halves, "targets_embedding": _other_embedding},
    "mtp": {
        "fc_halves": partial(_halves, name=f"{HEAD}input_proj.weight"),
        "token_and_hidden_norm": _exchanged_norms,
    },
}
WORSE, APART = {"eagle1": 0.6, "mtp": 0.8}, {"eagle1": 0.01, "mtp": 0.05}
"""What a mistake leaves of the length at most, and how near to it the repair comes."""


@pytest.mark.parametrize(
    ("name", "repair"), [(name, repair) for name, made in MISTAKES.items() for repair in made]
)
def test_a_planted_mistake_is_named(
    request: pytest.FixtureRequest, name: str, repair: str, tmp_path: Path
) -> None:
    kind: Kind = request.getfixturevalue(name)
    healthy = kind.trial().acceptance.mean_length
    trial = kind.trial(planted(kind.drafter, tmp_path, MISTAKES[name][repair]))
    best = best_repair(trial)
    assert best is not None
    assert best.repair.id == repair
    assert trial.acceptance.mean_length < WORSE[name] * healthy
    assert best.acceptance.mean_length == pytest.approx(healthy, abs=APART[name])


def test_another_base_of_rotary_positions_is_named(eagle1: Kind, tmp_path: Path) -> None:
    path = _with_fields(eagle1.drafter, tmp_path / "theta", rope_theta=100.0)
    tried = {each.repair.id: each for each in eagle1.trial(path).tried}
    assert tried["rope_theta"].gain.difference > 0


def test_it_has_the_targets_head_whatever_its_file_holds(eagle1: Kind, tmp_path: Path) -> None:
    def head(state: State) -> None:
        state["lm_head.weight"] = torch.zeros(1024, 256)

    path = planted(eagle1.drafter, tmp_path, head)
    variant = as_served(open_drafter(str(path)), 6)
    variant.check()
    shared = variant.with_shared_head(torch.ones(1024, 256))
    assert shared.build("cpu").lm_head.weight.eq(1).all()
    assert shared.with_shared_head(torch.zeros(1024, 256)) is shared


def _bias(state: State) -> None:
    state["fc.bias"] = torch.ones(256)


def test_a_bias_that_vllm_has_no_place_for_is_not_run(eagle1: Kind, tmp_path: Path) -> None:
    path = planted(eagle1.drafter, tmp_path, _bias)
    with pytest.raises(CheckpointError, match="fc has a bias"):
        as_served(open_drafter(str(path)), 6)


def test_a_bias_of_one_for_sglang_is_run(eagle1: Kind, tmp_path: Path) -> None:
    path = planted(eagle1.drafter, tmp_path, _bias)
    path = _with_fields(path, tmp_path / "sglang", architectures=["LlamaForCausalLMEagle"])
    assert as_served(open_drafter(str(path)), 6).config.fc_bias
    lengths = [trial.acceptance.mean_length for trial in (eagle1.trial(path), eagle1.trial())]
    assert lengths[0] < lengths[1] - 1


def test_the_other_layout_of_positions_is_undone_in_weights_and_biases(
    mtp: Kind, tmp_path: Path
) -> None:
    """It costs this head too little to be told from chance."""
    wrong = as_served(open_drafter(str(planted(mtp.drafter, tmp_path, _in_pairs))), 6)
    (repair,) = attention_repairs(wrong)
    healthy = as_served(open_drafter(str(mtp.drafter)), 6).state
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
    trial = Kind.of(path, path).trial()
    best = best_repair(trial)
    assert best is not None and best.repair.id == "normed_state"
    (result,) = verdict(trial)
    assert "SGLang gives it" in (result.change or "")


def test_several_heads_are_not_run(mtp: Kind, tmp_path: Path) -> None:
    def second(state: State) -> None:
        mine = {n: each.clone() for n, each in state.items() if n.startswith(HEAD)}
        state.update({n.replace("layers.0", "layers.1"): each for n, each in mine.items()})

    path = planted(mtp.drafter, tmp_path, second)
    with pytest.raises(CheckpointError, match="2 MTP heads"):
        as_served(open_drafter(str(path)), 6)


def test_a_repair_of_a_head_is_not_written(mtp: Kind, tmp_path: Path) -> None:
    checkpoint, into = str(mtp.drafter), str(tmp_path / "repaired.json")
    command = ["inspect", checkpoint, "--target", checkpoint, "--write-config", into]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, UsageError) and "part of one" in str(done.exception)
    assert not Path(into).exists()


def test_the_model_type_of_published_checkpoints_is_loaded(mtp: Kind, tmp_path: Path) -> None:
    """transformers does not know it without code from the repository."""
    path = _with_fields(mtp.drafter, tmp_path / "published", model_type="mimo")
    assert Kind.of(path, path).trial().acceptance.mean_length > 2
