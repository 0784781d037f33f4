"""Requests that end in a loop: many rounds in a row, each accepted whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from driftscope.analysis.circumstances.groups import LOOP_ROUNDS
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.passes.rounds import whole_at_the_end
from driftscope.analysis.passes.views import SUSPECTS
from driftscope.analysis.query.column_arrays import Codes, whole

HEALTHIEST = 0.97
"""Largest acceptance of a draft token, given the one before, that ordinary text explains: above
every published rate (the highest is 0.9, of an MTP head)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loops:
    """Finished requests that end in LOOP_ROUNDS rounds accepted whole."""

    looping: int
    long_enough: int
    """Number of finished requests with at least LOOP_ROUNDS rounds."""
    by_chance: float
    """Number of requests that would end so by chance, at each request's own share of rounds
    accepted whole, but no more than HEALTHIEST gives. It is too high rather than too low: a loop's
    own rounds raise the share."""


def loops_of(run: Sums) -> Loops:
    """Count the requests of a run that end in a loop; only those that may are queried."""
    rounds = run.rounds
    finished = run.requests.finished[rounds.request]
    enough = finished & (rounds.rounds >= LOOP_ROUNDS)
    accepted_whole = rounds.exhausted[:, list(run.shape.ks)].sum(axis=1)
    maybe = enough & (accepted_whole >= LOOP_ROUNDS)
    looping = _ends_whole(run, rounds.request[maybe]) if maybe.any() else 0
    shares = np.minimum(accepted_whole[maybe] / rounds.rounds[maybe], HEALTHIEST**run.shape.k)
    return Loops(
        looping=looping,
        long_enough=int(enough.sum()),
        by_chance=float((shares**LOOP_ROUNDS).sum()),
    )


def _ends_whole(run: Sums, requests: Codes) -> int:
    """Return how many of `requests` have only wholly accepted rounds among their last
    LOOP_ROUNDS."""
    some = run.requests.keys.take(pa.array(requests, pa.int64()))
    some = some.append_column("cluster", pa.array(requests, pa.int64()))
    run.tables.engine.view(SUSPECTS, some, some.schema)
    last_rounds = run.tables.engine.rows(whole_at_the_end(run.shape, LOOP_ROUNDS))
    return int((whole(last_rounds, "whole") == LOOP_ROUNDS).sum())
