"""Rules about the inside of the drafter: its attention, the state that it feeds itself, its input;
and the answer to whether its attention drifts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from driftscope.analysis.figures.attention_drift import (
    FEWEST_CHAINS,
    FEWEST_CLUSTERS,
    MARGIN,
    SINK_FLOOR,
    SINK_KEPT_ABOVE,
    SINK_LOST_BELOW,
    SINK_TIMES_EVEN,
    AttentionDrift,
)
from driftscope.analysis.figures.attention_drift import DriftAnswer as Drifts
from driftscope.analysis.figures.verified_chains import WithinRequest, answers
from driftscope.analysis.number_words import (
    between,
    between_percent,
    count,
    listed,
    number,
    percent,
    times,
)
from driftscope.analysis.statistics.intervals import Estimate, Interval
from driftscope.analysis.statistics.strata import AssociationAnswer as Relation
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.case import Case, Deciding, Need, Threshold, entry, question
from driftscope.findings.causes import (
    GROWS_ABOVE,
    NOTHING_BELOW,
    UNBALANCED_ABOVE,
    ablate_command,
    loses_along_chain,
    unless_normed,
)
from driftscope.findings.finding import Answer, Finding, Severity, Topic, Trust, figure, judged
from driftscope.metrics.attention import SELF
from driftscope.metrics.hidden import GROWTH, per_depth
from driftscope.trace.manifest import FED_BEFORE

_WITH_NORMS = "Compare it with a drafter that has norm_output and fc_norm (EAGLE-3.1)"
_WITH_OTHER = "Compare it with another drafter of the same target"
_USE_NORMS = "Use a drafter with norm_output and fc_norm (EAGLE-3.1). "


def has_sink(run: RunSummary) -> bool | None:
    """Whether the drafter looks at the sink set clearly more than even attention would, see
    `attention_drift.with_sink`; False if the probe looked for a sink and found none. None if this
    cannot be told, or does not apply (the sink lies outside the drafter's attention window)."""
    if run.manifest.sinkless and run.attention.self_mass is not None:
        return False
    return None if run.attention_drift is None else run.attention_drift.has_sink


def _sink_decided(case: Case) -> bool:
    """Whether there is no sink to lose, or the interval of what it keeps lies on one side of the
    threshold."""
    drift = case.run.attention_drift
    if drift is None or has_sink(case.run) is None:
        return False
    return has_sink(case.run) is False or drift.loses_sink is not None


_SOURCE = "half of the weakest sink reported in arXiv 2605.09992 for a model that has one"
STABLE_BELOW = Threshold(
    name="STABLE_BELOW",
    value=1.026,
    means="RMS of the state fed forward over that of the depth before, mean over the chain",
    source="1.2 by depth 8, same sources; between the two thresholds nothing is reported",
)
UNLIKE_ABOVE = Threshold(
    name="UNLIKE_ABOVE",
    value=2.0,
    means="RMS of the state that enters depth 2 over that of depth 1, or its inverse",
    source="driftscope: two final norms of one family of models differ less in their weights",
)
_NORMALISE = (
    "Use a drafter with norm_output and fc_norm (EAGLE-3.1), or retrain this one with them: "
    "nothing normalises the state between the steps of its chain, and no server setting does. If "
    "this drafter was trained with norm_output, check that its config still says so. Until then "
    "draft fewer tokens. The paper finds this growth together with attention drift (arXiv "
    "2605.09992); this run does not show that it costs acceptance"
)
_TO_KNOW = (
    "Nothing to do now: every EAGLE-3 drafter without norm_output does this, and no loss of "
    "acceptance is visible. To see whether it costs any, record a drafter with norm_output and "
    "fc_norm (EAGLE-3.1) on the same prompts and compare the two."
)
_NOT_APPLIED = (
    "The config sets norm_output, but the state grows as it does without it: the engine does not "
    "apply the flag. Check that the config's field has the name that the engine reads, and try "
    "another version of the engine. Until then draft fewer tokens."
)


def _per_depth(spread: Interval | None, depths: int) -> Interval | None:
    """Return the interval of the growth per depth."""
    if spread is None or not spread.low > 0:
        return None
    return Interval.between(per_depth(spread.low, depths), per_depth(spread.high, depths))


def _growth(case: Case, bound: float) -> Deciding | None:
    run = case.run
    if run.hidden.growth is None:
        return None
    return Deciding(
        value=per_depth(run.hidden.growth, run.depths),
        interval=_per_depth(run.hidden.growth_interval, run.depths),
        bound=bound,
    )


_NEED = Need[Case](
    words="the RMS of the state fed forward, at two depths or more",
    met=lambda case: case.run.depths > 1 and case.run.hidden.growth is not None,
)
_NAMES = {
    SELF.name: "attention on the chain itself",
    GROWTH.name: "growth of the hidden state",
}
CAVEAT = (
    "Draft tokens are compared within one request and one depth, among chains accepted up to that "
    "depth. This is an association, not a cause."
)
_NOT_RECORDED = (
    "whether attention drifts over depth cannot be told: no attention masses were recorded; "
    f"record at least {FEWEST_CHAINS} chains of {FEWEST_CLUSTERS} requests with them"
)
_ANSWERS = {
    Drifts.NO_DRIFT: Answer.YES,
    Drifts.DRIFT: Answer.NO,
    Drifts.CANNOT_TELL: Answer.CANNOT_TELL,
}


def drift_words(drift: AttentionDrift, noun: str) -> str:
    """Return the answer with its numbers in words, without a full stop. `noun` is the word for one
    cluster."""
    parts = [words for words in (shift_words(drift), sink_words(drift)) if words]
    figures = "; ".join(parts)
    if drift.answer is Drifts.DRIFT:
        return f"attention drifts over depth{_toward(drift)}: {figures}"
    if drift.answer is Drifts.NO_DRIFT:
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


def wanted_words(drift: AttentionDrift, noun: str) -> str:
    """Return what to record, and about how much, for an answer about the near shift. `noun` is
    the word for one cluster."""
    if drift.shift is None and drift.chains >= FEWEST_CHAINS and drift.clusters < FEWEST_CLUSTERS:
        return (
            f"record at least {FEWEST_CLUSTERS} {noun}s (this run has chains of {drift.clusters:,})"
        )
    if drift.shift is None:
        enough = f"at least {FEWEST_CHAINS} chains of {FEWEST_CLUSTERS} {noun}s"
        if not drift.chains:
            return (
                f"record {enough} with attention mass by distance: start the server with "
                "DRIFTSCOPE_DISTANCE_EVERY=1"
            )
        return (
            f"record {enough}, this run has {drift.chains:,} of {count(drift.clusters, noun)}; "
            "while the server runs, type `driftscope probe set latest --every 1`"
        )
    if drift.wanted_clusters is None:
        return f"record more {noun}s of similar length: one has most of the chains"
    return f"record about {count(drift.wanted_clusters, noun)} ({drift.clusters:,} were recorded)"


def _toward(drift: AttentionDrift) -> str:
    """Return what attention moves to. The drafter's own guesses are named only if they, and not
    any token in their place, are shown to attract it."""
    if not drift.moves:
        return ""
    own = bool(drift.own_excess) and drift.own_excess[-1].surely_above(MARGIN)
    return " to the drafter's own guesses" if own else " to recent tokens"


def _reason(drift: AttentionDrift, noun: str) -> str:
    spread = drift.shift.interval if drift.shift else None
    if spread is not None and spread.high <= -MARGIN:
        return "attention moves away from near tokens, which is neither this drift nor its absence"
    if drift.moves_apart and spread is not None and spread.low > -MARGIN and spread.high < MARGIN:
        return (
            "requests differ: it moves to near tokens in some and away from them in others, by "
            f"{100 * (drift.apart or 0.0):.0f} points (standard deviation); look at it by label"
        )
    if spread is not None and spread.low > -MARGIN and spread.high < MARGIN:
        return (
            f"a sink that keeps between {percent(SINK_LOST_BELOW)} and {percent(SINK_KEPT_ABOVE)} "
            "is neither lost nor kept"
        )
    return wanted_words(drift, noun)


def _nearest(drift: AttentionDrift) -> str:
    n = drift.depths - 1
    return "last token gets" if n == 1 else f"last {n} tokens get"


def _brackets(estimate: Estimate) -> str:
    ends = estimate.interval
    return f" ({_signed(ends.low)} to {_signed(ends.high)})" if ends else ""


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}"


