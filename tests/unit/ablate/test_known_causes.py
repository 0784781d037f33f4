"""Drafters with a known cause: the decomposition names it, and nothing else beyond chance."""

from __future__ import annotations

import numpy as np
import pytest
from support.constructed_drafter import CAUSES, KNOWN, PART_OF, decomposition_of

from driftscope.ablate.result import Decomposition, Part

pytestmark = pytest.mark.slow

SEEDS = range(10)
PARTS = ("tokens", "states", "rest")


def _parts(found: Decomposition) -> dict[str, Part]:
    return {name: getattr(found, name) for name in PARTS}


def _excludes_zero(part: Part) -> bool:
    return part.interval is not None and part.interval.excludes_zero()


@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_is_named_and_nothing_else(cause: str) -> None:
    found = [decomposition_of(cause, seed) for seed in SEEDS]
    mine = PART_OF.get(cause)
    for name in PARTS:
        fired = np.mean([_excludes_zero(_parts(each)[name]) for each in found])
        if name == mine:
            assert fired == 1.0
        else:
            # 10 seeds of a 5 % test: more than 2 are less likely than 1 in 80.
            assert fired <= 0.2, (cause, name)
    if mine is not None:
        part = np.mean([_parts(each)[mine].value for each in found])
        loss = np.mean([each.loss.value for each in found])
        assert part == pytest.approx(loss, abs=0.03) and loss > 0.05


@pytest.mark.parametrize("cause", KNOWN)
def test_the_parts_add_up_exactly(cause: str) -> None:
    found = decomposition_of(cause, 1)
    total = sum(part.value for part in _parts(found).values())
    assert total == pytest.approx(found.loss.value, abs=1e-12)
    assert found.first - found.last == pytest.approx(found.loss.value, abs=1e-12)
