"""Requests of which a recording shows the whole life, and those that its ends cut off.

A recording that is read while the server runs ends in the middle of requests, and `--since` begins
in the middle of others. Rounds near such an edge are not those of whole requests: at the end the
early rounds of an answer are too many, at the beginning the rounds of long answers are. Means and
trends over them are biased, and so are means over finished requests, most of which are short.

Therefore requests are chosen by when they began, which does not depend on how they go on: not
before the beginning, and not in the last stretch of the recording, which is the time in which
nearly all requests finish. That time is a quantile of the durations; the duration of a request that
is still running is known only to be longer than what was seen of it, so the quantile is that of the
product-limit estimate (Kaplan and Meier 1958, https://doi.org/10.2307/2281868).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.query.column_arrays import Matrix

FINISHED_BY = 0.95
"""Share of requests that must finish within the stretch that is left out at the end: of the others,
at most one in twenty is cut off, and only behind most of its rounds."""
ENOUGH_LEFT = 0.5
"""Share of the rounds that must be left: with fewer, a trend over the recording is one over a part
of it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lifetimes:
    """Decoding of each request of a recording, arrays of [requests] each."""

    start_s: Matrix
    """Time of the first decode step, before the beginning of a cut as well."""
    last_s: Matrix
    """Time of the last recorded decode step."""
    end_s: Matrix
    """Time at which the recording of the request's server ends."""
    ended: NDArray[np.bool_]
    """Whether the end of the request was recorded, whatever its reason."""
    rounds: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """Requests whose rounds means and trends use."""

    kept: NDArray[np.bool_]
    """Whether each request is used, [requests]; all of them if too little would be left."""
    early: NDArray[np.bool_]
    """Whether each request began before the beginning of the cut."""
    late: NDArray[np.bool_]
    """Whether each request began too late to be seen whole."""
    duration_s: float | None
    """Time within which FINISHED_BY of the requests finish decoding; None if every request
    finished, or if too few did to know it."""
    enough: bool
    """Whether ENOUGH_LEFT of the rounds belong to the other requests. If not, means and trends of
    the recording cannot be told."""


def selection_of(lives: Lifetimes, begin_s: float = -math.inf) -> Selection:
    """Return the requests to use of a recording that was cut at `begin_s`."""
    early = lives.start_s < begin_s
    duration_s, late = None, np.zeros(len(early), dtype=np.bool_)
    if not lives.ended.all():
        seen_s = np.where(lives.ended, lives.last_s, lives.end_s) - lives.start_s
        duration_s = duration_quantile(seen_s, lives.ended, FINISHED_BY)
        within = math.inf if duration_s is None else duration_s
        late = np.asarray(lives.start_s >= lives.end_s - within)
    kept = ~(early | late)
    enough = bool(lives.rounds[kept].sum() >= ENOUGH_LEFT * lives.rounds.sum())
    return Selection(
        kept=kept if enough else np.ones(len(kept), dtype=np.bool_),
        early=early,
        late=late & ~early,
        duration_s=duration_s,
        enough=enough,
    )


def duration_quantile(seen_s: Matrix, ended: NDArray[np.bool_], share: float) -> float | None:
    """Return the time within which `share` of the requests end, from the time that each was seen
    and whether it `ended` then; None if the longest ones are all still running."""
    if not ended.any():
        return None
    from scipy.stats import CensoredData, ecdf

    survival = ecdf(CensoredData(uncensored=seen_s[ended], right=seen_s[~ended])).sf
    below = np.flatnonzero(survival.probabilities <= 1 - share + _ROUNDING)
    return float(survival.quantiles[below[0]]) if len(below) else None


_ROUNDING = 1e-9
"""Rounding error of a product of shares."""