@entry(
    title="The hidden state grows with depth",
    topic=Topic.INSIDE,
    thresholds=(GROWS_ABOVE,),
    need=_NEED,
    deciding=lambda case: _growth(case, GROWS_ABOVE.value),
)
def hidden_state_grows(case: Case) -> Finding | None:
    """The state that the drafter feeds itself grows with every depth, which the paper finds
    together with attention drift. The severity is high only if acceptance falls along the chain as
    well, medium if the config sets norm_output; otherwise the growth is a property of the drafter,
    reported for information."""
    run = case.run
    if run.hidden.growth is None or per_depth(run.hidden.growth, run.depths) <= GROWS_ABOVE.value:
        return None
    loses = loses_along_chain(run)
    if run.manifest.norm_flags.get("norm_output", False):
        severity, advice = Severity.MEDIUM, _NOT_APPLIED
    else:
        severity, advice = Severity.INFO, _TO_KNOW
        if loses:
            command = ablate_command(run)
            advice = f"{_NORMALISE}{f': {command} does' if command else ''}."
    return _fed_state(run, Severity.HIGH if loses else severity, advice, above=GROWS_ABOVE.value)


@entry(
    title="The hidden state keeps its size over depth",
    topic=Topic.INSIDE,
    thresholds=(STABLE_BELOW,),
    need=_NEED,
    deciding=lambda case: _growth(case, STABLE_BELOW.value),
)
def hidden_state_stable(case: Case) -> Finding | None:
    """The state fed forward is as large at depth K as at depth 1, as norm_output should make it."""
    run = case.run
    growth = run.hidden.growth
    if run.depths < 2 or growth is None or per_depth(growth, run.depths) >= STABLE_BELOW.value:
        return None
    return _fed_state(run, Severity.GOOD, "Nothing to do.", below=STABLE_BELOW.value)


