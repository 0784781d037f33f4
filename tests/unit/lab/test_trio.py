"""The shipped prompts and weights, and the training of drafters on text that a target wrote."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.command import run_python
from support.reference_engine import Chain, generate

from driftscope.inspect.reference.config import EOS_ID, DecoderConfig
from driftscope.inspect.reference.layers import Target
from driftscope_lab.training import train_drafters as training
from driftscope_lab.training.checkpoints import load_drafter, load_target, save_target
from driftscope_lab.training.text import (
    HELD_OUT_EVERY,
    batches,
    draft_vocabulary,
    padded,
    read_conversations,
)
from driftscope_lab.training.text import TokenizedConversation as TrainingConversation
from driftscope_lab.training.train import main
from driftscope_lab.training.train_drafters import (
    DrafterRecipe,
    Progress,
    TrainingText,
    drafter_configs,
    train_drafters,
)
from driftscope_lab.training.write_text import Draft, save
from driftscope_lab.trio import CONDITIONS, Condition, encode, load_prompts, trio_path
from driftscope_lab.trio.prompts import Conversation, Exchange, in_plain_text, templated

VOCAB_SIZE = 1024
DRAFTERS = ("eagle3", "eagle31")
AUX_LAYERS = (2, 3, 5)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_prompts_encode_to_known_ids_behind_the_first_token(condition: Condition) -> None:
    prompts = load_prompts()
    assert len(prompts) == len({prompt.id for prompt in prompts}) == 64
    for prompt in prompts:
        text = prompt.text(condition)
        assert all(exchange.request in text for exchange in prompt.exchanges[-prompt.short :])
        ids = encode(text)
        assert ids[0] == 0 and max(ids) < VOCAB_SIZE and 30 <= len(ids) <= 282
        special = [index for index in ids if index < 6]
        turns = [2, 4, 3, 4] * (prompt.short - 1) + [2, 4, 3]
        assert special == ([0, 1, 4, *turns] if condition == "in_distribution" else [0])


def test_the_served_chat_template_renders_the_same_prompt() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(trio_path() / "target")
    prompt = next(one for one in load_prompts() if one.short > 1)
    turns = prompt.conversation(prompt.short).turns()
    messages = [{"role": role, "content": text} for role, text in turns if text is not None]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert encode(text) == tokenizer.encode(text, add_special_tokens=False)
    ends = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert ends == (0, 4, 5)
    assert text == prompt.in_distribution


@pytest.mark.process
def test_the_package_imports_no_torch() -> None:
    code = "import sys, driftscope_lab.trio as t; t.load_prompts(); print('torch' in sys.modules)"
    assert run_python("-c", code).stdout.strip() == "False"


OPEN = Conversation(
    system="Be brief.",
    exchanges=(Exchange(request="a", answer="b"), Exchange(request="c", answer="d")),
    open=True,
)


def test_an_open_conversation_ends_where_its_answer_begins() -> None:
    assert templated(OPEN) == (
        "<s><|system|>\nBe brief.<|end|><|user|>\na<|end|><|assistant|>b<|end|>"
        "<|user|>\nc<|end|><|assistant|>"
    )
    assert in_plain_text(OPEN) == (
        "<s>System: Be brief.\n\nUser: a\n\nAssistant: b\n\nUser: c\n\nAssistant:"
    )


SHIPPED_BYTES = 12_000_000
K = 8


def test_everything_shipped_is_small_and_has_its_notice() -> None:
    folder = trio_path().parent
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) <= SHIPPED_BYTES
    notice = (trio_path() / "NOTICE").read_text(encoding="utf-8")
    assert "networkx" in notice and "General Public License" not in notice


@pytest.mark.parametrize("name", ["target", *DRAFTERS])
def test_the_data_card_has_the_digest_of_the_weights(name: str) -> None:
    digest = hashlib.sha256((trio_path() / name / "model.safetensors").read_bytes()).hexdigest()
    card = (trio_path() / "README.md").read_text(encoding="utf-8")
    assert f"| {name} | `{digest}` |" in card


def test_the_drafters_differ_in_their_norms_only() -> None:
    eagle3, eagle31 = (load_drafter(trio_path() / name).config for name in DRAFTERS)
    assert eagle3.aux_layers == AUX_LAYERS
    assert eagle31 == replace(eagle3, fc_norm=True, norm_output=True)


@pytest.mark.slow
def test_the_target_is_the_llama_that_transformers_loads() -> None:
    transformers = pytest.importorskip("transformers")
    folder = trio_path() / "target"
    llama = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    target = load_target(folder)
    ids = torch.tensor([encode(load_prompts()[0].in_distribution)])
    with torch.no_grad():
        theirs = llama(ids, output_hidden_states=True)
        ours = target(ids, aux_layers=AUX_LAYERS)
        logits = target.logits(ours.hidden)
    assert torch.allclose(logits, theirs.logits, atol=1e-3)
    for layer, aux in zip(AUX_LAYERS, ours.aux, strict=True):
        assert torch.allclose(aux, theirs.hidden_states[layer], atol=1e-3)


@pytest.mark.slow
def test_the_finding_is_in_the_weights() -> None:
    """EAGLE-3's state grows with depth and its attention leaves the first token; EAGLE-3.1's
    does neither."""
    target = load_target(trio_path() / "target")
    growth, kept = {}, {}
    for name in DRAFTERS:
        drafter = load_drafter(trio_path() / name)
        chains: list[Chain] = []
        for prompt in load_prompts()[:2]:
            ids = encode(prompt.in_distribution)
            result = generate(target, drafter, ids, 24, K, eos_token_id=EOS_ID)
            chains += [one.chain for one in result.rounds]
        fed = torch.stack([torch.as_tensor(chain.fed_rms) for chain in chains]).mean(0)
        sink = torch.stack([torch.as_tensor(chain.sink_mass) for chain in chains]).mean(0)
        growth[name], kept[name] = float(fed[-1] / fed[0]), float(sink[-1] / sink[0])
    assert growth["eagle3"] > 1.5 and growth["eagle31"] < 1.2
    assert kept["eagle3"] < 0.85 < kept["eagle31"]


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


def conversations(count: int, seed: int = 0) -> list[TrainingConversation]:
    """Conversations that count upwards, of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        first, length = torch.randint(8, 40, (2,), generator=generator).tolist()
        ids = tuple(8 + (first + at) % 60 for at in range(16 + length))
        made.append(TrainingConversation(ids=ids, answers=((6, len(ids)),)))
    return made


