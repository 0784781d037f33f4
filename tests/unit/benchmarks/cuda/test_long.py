"""Criteria for memory growth, and for the verdict on a long run."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from benchmarks.cuda.long import BLOCKS, growth, judge, rss_bytes

TIMES = [float(t) for t in range(200)]
RNG = random.Random(0)
NOISE = [RNG.gauss(0, 100_000) for _ in TIMES]
TRACE = {"rows": {"draft": 10}, "dropped": {}, "errors": {}}


@pytest.mark.parametrize(
    ("level", "grows"),
    [
        (lambda t: 1e9 + 0 * t, False),
        (lambda t: 1e9 + 50_000 * t, True),
        (lambda t: 1e9 - 50_000 * t, False),
        # Half a megabyte in all: within what an allocator comes and goes by.
        (lambda t: 1e9 + 2500 * t, False),
        # One step up and back.
        (lambda t: 1e9 + 3e7 * (80 < t < 120), False),
    ],
    ids=["level", "leak", "falls", "small", "bump"],
)
def test_growth(level: Callable[[float], float], grows: bool) -> None:
    fit = growth(TIMES, [level(t) + noise for t, noise in zip(TIMES, NOISE, strict=True)])
    assert fit is not None
    assert fit["grows"] is grows
    low, high = fit["interval"]
    assert low <= fit["bytes_per_s"] <= high


def test_a_level_that_never_moves_has_no_slope() -> None:
    fit = growth(TIMES, [5.0] * len(TIMES))
    assert fit is not None
    assert (fit["bytes_per_s"], fit["interval"]) == (0.0, (0.0, 0.0))


def test_too_few_samples_say_nothing() -> None:
    assert growth(TIMES[: 2 * BLOCKS - 1], NOISE[: 2 * BLOCKS - 1]) is None
    assert judge({}, TRACE) == (False, "too short to tell growth; 10 chains, 0 dropped, 0 errors")
    assert judge({}, TRACE, smoke=True)[0], "a smoke need not"


def test_a_run_is_judged_by_growth_drops_and_errors() -> None:
    still, grown = {"worker": {"grows": False}}, {"worker": {"grows": True}}
    assert judge(still, TRACE) == (True, "no growth; 10 chains, 0 dropped, 0 errors")
    assert judge(still, None) == (True, "no growth")
    assert judge(grown, TRACE)[0] is False
    assert not judge(still, {**TRACE, "dropped": {"queue_full": 1}})[0]
    assert not judge(still, {**TRACE, "errors": {"masses": 1}})[0]
    assert not judge(still, {**TRACE, "rows": {}})[0]


def test_resident_memory_is_read_of_this_process() -> None:
    ours = [
        size for name, size in rss_bytes(os.getpid()).items() if name.endswith(f"{os.getpid()}")
    ]
    assert len(ours) == 1
    assert ours[0] > 10_000_000
