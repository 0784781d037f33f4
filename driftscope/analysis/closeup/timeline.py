"""Outcomes of decode steps over time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.passes.views import table
from driftscope.analysis.query.column_arrays import Codes, whole
from driftscope.analysis.query.record_views import SERVED, Tables
from driftscope.metrics.fallback import UNKNOWN

if TYPE_CHECKING:
    import ibis.expr.types as ir

BINS = 96
"""Number of windows: enough for a day in quarters of an hour, and for a picture as wide as a
screen."""
SHORTEST_S = 1e-6
"""Shortest window in seconds; a run may have a single step."""
ACCEPTED = "accepted"
"""Outcome of a round in which at least one drafted token was accepted."""
REJECTED = "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Decode steps, once per request, counted in windows of equal length."""

    start_s: float
    """Unix time of the first step."""
    window_s: float
    steps: Mapping[str, tuple[int, ...]]
    """Steps per window by outcome: ACCEPTED, REJECTED, or the reason why nothing was drafted."""
    tokens_per_round: tuple[float | None, ...]
    """Acceptance length in each window; None in a window without a round."""


def timeline_of(tables: Tables, start_s: float, end_s: float) -> Timeline | None:
    """Return the timeline of a run whose decode steps lie between the two Unix times, also those
    of requests that figures leave out; None if a time is not finite."""
    if not math.isfinite(start_s) or not math.isfinite(end_s):
        return None
    window = max((end_s - start_s) / BINS, SHORTEST_S)
    counted = tables.engine.rows(_counts(start_s, window))
    at = np.clip(whole(counted, "window"), 0, BINS - 1)
    number, tokens = whole(counted, "steps"), whole(counted, "tokens")
    kind = np.asarray(counted.column("kind").to_pylist(), dtype=np.object_)
    rounds = np.isin(kind, (ACCEPTED, REJECTED))
    names = [ACCEPTED, REJECTED, *sorted(set(kind[~rounds]))]
    yielded = np.bincount(at[rounds], weights=tokens[rounds], minlength=BINS)
    in_rounds = np.bincount(at[rounds], weights=number[rounds], minlength=BINS)
    return Timeline(
        start_s=start_s,
        window_s=window,
        steps={name: _by_window(at, number, kind == name) for name in names},
        tokens_per_round=tuple(
            float(f"{token / n:.5g}") if n else None
            for token, n in zip(yielded.tolist(), in_rounds.tolist(), strict=True)
        ),
    )


def _by_window(at: Codes, number: Codes, mine: NDArray[np.bool_]) -> tuple[int, ...]:
    counts = np.bincount(at[mine], weights=number[mine], minlength=BINS)
    return tuple(int(count) for count in counts)


def _counts(start_s: float, window_s: float) -> ir.Table:
    """Return the number of decode steps by window and outcome."""
    import ibis

    rows = table(SERVED, "verify")
    drafted, accepted = rows.drafted.fill_null(0), rows.accepted.fill_null(0)
    kind = ibis.cases(
        (drafted > 0, ibis.ifelse(accepted > 0, ACCEPTED, REJECTED)),
        else_=rows.reason.fill_null(UNKNOWN),
    )
    window = ((rows.time_s - start_s) / window_s).floor().cast("int64")
    windowed = rows.mutate(window=window, kind=kind, tokens=accepted + 1)
    return windowed.group_by("window", "kind").aggregate(
        steps=lambda t: t.count(), tokens=lambda t: t.tokens.sum()
    )
