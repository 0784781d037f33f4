"""Acceptance of a run of several K, K by K."""

from __future__ import annotations

from driftscope.analysis import measure
from driftscope.analysis.collect import Sums
from driftscope.analysis.columns import whole
from driftscope.analysis.summary import AcceptanceAtK


def by_k(run: Sums) -> tuple[AcceptanceAtK, ...]:
    """One for each K that the run asked for and some round drafted; () in a run of one K."""
    if run.by_length is None:
        return ()
    length = whole(run.by_length, "length")
    rounds = run.rounds_of(run.by_length, run.requests.codes(run.by_length))
    parts = [(k, rounds.where(length == k)) for k in run.shape.ks]
    return tuple(measure.acceptance_at(k, each.requests, each) for k, each in parts if len(each))