def target() -> Target:
    torch.manual_seed(1)
    return Target(SMALL).eval()


def trained(folder: Path, steps: int = 4) -> list[bytes]:
    model, recipe = target(), DrafterRecipe(steps=4, tokens_per_step=160, depths=3, check_every=4)
    models = drafter_configs(model, (1, 2, 3), len(VOCABULARY))
    text = TrainingText(training=conversations(24), held_out=conversations(6, seed=5))
    recipe = replace(recipe, log_every=1)
    log = Progress(folder / "training.jsonl")
    train_drafters(model, text, models, recipe, folder, log, vocabulary=VOCABULARY)
    return [(folder / name / "model.safetensors").read_bytes() for name in models]


def test_a_training_that_was_interrupted_gives_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(tmp_path / "whole")
    true = training._schedule

    def until_interrupted(recipe: DrafterRecipe) -> Callable[[int], float]:
        def factor(step: int) -> float:
            if step == 2:
                raise KeyboardInterrupt
            return true(recipe)(step)

        return factor

    with monkeypatch.context() as patched:
        patched.setattr(training, "SAVED_EVERY_S", 0.0)
        patched.setattr(training, "_schedule", until_interrupted)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "resumed")
    assert trained(tmp_path / "resumed") == whole


def test_a_drafter_learns_what_its_target_writes_and_drafts_in_its_own_vocabulary(
    tmp_path: Path,
) -> None:
    trained(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "training.jsonl").read_text().splitlines()]
    for name in DRAFTERS:
        losses = [line["loss"] for line in lines if line["stage"] == name]
        assert len(losses) == 4 and losses[-1] < losses[0]
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
    one = TrainingConversation(ids=(8, 9, 10, 11, 12, 13), answers=((2, 4), (5, 6)))
    batch = padded([one, replace(one, ids=(*one.ids, 14))])
    assert batch.counted[0].tolist() == [False, True, True, False, True, False, False]


def test_the_vocabulary_is_the_most_frequent_tokens_of_answers_and_then_the_lowest_ids() -> None:
    text = [TrainingConversation(ids=(1, 50, 60, 60, 7), answers=((1, 4),))]
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
        kept = {"kind": "chat", "turns": 0, "temperature": 0.0}
        drafts = [Draft(ids=list(c.ids), answers=list(c.answers), **kept) for c in made]
        save(drafts, texts / f"{number:05d}.jsonl")
    assert len(read_conversations(texts)) == 2 * (HELD_OUT_EVERY - 1)
    assert read_conversations(texts, held_out=True) == conversations(2, seed=HELD_OUT_EVERY - 1)
    assert main(command) == 0
    assert load_drafter(tmp_path / "out" / "eagle31").config.draft_vocab_size == 64
