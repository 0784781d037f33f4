"""Rules about the drafter's attention as depth grows, compared with the recency-matched null."""

from __future__ import annotations

import math
from collections.abc import Sequence

from driftscope.analysis.figures.verified_chains import answers
from driftscope.analysis.findings.acceptance_losses import loss_of
from driftscope.analysis.findings.attention_claim import shift_words, sink_words
from driftscope.analysis.findings.catalogue_entry import Entry, Need, Threshold
from driftscope.analysis.findings.finding import Finding, Severity, Trust
from driftscope.analysis.findings.finding_confidence import ends, judged
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.findings.norm_advice import unless_normed
from driftscope.analysis.number_words import listed, percent
from driftscope.analysis.statistics.attention_drift import (
    FEWEST_CLUSTERS,
    MARGIN,
    SINK_FLOOR,
    SINK_LOST_BELOW,
    SINK_TIMES_EVEN,
    AttentionDrift,
    Source,
)
from driftscope.analysis.statistics.within_strata import Answer as Relation
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics.attention import SELF

_WITH_NORMS = "Compare it with a drafter that has norm_output and fc_norm (EAGLE-3.1)"
_WITH_OTHER = "Compare it with another drafter of the same target"
_USE_NORMS = "Use a drafter with norm_output and fc_norm (EAGLE-3.1). "


def has_sink(run: RunSummary) -> bool | None:
    """Whether the sink set has clearly more attention at depth 1 than even attention would give.

    The rule: at least SINK_FLOOR, and at least SINK_TIMES_EVEN times the even share. False if the
    probe looked for a sink and found none. None if the mass was not recorded or does not apply (the
    sink lies outside the drafter's attention window).
    """
    if run.manifest.sinkless and run.attention.self_mass is not None:
        return False
    sink, even = run.attention.sink_mass, run.attention.even_sink_mass
    if sink is None or even is None or not math.isfinite(sink[0]):
        return None
    return bool(sink[0] >= SINK_FLOOR and sink[0] >= SINK_TIMES_EVEN * even)


def attention_moves_to_chain(case: Case) -> Finding | None:
    """Find that attention moves to near tokens over depth, beyond what a drafter that prefers
    recent tokens at every depth does."""
    drift = case.run.attention_drift
    if drift is None or drift.shift is None or not drift.moves:
        return None
    trust, because = judged(drift.clusters, drift.shift.interval, above=MARGIN)
    if drift.source is Source.MATCHED and trust is Trust.HIGH:
        trust, because = (
            Trust.MEDIUM,
            (f"{because}, but only the first {drift.depths - 1} output tokens are looked at"),
        )
    return Finding(
        id="attention_moves_to_chain",
        severity=_severity(case),
        runs=(case.run.label,),
        title=_MOVES,
        statement=shift_words(drift),
        evidence={
            "near_shift": drift.shift.value,
            **ends("near_shift", drift.shift.interval),
            **_parts(drift),
            "chains": drift.chains,
            "clusters": drift.clusters,
            "threshold": MARGIN,
        },
        confidence=trust,
        because=because,
        advice="The drafter leans on its own guesses more with every depth than on verified "
        f"tokens in the same places. {unless_normed(case.run, _WITH_NORMS, _WITH_OTHER)} on the "
        "same prompts, and read it together with the acceptance by depth: only that shows whether "
        "anything is lost. `driftscope ablate DRAFTER --target TARGET` hides the chain's own "
        "tokens from its attention, and measures what that changes.",
    )


def _parts(drift: AttentionDrift) -> dict[str, float | None]:
    """Return the first step and the trend as evidence, if they are known."""
    if drift.first_step is None or drift.trend is None:
        return {}
    return {
        "first_step": drift.first_step.value,
        **ends("first_step", drift.first_step.interval),
        "trend": drift.trend.value,
        **ends("trend", drift.trend.interval),
    }


