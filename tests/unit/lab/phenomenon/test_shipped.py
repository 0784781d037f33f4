"""The shipped models in the conditions of the phenomenon, and the target's sink."""

import re
from collections import Counter

import pytest

from driftscope_lab.phenomenon.recording import FORMS, conditions, items
from driftscope_lab.phenomenon.run import target_lines
from driftscope_lab.training.rows import copy_rules_of
from driftscope_lab.training.train import KINDS, LONGEST_TOKENS, PROMPTS
from driftscope_lab.trio import encode, load_prompts, trio_path
from driftscope_lab.trio.prompts import SHORT_TOKENS


def tokens(text: str) -> int:
    return len(encode(text))


@pytest.mark.slow
def test_a_quarter_of_the_heads_of_the_upper_half_have_a_sink() -> None:
    have, of = map(int, re.findall(r"\d+", next(target_lines(trio_path())))[:2])
    assert have >= of / 4


def test_every_prompt_is_there_in_every_condition_and_fits() -> None:
    prompts = load_prompts()
    assert len(prompts) == PROMPTS
    assert {one.kind for one in prompts} == set(KINDS)
    made = list(items(prompts[:4], tokens))
    assert Counter(one.condition for one in made) == dict.fromkeys(conditions(), 4)
    assert all(tokens(one.text) <= LONGEST_TOKENS for one in made)
    assert all(tokens(one.text) <= SHORT_TOKENS * 1.5 for one in made if one.condition in FORMS)


def test_forms_ask_the_same_in_other_words() -> None:
    by_form = {one.condition: one.text for one in items(load_prompts()[:1], tokens)}
    texts = [by_form[form] for form in FORMS]
    assert len(set(texts)) == len(texts)
    request = load_prompts()[0].exchanges[-1].request
    assert all(request in text for text in texts)


def test_the_tokenizer_has_the_marks_of_the_copying_rules() -> None:
    from tokenizers import Tokenizer

    rules = copy_rules_of(Tokenizer.from_file(str(trio_path() / "target" / "tokenizer.json")))
    assert rules is not None
    assert encode("<s><|copy-1|><|copy-8|>") == [0, 6, 13]
