"""A drafter with latent attention is run, and the repair of a planted mistake is named."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import (
    HEAD,
    HEADS,
    SIZES,
    TARGET,
    TURNED,
    WIDE,
    Config,
    State,
    latent_drafter,
)
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from verification.zoo.kind import VOCABULARY
from verification.zoo.mtp import KIMI

from driftscope.errors import CheckpointError
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.checks.result import Level
from driftscope.inspect.inspection import inspect_files
from driftscope.inspect.trial.drafting import as_served
from driftscope.inspect.trial.repairs import attention_repairs
from driftscope.inspect.trial.result import Trial
from driftscope.inspect.trial.target import Teacher
from driftscope.inspect.trial.trial import Bench, run_trial
from driftscope.inspect.trial.verdict import verdict
from driftscope_lab.trio import encode, load_prompts

K, LAYERS, PROMPTS = 5, 4, 12
FIRST = "midlayer.self_attn."


def _prompts(_teacher: Teacher) -> dict[str, list[int]]:
    return {each.id: encode(each.in_distribution) for each in load_prompts()[:PROMPTS]}


@functools.cache
def _bench() -> Bench:
    return Bench(open_target(str(TARGET)), _prompts)


def _trial(path: Path) -> Trial:
    return run_trial(open_drafter(str(path)), LAYERS, _bench, K)


def _changed(
    folder: Path,
    *,
    config: Callable[[Config], object] = lambda _: None,
    weights: Callable[[State], object] = lambda _: None,
) -> Path:
    """Write the drafter with a changed config or changed weights."""
    path = latent_drafter(folder)
    fields = json.loads((path / "config.json").read_text())
    state = load_file(path / "model.safetensors")
    config(fields)
    weights(state)
    (path / "config.json").write_text(json.dumps(fields))
    save_file({name: each.contiguous() for name, each in state.items()}, path / "model.safetensors")
    return path


def _halves(state: State) -> None:
    for name in ("q_a_proj", "kv_a_proj_with_mqa"):
        name = f"{FIRST}{name}.weight"
        state[name] = torch.cat(state[name].chunk(2, -1)[::-1], -1)


def _in_halves(state: State) -> None:
    """Lay out the rotated rows as engines do not read them."""
    order = torch.cat([torch.arange(0, TURNED, 2), torch.arange(1, TURNED, 2)])
    queries = state[f"{FIRST}q_b_proj.weight"].view(HEADS, HEAD + TURNED, WIDE)
    queries[:, HEAD:] = queries[:, HEAD:][:, order].clone()
    cached = state[f"{FIRST}kv_a_proj_with_mqa.weight"]
    cached[WIDE:] = cached[WIDE:][order].clone()


def test_the_files_are_healthy(tmp_path: Path) -> None:
    inspection = inspect_files(str(latent_drafter(tmp_path)), str(TARGET))
    assert inspection.known
    assert not [each.id for each in inspection.results if each.level is not Level.NOTE]


@pytest.mark.slow
def test_a_healthy_drafter_gets_no_repair(tmp_path: Path) -> None:
    trial = _trial(latent_drafter(tmp_path))
    assert trial.acceptance.mean_length > 2
    assert {"rope_layout", "attention_halves", "norm_output"} <= {t.repair.id for t in trial.tried}
    assert not [each for each in verdict(trial) if each.level is not Level.NOTE]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("repair", "config", "weights"),
    [
        ("norm_output", lambda fields: fields.update(norm_output=False), lambda _: None),
        ("attention_halves", lambda _: None, _halves),
    ],
)
def test_a_mistake_is_named(
    tmp_path: Path,
    repair: str,
    config: Callable[[Config], object],
    weights: Callable[[State], object],
) -> None:
    trial = _trial(_changed(tmp_path, config=config, weights=weights))
    assert next(iter(verdict(trial))).id == f"repaired_by.{repair}"


def test_the_layout_of_rotated_rows_is_restored(tmp_path: Path) -> None:
    healthy = as_served(open_drafter(str(latent_drafter(tmp_path / "a"))), LAYERS)
    planted = as_served(open_drafter(str(_changed(tmp_path / "b", weights=_in_halves))), LAYERS)
    (repair,) = [each for each in attention_repairs(planted) if each.id == "rope_layout"]
    changed = [n for n in healthy.state if not torch.equal(healthy.state[n], planted.state[n])]
    assert changed == [f"{FIRST}kv_a_proj_with_mqa.weight", f"{FIRST}q_b_proj.weight"]
    for name, tensor in repair.variant.state.items():
        assert torch.equal(tensor, healthy.state[name]), name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q_lora_rank": None}, "q_lora_rank"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "llama3"),
    ],
)
def test_what_the_reference_cannot_run_is_named(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    path = _changed(tmp_path, config=lambda fields: fields.update(change))
    with pytest.raises(CheckpointError, match=words):
        as_served(open_drafter(str(path)), LAYERS)


def test_a_norm_before_fc_is_neither_read_nor_proposed(tmp_path: Path) -> None:
    path = _changed(tmp_path, config=lambda fields: fields.update(norm_before_fc=True))
    config = as_served(open_drafter(str(path)), LAYERS).config
    assert config.latent == SIZES
    assert not config.norm_before_fc


@pytest.mark.slow
def test_a_target_with_latent_attention_answers_too(tmp_path: Path) -> None:
    """Weights are random, so that nothing is accepted, and no repair helps."""
    KIMI.build(tmp_path)
    first, *_ = words = {f"t{token}": token for token in range(VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token=first))
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=first)
    whole.save_pretrained(tmp_path / "target")
    target = open_target(str(tmp_path / "target"))
    asked = {f"p{at:02d}": [1 + (at * n) % 200 for n in range(1, 12)] for at in range(8)}
    bench = Bench(target, lambda _: asked)
    trial = run_trial(open_drafter(str(tmp_path / "drafter")), target.layers, lambda: bench, K)
    assert trial.prompts == len(asked)
    assert trial.acceptance.mean_length < 1.2
    assert [each.id for each in verdict(trial)] == ["accepts_little"]
