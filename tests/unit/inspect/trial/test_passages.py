"""Positions of an answer from which chains can start."""

from __future__ import annotations

import pytest
import torch

from driftscope.inspect.trial.target import Passage

PROMPT = 5


@pytest.mark.parametrize(
    ("answer", "k", "anchors"),
    [(6, 4, [4, 5]), (5, 4, [4]), (4, 4, []), (1, 4, []), (2, 1, [4])],
)
def test_a_chain_needs_k_tokens_after_the_one_that_is_known(
    answer: int, k: int, anchors: list[int]
) -> None:
    passage = Passage(key="a", ids=torch.arange(PROMPT + answer), prompt_tokens=PROMPT, states={})
    assert passage.anchors(k).tolist() == anchors
