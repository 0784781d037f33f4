import subprocess
import sys

import pytest

from driftscope_lab.trio import CONDITIONS, Condition, encode, load_prompts, prompts, trio_path
from driftscope_lab.trio.prompts import SHORT_TOKENS

VOCAB_SIZE = 1024


def test_there_are_64_held_out_prompts() -> None:
    prompts = load_prompts()
    assert len(prompts) == len({prompt.id for prompt in prompts}) == 64


@pytest.mark.parametrize("condition", CONDITIONS)
def test_prompts_encode_to_known_ids_behind_the_first_token(condition: Condition) -> None:
    for prompt in load_prompts():
        ids = encode(prompt.text(condition))
        assert ids[0] == 0
        assert max(ids) < VOCAB_SIZE
        assert 30 <= len(ids) <= 1.1 * SHORT_TOKENS
        special = [index for index in ids if index < len(prompts.SPECIAL_TOKENS)]
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
