"""Chains under a live intervention beside the served ones of the same rounds."""

from __future__ import annotations

import numpy as np
import pytest

from driftscope.analysis.summary.shadow_agreement import (
    ShadowAgreement,
    ShadowCounts,
    shadow_agreement,
)
from driftscope.vocabulary import PIN_SIZE


def _counts(rows: list[tuple[int, ...]]) -> ShadowCounts:
    k, known, agreed, served, chains, cluster = (np.array(each) for each in zip(*rows, strict=True))
    return ShadowCounts(
        k=k, known=known, agreed=agreed, served_agreed=served, chains=chains, cluster=cluster
    )


def _found(rows: list[tuple[int, ...]]) -> ShadowAgreement:
    found = shadow_agreement(PIN_SIZE, _counts(rows))
    assert found is not None
    return found


def test_by_hand() -> None:
    found = _found([(2, 2, 2, 1, 3, 0), (2, 2, 0, 1, 1, 1), (2, 1, 1, 1, 5, 1)])
    assert (found.chains, found.left_out, found.clusters) == (4, 5, 2)
    assert (found.shadow.length, found.served.length) == (1.5, 1.0)
    assert (found.shadow.whole, found.served.whole) == (3, 0)
    assert found.shadow.reached == (0.75, 0.75)
    assert found.served.reached == (1.0, 0.0)
    assert found.by_depth == (-0.25, 0.75)
    assert (found.further, found.less_far) == (3, 1)
    assert found.difference == 0.5
    assert found.interval is None
    assert found.words.endswith("difference +0.50; cannot tell: too few requests")


def test_chains_of_several_lengths_count_at_the_depths_that_they_have() -> None:
    found = _found([(1, 1, 1, 1, 1, 0), (3, 3, 3, 2, 1, 1)])
    assert found.shadow.reached == (1.0, 1.0, 1.0)
    assert found.served.reached == (1.0, 1.0, 0.0)
    assert found.shadow.whole == 2


def test_nothing_to_compare() -> None:
    assert shadow_agreement(PIN_SIZE, _counts([(3, 2, 2, 2, 1, 0)])) is None


@pytest.mark.parametrize(("gain", "excludes"), [(0.0, False), (0.5, True)])
def test_the_interval_is_over_requests(gain: float, excludes: bool) -> None:
    random = np.random.RandomState(4)
    rows = []
    for request in range(40):
        for _ in range(5):
            served = int(random.binomial(4, 0.5))
            moved = int(random.choice((-1, 1))) if random.random_sample() < 0.3 else 0
            moved += int(random.random_sample() < gain)
            rows.append((8, 8, max(0, served + moved), served, 1, request))
    found = _found(rows)
    assert found.clusters == 40
    assert found.interval is not None
    assert found.interval.low < found.difference < found.interval.high
    assert found.interval.excludes_zero() is excludes
    assert f"[{found.interval.low:+.2f}, {found.interval.high:+.2f}]" in found.words
    repeated = _found([(*row[:4], 10, row[5]) for row in rows])
    assert repeated.interval is not None
    assert repeated.interval.low == pytest.approx(found.interval.low), "rounds add no certainty"
