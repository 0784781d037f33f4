"""The shipped prompts and weights."""

import hashlib
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from support.reference_engine import Chain, generate
from support.reference_files import EOS_ID, load_drafter, load_target

from driftscope_lab.trio import CONDITIONS, Condition, encode, load_prompts, trio_path
from driftscope_lab.trio.prompts import (
    Conversation,
    Exchange,
    in_plain_text,
    templated,
)

VOCAB_SIZE = 1024
DRAFTERS = ("eagle3", "eagle31")
AUX_LAYERS = (2, 3, 5)


def test_there_are_64_held_out_prompts() -> None:
    prompts = load_prompts()
    assert len(prompts) == len({prompt.id for prompt in prompts}) == 64


@pytest.mark.parametrize("condition", CONDITIONS)
def test_prompts_encode_to_known_ids_behind_the_first_token(condition: Condition) -> None:
    for prompt in load_prompts():
        ids = encode(prompt.text(condition))
        assert ids[0] == 0
        assert max(ids) < VOCAB_SIZE
        assert 30 <= len(ids) <= 282
        special = [index for index in ids if index < 6]
        turns = [2, 4, 3, 4] * (prompt.short - 1) + [2, 4, 3]
        assert special == ([0, 1, 4, *turns] if condition == "in_distribution" else [0])


def test_both_renderings_ask_the_same() -> None:
    for prompt in load_prompts():
        for exchange in prompt.exchanges[-prompt.short :]:
            assert exchange.request in prompt.in_distribution
            assert exchange.request in prompt.plain_text_roles


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
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "False"


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


def test_everything_shipped_is_small() -> None:
    folder = trio_path().parent
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) <= SHIPPED_BYTES


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


def test_the_licence_notices_are_there() -> None:
    notice = (trio_path() / "NOTICE").read_text(encoding="utf-8")
    assert "networkx" in notice
    assert "General Public License" not in notice


@pytest.mark.slow
def test_the_finding_is_in_the_weights() -> None:
    """EAGLE-3's state grows with depth and its attention leaves the first token; EAGLE-3.1's
    does neither."""
    target = load_target(trio_path() / "target")
    growth, kept = {}, {}
    for name in DRAFTERS:
        drafter = load_drafter(trio_path() / name)
        chains: list[Chain] = []
        for prompt in load_prompts()[:6]:
            ids = encode(prompt.in_distribution)
            result = generate(target, drafter, ids, 48, K, eos_token_id=EOS_ID)
            chains += [one.chain for one in result.rounds]
        fed = torch.stack([torch.as_tensor(chain.fed_rms) for chain in chains]).mean(0)
        sink = torch.stack([torch.as_tensor(chain.sink_mass) for chain in chains]).mean(0)
        growth[name], kept[name] = float(fed[-1] / fed[0]), float(sink[-1] / sink[0])
    assert growth["eagle3"] > 1.5 and growth["eagle31"] < 1.2
    assert kept["eagle3"] < 0.85 < kept["eagle31"]
