"""Training of drafters on text that a target wrote, with models far smaller than shipped ones."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from driftscope.inspect.reference.config import DecoderConfig
from driftscope.inspect.reference.drafter import Target, load_drafter, save_target
from driftscope_lab.training import loop
from driftscope_lab.training import train_drafters as training
from driftscope_lab.training.loop import Progress
from driftscope_lab.training.soft_loss import soft_cross_entropy
from driftscope_lab.training.text import (
    HELD_OUT_EVERY,
    Conversation,
    batches,
    draft_vocabulary,
    padded,
    read_conversations,
)
from driftscope_lab.training.train import main
from driftscope_lab.training.train_drafters import (
    DrafterRecipe,
    Text,
    drafter_configs,
    train_drafters,
)
from driftscope_lab.training.write_text import Draft, save

SMALL = DecoderConfig(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=8,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=128,
)
VOCABULARY = torch.arange(8, 72)


def conversations(count: int, seed: int = 0) -> list[Conversation]:
    """Conversations that count upwards, of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        first, length = torch.randint(8, 40, (2,), generator=generator).tolist()
        ids = tuple(8 + (first + at) % 60 for at in range(16 + length))
        made.append(Conversation(ids=ids, answers=((6, len(ids)),)))
    return made


def target() -> Target:
    torch.manual_seed(1)
    return Target(SMALL).eval()


def trained(folder: Path, steps: int = 4) -> list[bytes]:
    model, recipe = target(), DrafterRecipe(steps=4, tokens_per_step=160, depths=3, check_every=4)
    models = drafter_configs(model, (1, 2, 3), len(VOCABULARY))
    text = Text(training=conversations(24), held_out=conversations(6, seed=5))
    recipe = replace(recipe, log_every=1)
    log = Progress(folder / "training.jsonl", keep=True)
    train_drafters(model, text, models, recipe, folder, log, vocabulary=VOCABULARY)
    return [(folder / name / "model.safetensors").read_bytes() for name in models]


def test_the_loss_and_its_gradients_are_those_of_whole_logits() -> None:
    torch.manual_seed(0)
    states, head = torch.randn(700, 32), torch.randn(100, 32)
    wanted = torch.randn(700, 100).softmax(-1)
    found = []
    for fused in (True, False):
        s, h = states.clone().requires_grad_(), head.clone().requires_grad_()
        if fused:
            loss, top = soft_cross_entropy(s, h, wanted, torch.float32)
            assert torch.equal(top, (states @ head.T).argmax(-1))
        else:
            loss = -(wanted * (s @ h.T).log_softmax(-1)).sum(-1).mean()
        (3 * loss).backward()
        found.append((loss.detach(), s.grad, h.grad))
    for ours, plain in zip(*found, strict=True):
        assert torch.allclose(ours, plain, atol=1e-6)


def test_a_training_that_was_interrupted_gives_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(tmp_path / "whole")
    true = training._schedule

    def until_interrupted(recipe: DrafterRecipe) -> training.Schedule:
        def factor(step: int) -> float:
            if step == 2:
                raise KeyboardInterrupt
            return true(recipe)(step)

        return factor

    with monkeypatch.context() as patched:
        patched.setattr(loop, "SAVED_EVERY_S", 0.0)
        patched.setattr(training, "_schedule", until_interrupted)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "resumed")
    assert trained(tmp_path / "resumed") == whole


def test_a_drafter_learns_what_its_target_writes_and_drafts_in_its_own_vocabulary(
    tmp_path: Path,
) -> None:
    trained(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "training.jsonl").read_text().splitlines()]
    for name in ("eagle3", "eagle31"):
        losses = [line["loss"] for line in lines if line["stage"] == name]
        assert len(losses) == 4
        assert losses[-1] < losses[0]
        assert any(line["stage"].startswith(f"{name} held out") for line in lines)
        drafter = load_drafter(tmp_path / name)
        assert torch.equal(drafter.target_ids(torch.arange(len(VOCABULARY))), VOCABULARY)


def test_accepted_tokens_are_those_before_the_first_disagreement() -> None:
    counted = torch.ones(1, 8, dtype=torch.bool)
    counted[0, 7] = False
    first = torch.tensor([True, True, False, True, True])
    second = first & torch.tensor([True, False, True, True, True])
    third = second & torch.tensor([True, True, True, True, True])
    # The last slot's chain ends past what counts: 3, 1, 0 and 3 of the other four.
    assert training._per_chain([first, second, third], counted, 5) == pytest.approx(7 / 4)


def test_batches_hold_every_conversation_once_an_epoch_and_little_padding() -> None:
    text = conversations(40)
    drawn, rows, filled, size = batches(text, 200, seed=3), 0, 0, 0
    while rows < len(text):
        batch = next(drawn)
        assert batch.ids.numel() <= 200
        rows += len(batch.ids)
        filled += int((batch.ids > 0).sum())
        size += batch.ids.numel()
    assert rows == len(text)
    assert filled == sum(len(one.ids) for one in text)
    assert filled / size > 0.85


def test_only_tokens_of_answers_count() -> None:
    one = Conversation(ids=(8, 9, 10, 11, 12, 13), answers=((2, 4), (5, 6)))
    batch = padded([one, replace(one, ids=(*one.ids, 14))])
    assert batch.counted[0].tolist() == [False, True, True, False, True, False, False]


def test_the_vocabulary_is_the_most_frequent_tokens_of_answers_and_then_the_lowest_ids() -> None:
    text = [Conversation(ids=(1, 50, 60, 60, 7), answers=((1, 4),))]
    assert draft_vocabulary(text, 1).tolist() == [60]
    assert draft_vocabulary(text, 4).tolist() == [0, 1, 50, 60]


def test_text_is_read_by_side_and_trained_on_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "text"
    texts.mkdir()
    command = ["--target", str(tmp_path / "target"), "--text", str(texts), "--threads", "1"]
    command += ["--steps", "1", "--draft-vocabulary", "64", "-o", str(tmp_path / "out")]
    assert main(command) == 1
    assert "no conversations" in capsys.readouterr().err
    save_target(target(), tmp_path / "target")
    for number in range(HELD_OUT_EVERY):
        made = conversations(2, seed=number)
        drafts = [
            Draft(kind="chat", ids=list(c.ids), turns=0, temperature=0.0, answers=list(c.answers))
            for c in made
        ]
        save(drafts, texts / f"{number:05d}.jsonl")
    assert len(read_conversations(texts)) == 2 * (HELD_OUT_EVERY - 1)
    assert read_conversations(texts, held_out=True) == conversations(2, seed=HELD_OUT_EVERY - 1)
    assert main(command) == 0
    assert load_drafter(tmp_path / "out" / "eagle31").config.draft_vocab_size == 64
