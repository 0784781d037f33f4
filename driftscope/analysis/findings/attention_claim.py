"""The claim about attention drift in a run: yes, no or cannot tell, with its numbers in words."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.analysis.number_words import count, percent
from driftscope.analysis.statistics.attention_drift import (
    FEWEST_CHAINS,
    FEWEST_CLUSTERS,
    FEWEST_MATCHED,
    MARGIN,
    SINK_KEPT_ABOVE,
    SINK_LOST_BELOW,
    Answer,
    AttentionDrift,
    Estimate,
    Source,
)
from driftscope.analysis.statistics.intervals.interval import Interval
from driftscope.analysis.summary.run_summary import RunSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionClaim:
    """Answer to whether a run's attention drifts over depth."""

    answer: Answer
    estimate: float | None
    """Near shift at depth K, as a share of the attention; None if it is not known."""
    interval: Interval | None
    words: str
    """A clause without the run's name and without a full stop. If the answer is "cannot tell", it
    names what to record, and about how much."""


def attention_claim(run: RunSummary) -> AttentionClaim:
    """Return the claim about a run."""
    drift = run.attention_drift
    if drift is None:
        return AttentionClaim(
            answer=Answer.CANNOT_TELL,
            estimate=None,
            interval=None,
            words=_not_recorded(run),
        )
    return AttentionClaim(
        answer=drift.answer,
        estimate=drift.shift.value if drift.shift else None,
        interval=drift.shift.interval if drift.shift else None,
        words=drift_words(drift, run.noun),
    )


def drift_words(drift: AttentionDrift, noun: str) -> str:
    """Return the answer with its numbers in words, without a full stop. `noun` is the word for one
    cluster."""
    parts = [words for words in (shift_words(drift), sink_words(drift)) if words]
    figures = "; ".join(parts)
    if drift.answer is Answer.DRIFT:
        return f"attention drifts over depth{_toward(drift)}: {figures}"
    if drift.answer is Answer.NO_DRIFT:
        return (
            f"attention does not drift over depth: {figures} (within {100 * MARGIN:g} points "
            "counts as no drift)"
        )
    reasons = "; ".join(part for part in (figures, _reason(drift, noun)) if part)
    return f"whether attention drifts over depth cannot be told: {reasons}"


def shift_words(drift: AttentionDrift) -> str:
    """Return in words how far attention moved to near tokens; "" if it is not known."""
    if drift.shift is None:
        return ""
    points = f"{_signed(drift.shift.value)} points{_brackets(drift.shift)}"
    if drift.source is Source.MATCHED:
        return (
            f"in the first {count(drift.depths - 1, 'output token')} the chain's own tokens get "
            f"{points} of the attention compared with verified tokens in the same places, at "
            f"{_depths(drift.from_depth, drift.depths)}"
        )
    return (
        f"at depth {drift.depths} the {_nearest(drift)} {points} of the attention compared with "
        "depth 1"
    )


def sink_words(drift: AttentionDrift) -> str:
    """Return in words what the sink keeps; "" without a sink."""
    kept = drift.sink_kept
    if kept is None:
        return ""
    ends = kept.interval
    spread = f" ({percent(ends.low)} to {percent(ends.high)})" if ends else ""
    return (
        f"the sink keeps {percent(kept.value)}{spread} of its depth-1 attention at depth "
        f"{drift.depths}"
    )


def wanted_words(drift: AttentionDrift, noun: str = "request") -> str:
    """Return what to record, and about how much, for an answer about the near shift. `noun` is
    the word for one cluster."""
    if drift.shift is None and drift.chains >= FEWEST_CHAINS and drift.clusters < FEWEST_CLUSTERS:
        return (
            f"record at least {FEWEST_CLUSTERS} {noun}s (this run has chains of {drift.clusters:,})"
        )
    if drift.shift is None:
        return (
            f"record attention mass by distance: at least {FEWEST_CHAINS} chains of "
            f"{FEWEST_CLUSTERS} {noun}s are needed, or {FEWEST_MATCHED} chains within the first "
            f"{count(drift.depths - 1, 'output token')}; this run has {drift.chains:,} of "
            f"{count(drift.clusters, noun)}"
        )
    if drift.wanted_clusters is None:
        return f"record more {noun}s of similar length: one has most of the chains"
    by_distance = drift.source is Source.DISTANCES
    source = "" if by_distance else ", or as many with attention mass by distance"
    return (
        f"record about {count(drift.wanted_clusters, noun)} ({drift.clusters:,} were "
        f"recorded){source}"
    )


def _toward(drift: AttentionDrift) -> str:
    """Return what attention moves to. The drafter's own guesses are named only if they, and not
    any token in their place, are shown to attract it."""
    if not drift.moves:
        return ""
    last = drift.shift if drift.source is Source.MATCHED else drift.own_excess[-1]
    own = last is not None and last.interval is not None and last.interval.low > MARGIN
    return " to the drafter's own guesses" if own else " to recent tokens"


def _reason(drift: AttentionDrift, noun: str) -> str:
    spread = drift.shift.interval if drift.shift else None
    if spread is not None and spread.high <= -MARGIN:
        return "attention moves away from near tokens, which is neither this drift nor its absence"
    if spread is not None and spread.low > -MARGIN and spread.high < MARGIN:
        return (
            f"a sink that keeps between {percent(SINK_LOST_BELOW)} and {percent(SINK_KEPT_ABOVE)} "
            "is neither lost nor kept"
        )
    return wanted_words(drift, noun)


def _not_recorded(run: RunSummary) -> str:
    if run.depths < 2:
        return "a chain of one token has no depth over which attention could drift"
    return (
        "whether attention drifts over depth cannot be told: no attention masses were recorded; "
        f"record at least {FEWEST_CHAINS} chains of {FEWEST_CLUSTERS} requests with them"
    )


def _nearest(drift: AttentionDrift) -> str:
    n = drift.depths - 1
    return "last token gets" if n == 1 else f"last {n} tokens get"


def _depths(first: int, last: int) -> str:
    return f"depth {last}" if first == last else f"depths {first} to {last}"


def _brackets(estimate: Estimate) -> str:
    ends = estimate.interval
    return f" ({_signed(ends.low)} to {_signed(ends.high)})" if ends else ""


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}"