@entry(
    title="The state fed to the next depth is not normalised as at depth 1",
    topic=Topic.INSIDE,
    thresholds=(UNLIKE_ABOVE,),
    need=Need[Case](
        words="a run of an MTP head, with the RMS of the state that enters depth 1 and depth 2",
        met=lambda case: _unlike(case.run) is not None,
    ),
)
def fed_unlike_input(case: Case) -> Finding | None:
    """An MTP head gets the target's state at depth 1, and its own state from before its final norm
    at later depths, of clearly another size. Engines have had this fault (vllm#46075,
    LightLLM#1402): depth 1 is accepted as usual, later depths hardly. The severity is high only if
    acceptance falls along the chain."""
    run, ratio = case.run, _unlike(case.run)
    if ratio is None or run.manifest.fed_state != FED_BEFORE:
        return None
    if 1 / UNLIKE_ABOVE.value <= ratio <= UNLIKE_ABOVE.value:
        return None
    entering = run.hidden.in_rms
    assert entering is not None  # noqa: S101  see `_unlike`
    grows = per_depth(run.hidden.growth, run.depths) if run.hidden.growth else None
    along = f", and {times(grows)} more with each step" if grows and grows > 1 else ""
    loses = loses_along_chain(run)
    return Finding(
        severity=Severity.HIGH if loses else Severity.INFO,
        statement=f"the state fed to depth 2 has RMS {number(entering[1])}, and the target's state "
        f"that is fed to depth 1 {number(entering[0])}: {times(ratio)}{along}. It is taken before "
        "the final norm",
        evidence={
            "in_rms_first": entering[0],
            "in_rms_second": entering[1],
            "ratio": ratio,
            "threshold": UNLIKE_ABOVE.value,
        },
        confidence=Trust.HIGH if loses else Trust.MEDIUM,
        because="one chain showed which state is fed, and acceptance falls along the chain"
        if loses
        else "acceptance does not fall along the chain",
        advice="Check in the model's own code which state its MTP head is fed, and try another "
        "version of the engine. Until then draft one token."
        if loses
        else "Nothing to do while later depths are accepted: the head may be trained like this.",
    )


def _unlike(run: RunSummary) -> float | None:
    """Return the RMS of the state that enters depth 2 over that of depth 1, in a drafter that gets
    the target's own state; None for others."""
    entering = run.hidden.in_rms
    if not run.manifest.method.endswith("mtp") or not entering or len(entering) < 2:
        return None
    ratio = entering[1] / entering[0] if entering[0] > 0 else math.nan
    return ratio if math.isfinite(ratio) else None


