"""The three figures of the first screen, each beside what it is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.analysis.cost.advice import Advice
from driftscope.analysis.figures.results import Latency
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.first_screen.speed import model_ratio, speed_ratio
from driftscope.analysis.number_words import ks_of, milliseconds, number, percent
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope.metrics.latency import PREDICTED_TPOT, TPOT


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigure:
    """One figure of the first screen."""

    value: str
    unit: str
    reference: str
    """Words for what the figure is compared with."""
    meaning: str
    """Definition of the figure."""


def key_figures(case: Case, other: RunSummary | None) -> tuple[KeyFigure, ...]:
    """Return time per token, tokens per round and K of a run, beside those of the `other` run, or
    without one beside what the run itself shows."""
    return _time(case, other), _length(case.run, other), _drafted(case)


def _time(case: Case, other: RunSummary | None) -> KeyFigure:
    return KeyFigure(
        value=milliseconds(case.run.latency.tpot_s),
        unit="per output token",
        reference=_time_reference(case, other),
        meaning=TPOT.meaning,
    )


def _time_reference(case: Case, other: RunSummary | None) -> str:
    mine = case.run.latency
    if case.plain is not None and case.plain.latency.tpot_s is not None:
        return f"without speculation {_beside(case.plain.latency, mine)}"
    if other is not None and other.latency.tpot_s is not None:
        return f"{other.label} {_beside(other.latency, mine)}"
    ratio = None if case.advice is None else model_ratio(case.advice)
    if ratio is None or mine.tpot_s is None:
        return "no run to compare it with"
    least, most = (milliseconds(end * mine.tpot_s) for end in (ratio[1].low, ratio[1].high))
    return f"without speculation {least.removesuffix(' ms')} to {most}, by bounds"


def _beside(other: Latency, mine: Latency) -> str:
    """Return the other run's time per token, and the change from it to this run's; a change that
    may be none is called so."""
    ratio = speed_ratio(other, mine)
    doubtful = ratio is not None and ratio[1].low <= 1.0 <= ratio[1].high
    change = _change(mine.tpot_s, other.tpot_s, doubtful=doubtful)
    return f"{milliseconds(other.tpot_s)}{change}"


def _change(mine: float | None, other: float | None, *, doubtful: bool = False) -> str:
    if mine is None or not other:
        return ""
    share = mine / other - 1.0
    size = f"{100 * abs(share):.0f}%"
    doubt = ", not certain" if doubtful and size != "0%" else ""
    return f" ({'−' if share < 0 else '+'}{size}{doubt})"


def _length(run: RunSummary, other: RunSummary | None) -> KeyFigure:
    length, moved = run.acceptance.mean_length, run.changes and run.changes.points
    if other is not None:
        theirs = other.acceptance.mean_length
        reference = f"{other.label} {number(theirs)}{_change(length, theirs)}"
    elif run.changes is not None and moved:
        reference = f"before it changed: {number(run.changes.levels[0].mean_length)}"
    else:
        reference = f"at most {run.k + 1}, without speculation 1"
    return KeyFigure(
        value=number(length),
        unit="tokens per round",
        reference=reference,
        meaning=MEAN_LENGTH.meaning,
    )


def _drafted(case: Case) -> KeyFigure:
    return KeyFigure(
        value=ks_of(case.run.ks),
        unit="draft tokens per round",
        reference=_k_reference(case.run, case.advice),
        meaning=PREDICTED_TPOT.meaning,
    )


def _k_reference(run: RunSummary, advice: Advice | None) -> str:
    if advice is None or (advice.doubt is not None and not advice.none_is_faster):
        return "which K is fastest is not known"
    if advice.none_is_faster:
        return "no speculation serves faster"
    best, gain = advice.overall.best_k, advice.overall.gain
    if best == run.k and not run.mixed:
        return "no other K is predicted to be faster"
    if advice.worth_it:
        return f"K = {best} is predicted {percent(gain.value)} faster"
    return f"K = {best} may be faster; not certain"
