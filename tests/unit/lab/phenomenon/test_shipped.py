"""The models of the phenomenon as they are shipped: their sizes, the target's sink, the prompts."""

import re
from collections import Counter

import pytest

from driftscope_lab.phenomenon.conditions import FORM_TOKENS, FORMS, conditions, items
from driftscope_lab.phenomenon.prompts import KINDS, LONGEST_TOKENS, PROMPTS, load_prompts
from driftscope_lab.phenomenon.run import WEIGHTS, target_lines
from driftscope_lab.training.conversation_rows import copy_rules_of
from driftscope_lab.trio import encode

MOST_BYTES = 12 << 20


def tokens(text: str) -> int:
    return len(encode(text, WEIGHTS))


def test_target_drafters_and_tokenizer_are_below_12_mib() -> None:
    names = ("*/model.safetensors", "target/tokenizer.json")
    assert sum(path.stat().st_size for name in names for path in WEIGHTS.glob(name)) < MOST_BYTES


@pytest.mark.slow
def test_a_quarter_of_the_heads_of_the_upper_half_have_a_sink() -> None:
    have, of = map(int, re.findall(r"\d+", next(target_lines(WEIGHTS)))[:2])
    assert have >= of / 4


def test_every_prompt_is_there_in_every_condition_and_fits() -> None:
    prompts = load_prompts(WEIGHTS)
    assert len(prompts) == PROMPTS
    assert {one.kind for one in prompts} == set(KINDS)
    made = list(items(prompts[:4], tokens))
    assert Counter(one.condition for one in made) == dict.fromkeys(conditions(), 4)
    assert all(tokens(one.text) <= LONGEST_TOKENS for one in made)
    assert all(tokens(one.text) <= FORM_TOKENS * 1.5 for one in made if one.condition in FORMS)


def test_forms_ask_the_same_in_other_words() -> None:
    by_form = {one.condition: one.text for one in items(load_prompts(WEIGHTS)[:1], tokens)}
    texts = [by_form[form] for form in FORMS]
    assert len(set(texts)) == len(texts)
    request = load_prompts(WEIGHTS)[0].exchanges[-1].request
    assert all(request in text for text in texts)


def test_the_tokenizer_has_the_marks_of_the_copying_rules() -> None:
    from tokenizers import Tokenizer

    rules = copy_rules_of(Tokenizer.from_file(str(WEIGHTS / "target" / "tokenizer.json")))
    assert rules is not None
    assert encode("<s><|copy-1|><|copy-8|>", WEIGHTS) == [0, 6, 13]