def _fed_state(
    run: RunSummary,
    severity: Severity,
    advice: str,
    *,
    above: float | None = None,
    below: float | None = None,
) -> Finding:
    """Return the finding about a growth that lies `above` or `below` a threshold."""
    fed, grown, spread = run.hidden.fed_rms, run.hidden.growth, run.hidden.growth_interval
    assert fed is not None and grown is not None  # noqa: S101  callers look at growth
    by_depth = _per_depth(spread, run.depths)
    trust, because = judged(run.requests, by_depth, above=above, below=below)
    return Finding(
        severity=severity,
        statement=f"the state fed to the next depth has RMS {number(fed[0])} at depth 1 and "
        f"{number(fed[-1])} at depth {run.depths}: {times(grown)}{between(spread)}, "
        f"{times(per_depth(grown, run.depths))} per depth"
        f"{_disagrees(run, GROWTH.name) if above else ''}",
        evidence={
            "fed_rms_first": fed[0],
            "fed_rms_last": fed[-1],
            **figure("growth", grown, spread),
            **figure("growth_per_depth", per_depth(grown, run.depths), by_depth),
            "threshold": above or below,
        },
        confidence=trust,
        because=because,
        advice=advice,
    )


@entry(
    title="Attention moves to the chain's own tokens",
    topic=Topic.INSIDE,
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
        met=lambda case: (
            case.run.attention_drift is not None and case.run.attention_drift.moves is not None
        ),
    ),
)
def attention_moves_to_chain(case: Case) -> Finding | None:
    """Attention drift: at depth K the nearest tokens, which are the drafter's own, get more
    attention than verified tokens in the same places get at depth 1. A drafter that prefers recent
    tokens at every depth does not meet this. The severity is high only if acceptance falls along
    the chain as well, whatever another run accepts."""
    drift = case.run.attention_drift
    if drift is None or drift.shift is None or not drift.moves:
        return None
    trust, because = judged(drift.clusters, drift.shift.interval, above=MARGIN)
    if drift.first_step is None or drift.trend is None:
        parts = {}
    else:
        parts = {
            **figure("first_step", drift.first_step.value, drift.first_step.interval),
            **figure("trend", drift.trend.value, drift.trend.interval),
        }
    command, hidden = ablate_command(case.run), ""
    if command is not None:
        hidden = f" {command} hides them from its attention, and measures what that changes."
    return Finding(
        severity=_severity(case),
        answer=Answer.NO,
        statement=f"{shift_words(drift)}: it moves{_toward(drift)}"
        f"{_disagrees(case.run, SELF.name)}",
        evidence={
            **figure("near_shift", drift.shift.value, drift.shift.interval),
            **parts,
            "chains": drift.chains,
            "clusters": drift.clusters,
            "threshold": MARGIN,
        },
        confidence=trust,
        because=because,
        advice="The drafter leans on its own guesses more with every depth than on verified "
        f"tokens in the same places. {unless_normed(case.run, _WITH_NORMS, _WITH_OTHER)} on the "
        "same prompts, and read it together with the acceptance by depth: only that shows whether "
        f"anything is lost.{hidden}",
    )


def _severity(case: Case) -> Severity:
    """Return HIGH only if acceptance is lost as well: drift by itself costs nothing."""
    return Severity.HIGH if loses_along_chain(case.run) else Severity.MEDIUM


def _cost_of_sink(case: Case) -> str:
    """Return the norms as advice where acceptance is lost as well, unless the growth of the state
    advises them, else what tells whether it is: in SmolLM2's EAGLE-3 drafter a lost sink costs
    nothing (docs/phenomenon.md)."""
    if loses_along_chain(case.run):
        return "" if hidden_state_grows(case) else unless_normed(case.run, _USE_NORMS)
    command = ablate_command(case.run)
    if command is None:
        return "This run does not show that it costs acceptance. "
    return f"Find out whether it costs acceptance, which this run does not show: {command}. "


def _disagrees(run: RunSummary, measure: str) -> str:
    """Return in words that acceptance goes the other way within requests; "" if it does not."""
    pairs = zip(run.within_request, answers(run.within_request), strict=True)
    if (measure, Relation.MORE) not in [(pair.measure, answer) for pair, answer in pairs]:
        return ""
    return (
        f"; but within a request more {_NAMES[measure]} goes with more acceptance, so this run "
        "does not show that it costs any"
    )