def _severity(case: Case) -> Severity:
    """Return HIGH only if acceptance is lost as well: drift by itself costs nothing."""
    lost = case.accepts_less or loss_of(case.run) is not None or _goes_with_less(case.run)
    return Severity.HIGH if lost else Severity.MEDIUM


def _goes_with_less(run: RunSummary) -> bool:
    """Whether, within requests, acceptance is lower where the chain gets more attention."""
    pairs = zip(run.within_request, answers(run.within_request), strict=True)
    return any(each.measure == SELF.name and answer is Relation.LESS for each, answer in pairs)


def no_sink(case: Case) -> Finding | None:
    """Find that there is no sink, so that statements about the sink do not apply."""
    run = case.run
    if has_sink(run) is not False:
        return None
    if run.manifest.sinkless:
        return _fruitless_search(run)
    sink, even = run.attention.sink_mass, run.attention.even_sink_mass
    assert sink is not None and even is not None  # noqa: S101  has_sink is False then
    slots = run.manifest.sink_slots
    return Finding(
        id="no_sink",
        severity=Severity.INFO,
        runs=(run.label,),
        title=_NO_SINK,
        statement=f"{_named(slots)} {percent(sink[0])} of the attention at depth 1; evenly spread "
        f"attention would give {percent(even)}, and a sink holds at least {SINK_TIMES_EVEN:.0f} "
        f"times that and at least {percent(SINK_FLOOR)}",
        evidence={
            "sink_mass_first": sink[0],
            "even_share": even,
            "sink_tokens": len(slots),
            "floor": SINK_FLOOR,
            "times_even": SINK_TIMES_EVEN,
        },
        confidence=Trust.MEDIUM,
        because="a sink beyond the slots of the sink set would not be seen",
        advice="Nothing to do. If you know that this target has its sink on later slots, set "
        "DRIFTSCOPE_SINK_TOKENS so that those slots count, and record again.",
    )


def _fruitless_search(run: RunSummary) -> Finding:
    """Return the finding for a probe that looked for a sink set and found none; the evidence is
    among the run's notes."""
    return Finding(
        id="no_sink",
        severity=Severity.INFO,
        runs=(run.label,),
        title=_NO_SINK,
        confidence=Trust.HIGH,
        because="the probe measured the attention on each early slot",
        statement=run.manifest.notes[-1] if run.manifest.notes else "no sink found",
        evidence={"sink_tokens": 0},
        advice="Nothing to do. The slots that a sink would have occupied count as prompt. If you "
        "know that this target has its sink on later slots, set DRIFTSCOPE_SINK_TOKENS to those "
        "slots, and record again.",
    )


_NO_SINK = "This target has no attention sink, so sink loss does not apply"


def sink_lost(case: Case) -> Finding | None:
    """Find that the sink keeps less than half of its attention over depth."""
    run, drift = case.run, case.run.attention_drift
    if drift is None or drift.sink_kept is None or not drift.loses_sink:
        return None
    sink = run.attention.sink_mass
    trust, because = judged(run.requests, drift.sink_kept.interval, below=SINK_LOST_BELOW)
    return Finding(
        id="sink_lost",
        severity=_severity(case),
        runs=(run.label,),
        title="The attention sink is lost over depth",
        statement=sink_words(drift),
        evidence={
            "sink_mass_first": sink[0] if sink else None,
            "sink_mass_last": sink[-1] if sink else None,
            "retention": drift.sink_kept.value,
            **ends("retention", drift.sink_kept.interval),
            "threshold": SINK_LOST_BELOW,
        },
        confidence=trust,
        because=because,
        advice=f"{unless_normed(run, _USE_NORMS)}Check that the chat template still begins with "
        "the token that the drafter was trained with (often BOS): --chat-template sets it. If the "
        "drafter has a sliding window, check that the engine keeps the sink's slots in it. This is "
        "attention drift as the paper describes it.",
    )


