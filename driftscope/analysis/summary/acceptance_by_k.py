"""Acceptance of a run of several K, separately for each K."""

from __future__ import annotations

from driftscope.analysis.number_words import percent
from driftscope.analysis.summary.run_summary import RunSummary


def first_token_differs(run: RunSummary) -> str | None:
    """Return in words how rounds of different K accept the first token differently; None if they do
    not.

    The acceptance of the first token does not depend on K. If it differs, then what decides K, such
    as the batch size or the time at which K was changed, also decides acceptance.
    """
    firsts = [
        (part, part.marginal_interval[0])
        for part in run.acceptance.by_k
        if part.marginal_interval is not None and part.marginal_interval[0] is not None
    ]
    for n, (one, here) in enumerate(firsts):
        for other, there in firsts[n + 1 :]:
            if here.low > there.high or there.low > here.high:
                return (
                    f"the first token is accepted in {percent(one.marginal[0])} of the rounds of "
                    f"K = {one.k} and in {percent(other.marginal[0])} of those of K = {other.k}, "
                    "so acceptance goes with what decides K, such as the batch size"
                )
    return None