@entry(
    title="The attention sink is lost over depth",
    topic=Topic.INSIDE,
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
)
def sink_lost(case: Case) -> Finding | None:
    """With depth the sink's slots lose most of their attention: a template without BOS, a sliding
    window, or drift. The severity is high only if acceptance falls along the chain as well,
    whatever another run accepts."""
    run, drift = case.run, case.run.attention_drift
    if drift is None or drift.sink_kept is None or not drift.loses_sink:
        return None
    sink = run.attention.sink_mass
    trust, because = judged(run.requests, drift.sink_kept.interval, below=SINK_LOST_BELOW)
    return Finding(
        severity=_severity(case),
        answer=Answer.NO,
        statement=sink_words(drift),
        evidence={
            "sink_mass_first": sink[0] if sink else None,
            "sink_mass_last": sink[-1] if sink else None,
            **figure("retention", drift.sink_kept.value, drift.sink_kept.interval),
            "threshold": SINK_LOST_BELOW,
        },
        confidence=trust,
        because=because,
        advice=f"{_cost_of_sink(case)}Check that the chat template still begins with "
        "the token that the drafter was trained with (often BOS): --chat-template sets it. If the "
        "drafter has a sliding window, check that the engine keeps the sink's slots in it. This is "
        "attention drift as the paper describes it.",
    )


@entry(
    title="This drafter has no attention sink to lose",
    topic=Topic.INSIDE,
    thresholds=(
        Threshold(
            name="SINK_FLOOR",
            value=SINK_FLOOR,
            means="mass at depth 1 above or below which its 95% interval has to lie",
            source=_SOURCE,
        ),
        Threshold(
            name="SINK_TIMES_EVEN",
            value=SINK_TIMES_EVEN,
            means="times the share of even attention; contexts in which this exceeds SINK_FLOOR "
            "are too short to tell that there is no sink",
            source="driftscope: in a short context any first token would count as a sink",
        ),
    ),
    need=Need[Case](
        words=f"attention masses of {FEWEST_CHAINS} chains of {FEWEST_CLUSTERS} requests, with the "
        "sink set inside the drafter's attention window, in contexts of 60 tokens or more for each "
        "slot of the sink set",
        met=lambda case: has_sink(case.run) is not None,
    ),
)
def no_sink(case: Case) -> Finding | None:
    """At depth 1, in long contexts, the drafter does not look at the sink set clearly more than
    evenly spread attention would. It says nothing about the target: a damaged drafter may have lost
    a sink that the target has."""
    run = case.run
    if has_sink(run) is not False:
        return None
    if run.manifest.sinkless:
        # The probe looked for a sink set and found none; the evidence is among the run's notes.
        return Finding(
            severity=Severity.INFO,
            confidence=Trust.HIGH,
            because="the probe measured the attention on each early slot",
            statement=run.manifest.notes[-1] if run.manifest.notes else "no sink found",
            evidence={"sink_tokens": 0},
            advice="Nothing to do. The slots that a sink would have occupied count as prompt. If "
            "you know that this target has its sink on later slots, set DRIFTSCOPE_SINK_TOKENS to "
            "those slots, and record again.",
        )
    first = run.attention_drift.sink_first if run.attention_drift else None
    assert first is not None  # noqa: S101  has_sink is False then
    slots = run.manifest.sink_slots
    if tuple(slots) != tuple(range(len(slots))):
        named = f"the sink set (slots {listed([str(slot) for slot in slots])}) holds"
    else:
        named = "the first slot holds" if len(slots) == 1 else f"the first {len(slots)} slots hold"
    return Finding(
        severity=Severity.INFO,
        statement=f"{named} {percent(first.value)}{between_percent(first.interval)} of its "
        f"attention at depth 1, in contexts of {_LONG * len(slots):,} tokens or more; a sink holds "
        f"at least {percent(SINK_FLOOR)} there",
        evidence={
            **figure("sink_mass_first", first.value, first.interval),
            "sink_tokens": len(slots),
            "floor": SINK_FLOOR,
            "times_even": SINK_TIMES_EVEN,
        },
        confidence=Trust.MEDIUM,
        because="a sink beyond the slots of the sink set would not be seen, and a drafter may have "
        "lost the one of its target",
        advice="Nothing to do if another drafter of this target has none either. If you know that "
        "this target has its sink on later slots, set DRIFTSCOPE_SINK_TOKENS so that those slots "
        "count, and record again.",
    )


_LONG = round(SINK_TIMES_EVEN / SINK_FLOOR)
"""Tokens of context for each slot of the sink set from which SINK_FLOOR decides."""


