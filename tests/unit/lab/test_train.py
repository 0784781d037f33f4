"""The whole pipeline on a small corpus and with models far smaller than the shipped ones."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.lab_corpus import FILES

from driftscope.inspect.reference.drafter import Target, load_target
from driftscope_lab.training import train as training
from driftscope_lab.training import train_drafters, train_target
from driftscope_lab.training.corpus import CorpusError
from driftscope_lab.training.loop import Schedule
from driftscope_lab.training.recipe import (
    DRAFTERS,
    TARGET,
    TRIO,
    DrafterRecipe,
    Recipe,
    SamplingRecipe,
    TargetRecipe,
)
from driftscope_lab.training.train import main as train_main
from driftscope_lab.training.train import train
from driftscope_lab.trio import load_prompts

pytestmark = pytest.mark.slow

SMALL_TARGET = replace(TARGET, hidden_size=64, intermediate_size=96, head_dim=16)
SMALL_LAYER = replace(SMALL_TARGET, num_hidden_layers=1)
SMALL_STAGE = TargetRecipe(
    steps=3,
    tokens_per_step=512,
    lengths=(64,),
    validate_every=1,
    validation_tokens=256,
    checkpoint_every=1,
)
SMALL = Recipe(
    target_model=SMALL_TARGET,
    drafter_models={name: replace(one, layer=SMALL_LAYER) for name, one in DRAFTERS.items()},
    copying=replace(SMALL_STAGE, checkpoint_every=0),
    copying_share=0.2,
    target=SMALL_STAGE,
    sampling=SamplingRecipe(batches=2, batch_size=4, length=64, prompt_tokens=(10, 40)),
    drafters=DrafterRecipe(
        steps=3, batch_size=4, length=64, checkpoint_every=1, reuse_last_layer=True
    ),
)
MODELS = ("target", "seed-0/eagle3", "seed-0/eagle31")


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftscope_lab.training.rows.ROW_TOKENS", 1 << 12)
    monkeypatch.setattr("driftscope_lab.training.train.PROMPTS", 2)


def weights(folder: Path) -> list[bytes]:
    return [(folder / model / "model.safetensors").read_bytes() for model in MODELS]


def test_a_target_and_drafters_of_every_seed_are_trained_also_after_interruptions(
    tmp_path: Path,
) -> None:
    """Training again gives the same bytes, with interruptions or without."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    train(FILES, SMALL, whole, (0, 1))
    first, second = (
        (whole / f"seed-{seed}" / "eagle3" / "model.safetensors").read_bytes() for seed in (0, 1)
    )
    assert first != second
    assert len(load_prompts(whole)) == 2
    log = (whole / "seed-0" / "training.jsonl").read_text().splitlines()
    assert {json.loads(line)["stage"] for line in log} == {"eagle3", "eagle31"}

    def interrupt(step: int) -> float:
        if step >= 2:
            raise KeyboardInterrupt
        return 1.0

    for module in (train_target, train_drafters):
        with pytest.MonkeyPatch.context() as patched:
            true = module._schedule

            def until_interrupted(
                s: TargetRecipe | DrafterRecipe, true: Callable[..., Schedule] = true
            ) -> Schedule:
                """The true schedule, interrupted in a stage that keeps checkpoints."""
                own = true(s)
                return (lambda step: interrupt(step) * own(step)) if s.checkpoint_every else own

            patched.setattr(module, "_schedule", until_interrupted)
            with pytest.raises(KeyboardInterrupt):
                train(FILES, SMALL, resumed, (0,))
    train(FILES, SMALL, resumed, (0,))
    assert weights(resumed) == weights(whole)


def test_the_target_writes_before_its_weights_are_rounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was interrupted while it wrote: a target of float32 is in the checkpoint, one that
    is rounded in the file that ships."""
    true, writers = training.sample_conversations, []

    def interrupted_once(target: Target, *rest: Any) -> torch.Tensor:
        writers.append(target)
        if len(writers) == 1:
            raise KeyboardInterrupt
        return true(target, *rest)

    monkeypatch.setattr(training, "sample_conversations", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        train(FILES, SMALL, tmp_path, (0,))
    train(FILES, SMALL, tmp_path, ())
    first, again = (writer.state_dict() for writer in writers)
    shipped = load_target(tmp_path / "target").state_dict()
    assert first.keys() == again.keys() == shipped.keys()
    for name, kept in shipped.items():
        assert torch.equal(first[name], again[name])
        assert torch.equal(first[name].to(torch.bfloat16).float(), kept)
    assert any(not torch.equal(first[name], kept) for name, kept in shipped.items())
    train(FILES, SMALL, tmp_path, ())
    assert len(writers) == 2


def test_the_recipe_is_that_of_the_shipped_models() -> None:
    assert TRIO.target_model == TARGET
    assert TRIO.drafter_models == DRAFTERS
    assert TRIO.copying is not None


def test_a_corpus_that_cannot_be_fetched_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise CorpusError("pip could not fetch corpus.txt: no network")

    monkeypatch.setattr("driftscope_lab.training.train.load_corpus", refused)
    assert train_main(["-o", str(tmp_path)]) == 1
    assert "pip could not fetch corpus.txt" in capsys.readouterr().err
