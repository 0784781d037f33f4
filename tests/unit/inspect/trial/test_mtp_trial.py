"""A trial of MiMo's MTP head finds what is wrong with it, and nothing with a healthy one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from support.checkpoints import mtp_checkpoint, planted, prompt_texts
from typer.testing import CliRunner

from driftscope.cli.app import app
from driftscope.errors import CheckpointError, UsageError
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.trial.drafting import as_served
from driftscope.inspect.trial.repairs import attention_repairs
from driftscope.inspect.trial.result import Trial, best_repair, verdict
from driftscope.inspect.trial.trial import Bench, run_trial
from driftscope_lab.trio import encode, trio_path

pytestmark = pytest.mark.slow
K = 5
HEAD = "model.mtp_layers.0."
KINDS, HEAD_DIM = ("weight", "bias"), 32
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _with_tokenizer(mtp_checkpoint(tmp_path_factory.mktemp("mtp") / "mimo", normed=False))


def _with_tokenizer(path: Path) -> Path:
    for file in (trio_path() / "target").glob("*token*"):
        shutil.copy(file, path / file.name)
    return path


@pytest.fixture(scope="module")
def bench(checkpoint: Path) -> Bench:
    return _bench(checkpoint)


def _bench(checkpoint: Path) -> Bench:
    prompts = {str(at): encode(text) for at, text in enumerate(prompt_texts())}
    return Bench(open_target(str(checkpoint)), lambda _: prompts)


def _trial(checkpoint: Path, bench: Bench) -> Trial:
    return run_trial(open_drafter(str(checkpoint)), bench.facts.layers, lambda: bench, K)


def _halves(state: State) -> None:
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


PLANTED = {"fc_halves": _halves, "token_and_hidden_norm": _exchanged_norms}


def test_a_healthy_head_gets_no_repair(checkpoint: Path, bench: Bench) -> None:
    trial = _trial(checkpoint, bench)
    assert trial.acceptance.mean_length > 2
    assert best_repair(trial) is None
    assert not list(verdict(trial))
    assert {each.repair.id for each in trial.tried} == {*PLANTED, "rope_layout", "normed_state"}


@pytest.mark.parametrize("repair", PLANTED)
def test_a_planted_mistake_is_named(
    checkpoint: Path, bench: Bench, repair: str, tmp_path: Path
) -> None:
    healthy = _trial(checkpoint, bench).acceptance.mean_length
    trial = _trial(planted(checkpoint, tmp_path, PLANTED[repair]), bench)
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
    trial = _trial(path, _bench(path))
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
    assert _trial(path, _bench(path)).acceptance.mean_length > 2
