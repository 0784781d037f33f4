"""Why `driftscope watch` shows no chains, and what to type."""

from __future__ import annotations

import os
import shlex

from driftscope.telemetry.watch import View

EVERY = 4
"""Sampling interval that is proposed: chains within seconds, at a cost that a person accepts while
looking."""


def why_no_chains(
    target: str, shown: View, budget: float | None, *, over: bool = False
) -> tuple[str, ...]:
    """Return the reason and a command, a line each; () if there are chains or no rounds.

    `over`: the run has ended, so that only the next one can be changed.
    """
    if shown.down:
        return (f"nothing is recorded (reason: {shown.down}); the server's log says why",)
    if shown.chains or not shown.rounds:
        return ()
    run = _run(target)
    if shown.rate is None:
        return ("0 chains: only acceptance and timing of this drafter are recorded",)
    if not shown.rate and not over:
        return ("0 chains: recording is stopped; to resume it:", f"  driftscope probe start {run}")
    return (
        f"0 chains: {_words(budget, shown.rate)}; to record more:",
        f"  driftscope serve ... --every {EVERY}"
        if over
        else f"  driftscope probe set {run} --every {EVERY}",
    )


def _words(budget: float | None, rate: float) -> str:
    share = f"{100 * rate:.2g} % of steps"
    return f"{share} are recorded" if budget is None else f"{100 * budget:.3g} % pays for {share}"


def _run(target: str) -> str:
    """Return the run directory as a command needs it; a scrape endpoint does not tell it."""
    if "://" in target:
        return "RUN"
    near = os.path.relpath(target)
    return shlex.quote(min(target, near, key=len))
