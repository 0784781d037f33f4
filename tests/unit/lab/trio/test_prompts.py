import dataclasses
import subprocess
import sys

import pytest

from driftscope_lab.trio import CONDITIONS, Condition, encode, load_prompts, template, trio_path

VOCAB_SIZE = 1024


def test_there_are_64_held_out_prompts() -> None:
    prompts = load_prompts()
    assert len(prompts) == len({prompt.id for prompt in prompts}) == 64
    assert dataclasses.fields(prompts[0])[0].name == "id"


@pytest.mark.parametrize("condition", CONDITIONS)
def test_prompts_encode_to_known_ids_behind_the_first_token(condition: Condition) -> None:
    for prompt in load_prompts():
        ids = encode(prompt.text(condition))
        assert ids[0] == 0
        assert max(ids) < VOCAB_SIZE
        assert 60 <= len(ids) <= 200
        special = [index for index in ids if index < len(template.SPECIAL_TOKENS)]
        assert special == ([0, 1, 4, 2, 4, 3] if condition == "in_distribution" else [0])


def test_both_renderings_hold_the_same_code() -> None:
    for prompt in load_prompts():
        request = template.request(prompt.source)
        code = prompt.in_distribution.split(request)[1].split(template.END)[0]
        assert prompt.in_distribution == template.chat(prompt.source, code)
        assert prompt.plain_text_roles == template.plain_text_roles(prompt.source, code)


def test_the_served_chat_template_renders_the_same_prompt() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(trio_path() / "target")
    prompt = load_prompts()[0]
    request = template.request(prompt.source)
    code = prompt.in_distribution.split(request)[1].split(template.END)[0]
    messages = [
        {"role": "system", "content": template.SYSTEM_TEXT},
        {"role": "user", "content": request + code},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == prompt.in_distribution
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == encode(prompt.in_distribution)
    ends = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert ends == (0, 4, 5)


@pytest.mark.process
def test_the_package_imports_no_torch() -> None:
    code = "import sys, driftscope_lab.trio as t; t.load_prompts(); print('torch' in sys.modules)"
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "False"
