"""Would a smaller K have served faster?"""

from __future__ import annotations

from driftscope.analysis.finding import Finding, Severity
from driftscope.analysis.summary import RunSummary
from driftscope.analysis.words import count, milliseconds, number, percent
from driftscope.metrics.throughput import relative_speed

WORTH_SAYING = 0.05
"""Estimated gain below which no other K is suggested: a simple cost model is not better than
that."""


def smaller_k(run: RunSummary) -> Finding | None:
    """The estimate by K has its best value clearly before the K that ran."""
    if run.cost is None or run.k < 2:
        return None
    speeds = relative_speed(run.acceptance.marginal, run.cost)
    best = max(range(run.k), key=speeds.__getitem__) + 1
    gain = speeds[best - 1] - 1.0
    if best == run.k or gain < WORTH_SAYING:
        return None
    tokens = 1.0 + sum(run.acceptance.marginal[:best])
    return Finding(
        id="smaller_k",
        severity=Severity.MEDIUM,
        runs=(run.label,),
        title="A smaller K would probably serve faster",
        statement=f"an estimate from this run's step times gives {percent(gain)} more tokens per "
        f"second with K = {best}: {count(run.k - best, 'depth')} less to draft (drafting takes "
        f"{milliseconds(run.cost.draft_s)} of a {milliseconds(run.cost.step_s)} step), and "
        f"{number(tokens)} instead of {number(run.acceptance.mean_length)} tokens per round",
        evidence={
            "k": run.k,
            "suggested_k": best,
            "gain": gain,
            "draft_s": run.cost.draft_s,
            "step_s": run.cost.step_s,
            "threshold": WORTH_SAYING,
        },
        advice=f"Try num_speculative_tokens = {best} under your own load and compare the time per "
        "output token. The estimate takes drafting time as proportional to K and verification as "
        f"free of it.{_RECORDED if run.cost.recorded else ''}",
    )


_RECORDED = (
    " The steps were timed while the probe recorded, which makes drafting look dearer than it is: "
    "record one draft step in 16 (DRIFTSCOPE_EVERY=16) for a better estimate."
)
