"""Search for the fastest K of one server: serve it, read the run, and serve the K advised next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from driftscope.analysis.advice import BY_BATCH, FIXED, Advice, advise
from driftscope.analysis.query.record_views import open_run
from driftscope.analysis.summary.baseline_run import BaselineRun, baseline_of
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.errors import DriftscopeError, NoDataError
from driftscope.pipeline import summarise
from driftscope.workloads.bench.contenders import Result, bench
from driftscope.workloads.bench.managed_server import Contender
from driftscope.workloads.client.replay import Order, Watcher

MOST_RUNS = 8
"""Largest number of runs of a search, if none is given. Simulated searches take 3.6 to 5.4 runs on
average (`make calibration`)."""
_FROM_ONE_ON = [[1, 1, 0]]
"""Schedule that drafts nothing at any batch size: those above 1 take the K of the range before."""
Summary = RunSummary | BaselineRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One measured K, and the advice on all that were measured so far."""

    k: int
    result: Result
    summary: Summary
    advice: Advice


class Listener(Watcher):
    """Receives the progress of a search; does nothing by itself."""

    def serving(self, number: int, k: int) -> None:
        """Handle the start of the server of run `number`, which drafts `k` tokens."""


def search(
    contender: Contender,
    order: Order,
    folder: Path,
    *,
    start: int,
    most_runs: int = MOST_RUNS,
    listener: Listener | None = None,
) -> Iterator[Found]:
    """Serve `contender` with K = `start`, then with each K that is advised next, and replay `order`
    to each; yield what is known after each run.

    Ends when no K is left to measure, after `most_runs` runs, or when the user stops a replay,
    whose figures are not used. Raises DriftscopeError if a server does not start or does not answer
    every request, NoDataError if a run has too few steps.
    """
    listener = listener or Listener()
    summaries: dict[int, Summary] = {}
    k: int | None = start
    while k is not None and len(summaries) < most_runs:
        listener.serving(len(summaries) + 1, k)
        (result,) = bench([at_k(contender, k)], order, folder, watcher=listener)
        if result.done.stopped:
            return
        summaries[k] = _summary(result, k)
        advice = _advice(list(summaries.values()))
        yield Found(k=k, result=result, summary=summaries[k], advice=advice)
        k = _following(advice, summaries)


def at_k(contender: Contender, k: int) -> Contender:
    """Return the server with K = `k`. Without a draft the drafter stays loaded, so that steps are
    recorded."""
    given: dict[str, Any] = dict(contender.speculation or {})
    given.pop(BY_BATCH, None)
    speculation = {**given, FIXED: max(k, 1)}
    if not k:
        speculation[BY_BATCH] = _FROM_ONE_ON
    return replace(contender, label=f"K = {k}", speculation=speculation)


def _summary(result: Result, k: int) -> Summary:
    done = result.done
    if not done.whole:
        raise DriftscopeError(
            f"K = {k}: {done.planned - done.answered} of {done.planned} requests were not answered "
            f"or rows were lost; the log of the server is {result.client.parent / 'server.log'}"
        )
    if result.server is None:
        raise NoDataError(
            f"K = {k}: the server recorded nothing; its log is "
            f"{result.client.parent / 'server.log'}"
        )
    tables = open_run(result.server)
    return summarise(tables, result.label) if k else baseline_of(tables, result.label)


def _advice(summaries: list[Summary]) -> Advice:
    first, *others = summaries
    assert isinstance(first, RunSummary)  # noqa: S101  a search starts with a K of 1 or more
    advice = advise(first, [each for each in others if each.cells], _without(others))
    if advice is None or not summaries[-1].cells:
        raise NoDataError(
            f"{summaries[-1].label}: too few comparable steps, 20 at one batch size are needed; "
            "send more prompts (--limit, --repeat) or longer answers"
        )
    return advice


def _without(others: list[Summary]) -> BaselineRun | None:
    return next((each for each in others if isinstance(each, BaselineRun)), None)


def _following(advice: Advice, measured: dict[int, Summary]) -> int | None:
    following = advice.choice.next
    if following is None or advice.useless or following.k in measured:
        return None
    return following.k
