"""The probability of the target's tokens follows the same drafts as what is accepted."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from support.checkpoints import TARGET, State, changed, own_vocabulary, own_vocabulary_config

from driftscope.inspect.checkpoints import open_drafter
from driftscope.inspect.trial.drafting import Drafted, draft
from driftscope.inspect.trial.target import Passage, Teacher
from driftscope.inspect.trial.variant import as_served
from driftscope_lab.trio import encode, load_prompts

pytestmark = pytest.mark.slow
K, VOCABULARY = 4, 1024


@functools.cache
def _passages() -> tuple[Teacher, list[Passage]]:
    teacher = Teacher(TARGET, "cpu")
    prompts = {each.id: encode(each.in_distribution) for each in load_prompts()[:2]}
    return teacher, list(teacher.passages(prompts, {2, 3, 5}))


def _drafted(drafter: Path) -> list[Drafted]:
    teacher, passages = _passages()
    built = as_served(open_drafter(str(drafter)), 4).build("cpu")
    return [draft(built, teacher, each, K) for each in passages]


def _head(factor: float, state: State) -> None:
    state["lm_head.weight"] = state["lm_head.weight"] * factor


def test_a_drafter_that_is_always_certain_has_what_it_accepts(tmp_path: Path) -> None:
    sure = changed(tmp_path / "sure", weights=functools.partial(_head, 2.0**12))
    plain = _drafted(changed(tmp_path / "plain"))
    for one, other in zip(_drafted(sure), plain, strict=True):
        assert torch.equal(one.accepted, other.accepted)
        assert (one.probability - one.accepted).abs().mean() < 0.01
        assert (other.probability - other.accepted).abs().mean() > 0.1


def test_a_drafter_that_knows_nothing_gives_each_token_the_same(tmp_path: Path) -> None:
    blank = changed(tmp_path / "a", weights=functools.partial(_head, 0.0))
    for each in _drafted(blank):
        wrong = each.accepted == 0
        assert wrong.any()
        assert torch.allclose(each.probability[wrong], torch.tensor(1 / VOCABULARY))


def test_tokens_that_cannot_be_drafted_have_no_probability(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", config=own_vocabulary_config, weights=own_vocabulary)
    for each, passage in zip(_drafted(path), _passages()[1], strict=True):
        odd = passage.ids[passage.anchors(K) + 2] % 2 == 1
        assert odd.any() and not odd.all()
        assert (each.probability[odd] == 0).all()
        assert (each.probability[~odd] > 0).all()