def _named(slots: Sequence[int]) -> str:
    if tuple(slots) != tuple(range(len(slots))):
        return f"the sink set (slots {listed([str(slot) for slot in slots])}) holds"
    return "the first slot holds" if len(slots) == 1 else f"the first {len(slots)} slots hold"


def _shift_decided(case: Case) -> bool:
    """Whether the interval of the near shift lies on one side of MARGIN."""
    return case.run.attention_drift is not None and case.run.attention_drift.moves is not None


def _sink_decided(case: Case) -> bool:
    """Whether there is no sink to lose, or the interval of what it keeps lies on one side of the
    threshold."""
    drift = case.run.attention_drift
    if drift is None or has_sink(case.run) is None:
        return False
    return has_sink(case.run) is False or drift.loses_sink is not None


_SINK = Need[Case](
    words="attention masses, with the sink set inside the drafter's attention window",
    met=lambda case: has_sink(case.run) is not None,
)
_SOURCE = "half of the weakest sink reported in arXiv 2605.09992 for a model that has one"
_MOVES = "Attention moves to the chain's own tokens"
_MATTERS = (
    "The severity is high only if acceptance is lost as well: compared with another run, along the "
    "chain, or within requests where the chain gets more attention."
)

ENTRIES = (
    Entry(
        id="attention_moves_to_chain",
        title=_MOVES,
        meaning="Attention drift: at depth K the nearest tokens, which are the drafter's own, get "
        "more attention than verified tokens in the same places get at depth 1. A drafter that "
        f"prefers recent tokens at every depth does not meet this. {_MATTERS}",
        thresholds=(
            Threshold(
                name="MARGIN",
                value=MARGIN,
                means="near shift at depth K, as a share of the attention, that the whole 95% "
                "interval has to exceed",
                source="between 0.17 (drifting) and 0.03 (healthy) in arXiv 2605.09992",
            ),
            Threshold(
                name="FEWEST_CLUSTERS",
                value=FEWEST_CLUSTERS,
                means="fewest requests for an answer",
                source="driftscope: with fewer, the error itself is not known",
            ),
        ),
        need=Need[Case](
            words="attention masses by distance (or enough chains within the first K - 1 output "
            "tokens), of so many requests that the interval is clear of the threshold",
            met=_shift_decided,
        ),
        rule=attention_moves_to_chain,
    ),
    Entry(
        id="sink_lost",
        title="The attention sink is lost over depth",
        meaning="With depth the sink's slots lose most of their attention: a template without BOS, "
        f"a sliding window, or drift. {_MATTERS}",
        thresholds=(
            Threshold(
                name="SINK_LOST_BELOW",
                value=SINK_LOST_BELOW,
                means="sink mass at depth K over that at depth 1, below which the whole 95% "
                "interval has to lie",
                source="middle of 0.17 (drifting) and 0.91 (healthy) in arXiv 2605.09992",
            ),
            Threshold(
                name="SINK_FLOOR",
                value=SINK_FLOOR,
                means="mass at depth 1 from which there is a sink to lose",
                source=_SOURCE,
            ),
        ),
        need=Need[Case](
            words="attention masses, with the sink set inside the drafter's attention window, of "
            "so many requests that the interval is clear of the threshold",
            met=_sink_decided,
        ),
        rule=sink_lost,
    ),
    Entry(
        id="no_sink",
        title=_NO_SINK,
        meaning="At depth 1 the sink set does not hold clearly more attention than evenly spread "
        "attention would give it.",
        thresholds=(
            Threshold(
                name="SINK_FLOOR",
                value=SINK_FLOOR,
                means="mass at depth 1 below which there is no sink",
                source=_SOURCE,
            ),
            Threshold(
                name="SINK_TIMES_EVEN",
                value=SINK_TIMES_EVEN,
                means="times the share of even attention below which there is no sink",
                source="driftscope: in a short context any first token would count as a sink",
            ),
        ),
        need=_SINK,
        rule=no_sink,
    ),
)
