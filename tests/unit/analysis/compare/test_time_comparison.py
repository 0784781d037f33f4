"""Times of two runs: requests that were served at once are no independent proof."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.simulate import Truth, simulate

from driftscope.analysis.compare.run_comparison import Difference
from driftscope.analysis.compare.time_comparison import TPOT, compare_times
from driftscope.analysis.figures.requests import Requests
from driftscope.analysis.figures.run_sums import collect
from driftscope.analysis.query.record_views import open_run

AT_ONCE = 8
LABELS = ("first", "second")


def _served(requests: Requests, seed: int) -> Requests:
    """Return requests of which AT_ONCE at a time share the machine's speed."""
    random, n = np.random.RandomState(seed), len(requests)
    speed = np.repeat(random.normal(0.0, 0.002, n // AT_ONCE), AT_ONCE)
    return replace(
        requests,
        arrival_s=np.arange(float(n)),
        ttft_s=np.full(n, 0.1),
        tpot_s=0.01 + speed + random.normal(0.0, 0.0002, n),
        output_tokens=np.full(n, 200.0),
    )


def _tpot(first: Requests, second: Requests) -> Difference:
    found = compare_times(first, second, LABELS)
    return next(each for each in found.differences if each.metric == TPOT)


@pytest.mark.parametrize("paired", [True, False])
def test_the_interval_knows_which_requests_shared_their_steps(tmp_path: Path, paired: bool) -> None:
    requests = collect(open_run(simulate(tmp_path / "run", Truth(requests=160, rounds=2)))).requests
    first, second = (_served(requests, seed) for seed in (1, 2))
    if not paired:
        second = replace(second, prompt_tokens=second.prompt_tokens + 1)
    known = _tpot(first, second)
    unknown = _tpot(*(replace(each, arrival_s=np.full(160, np.nan)) for each in (first, second)))
    assert known.difference == unknown.difference
    assert known.interval is not None and unknown.interval is not None
    wider = (known.interval.high - known.interval.low) / (
        unknown.interval.high - unknown.interval.low
    )
    assert wider > 1.8, "8 requests at once are worth little more than one"
    assert known.p is not None and unknown.p is not None and known.p > unknown.p