@entry(
    title="The captured target layers are out of balance",
    topic=Topic.INSIDE,
    thresholds=(UNBALANCED_ABOVE,),
    need=Need[Case](
        words="the RMS of two or more captured target layers",
        met=lambda case: case.run.groups.aux_ratio is not None,
    ),
)
def captured_layers_unbalanced(case: Case) -> Finding | None:
    """The captured hidden states of the target reach the drafter's fc with such different sizes
    that the smallest is lost next to the largest."""
    ratio, spread = case.run.groups.aux_ratio, case.run.groups.aux_ratio_interval
    if ratio is None or not ratio > UNBALANCED_ABOVE.value:
        return None
    normed = case.run.hidden.aux_norm_rms is not None
    rms = case.run.hidden.aux_norm_rms or case.run.hidden.aux_rms or ()
    trust, because = judged(case.run.requests, spread, above=UNBALANCED_ABOVE.value)
    return Finding(
        severity=Severity.MEDIUM,
        statement=f"their RMS {'after' if normed else 'without'} a norm before the fc is "
        f"{listed([number(value) for value in rms])}: the largest is {times(ratio)} the "
        f"smallest{between(spread)}",
        evidence={
            **figure("ratio", ratio, spread),
            **{f"rms_{n + 1}": value for n, value in enumerate(rms)},
            "threshold": UNBALANCED_ABOVE.value,
        },
        confidence=trust,
        because=because,
        advice="The norm's weights differ widely, or belong to other layers: compare the drafter's "
        "eagle_aux_hidden_state_layer_ids with its training."
        if normed
        else "Use a drafter with fc_norm (EAGLE-3.1), which scales each captured layer to the same "
        "size. If this one was trained with fc_norm or norm_before_fc, check that its config still "
        "says so, and that eagle_aux_hidden_state_layer_ids names the layers used in training.",
    )


def clauses(relations: Sequence[WithinRequest]) -> list[str]:
    """Return short clauses on the measures for which there is an answer."""
    pairs = zip(relations, answers(relations), strict=True)
    return [words for relation, answer in pairs if (words := _clause(relation, answer))]


def _clause(relation: WithinRequest, answer: Relation) -> str:
    name, alone = _NAMES[relation.measure], relation.alone
    if alone is None or answer is Relation.CANNOT_TELL:
        return ""
    if answer is Relation.NO:
        return f"acceptance within a request does not go with {name}"
    return (
        f"within a request, more {name} goes with {100 * abs(alone.per_sd):.1f} points {answer} "
        f"acceptance ({_points(alone.interval)})"
    )


def _points(interval: Interval) -> str:
    return f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f}"


@question("Does attention stay where it is at depth 1?", Topic.INSIDE)
def attention_stays(case: Case) -> Finding | None:
    """Return whether attention stays, unless a rule found that it does not."""
    run, drift = case.run, case.run.attention_drift
    if not _changes_over_depth(run) or case.is_answered(Topic.INSIDE):
        return None
    if drift is None:
        return Finding(answer=Answer.CANNOT_TELL, statement=_NOT_RECORDED)
    return Finding(
        answer=_ANSWERS[drift.answer],
        statement=drift_words(drift, run.noun),
        estimate=drift.shift.value if drift.shift else None,
        interval=drift.shift.interval if drift.shift else None,
    )


@question("Does the hidden state keep its size?", Topic.INSIDE)
def state_keeps_size(case: Case) -> Finding | None:
    """Return how much the state grows if it is neither stable nor grows much."""
    run, growth = case.run, case.run.hidden.growth
    if not _changes_over_depth(run) or growth is None:
        return None
    by_depth = per_depth(growth, run.depths)
    if not STABLE_BELOW.value <= by_depth <= GROWS_ABOVE.value:
        return None
    return Finding(
        statement=f"the hidden state grows to {times(growth)} by depth {run.depths} "
        f"({times(by_depth)} per depth)",
        estimate=by_depth,
        interval=_per_depth(run.hidden.growth_interval, run.depths),
    )


@question("Does acceptance within a request go with the drafter's inside?", Topic.INSIDE)
def goes_with_inside(case: Case) -> Finding | None:
    """Return the measures for which there is an answer."""
    words = clauses(case.run.within_request) if _changes_over_depth(case.run) else []
    return Finding(statement="; ".join(words)) if words else None


def _changes_over_depth(run: RunSummary) -> bool:
    """Whether anything can change over depth, and matters: not in a chain of one token, nor in a
    dead drafter."""
    return run.depths > 1 and run.acceptance.marginal[0] >= NOTHING_BELOW.value
