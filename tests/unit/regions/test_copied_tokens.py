"""Tokens that repeat an earlier passage."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from driftscope.regions.copied_tokens import PASSAGE, copied_tokens

TOKENS = st.lists(st.integers(0, 2), max_size=60)


def brute_force(prompt: list[int], answer: list[int]) -> list[bool]:
    """Return the same by comparing every passage with every earlier one."""
    tokens, n = [*prompt, *answer], len(prompt)
    copied = [False] * len(tokens)
    for at in range(n, len(tokens) - PASSAGE + 1):
        passage = tokens[at : at + PASSAGE]
        if any(tokens[before : before + PASSAGE] == passage for before in range(at)):
            copied[at : at + PASSAGE] = [True] * PASSAGE
    return copied[n:]


@given(TOKENS, TOKENS)
def test_the_tokens_of_every_repeated_passage_are_copied(
    prompt: list[int], answer: list[int]
) -> None:
    assert copied_tokens(prompt, answer).tolist() == brute_force(prompt, answer)


def test_a_passage_of_seven_is_too_short() -> None:
    passage = list(range(PASSAGE - 1))
    assert not copied_tokens([*passage, 99], [*passage, 98]).any()


def test_large_ids_are_told_apart() -> None:
    prompt = list(range(2**31 - 20, 2**31 - 1))
    assert copied_tokens(prompt, prompt).all()
    assert not copied_tokens(prompt, [each - 1000 for each in prompt]).any()
