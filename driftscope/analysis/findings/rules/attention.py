"""Rules about the drafter's attention as depth grows, compared with the no-drift expectation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from driftscope.analysis.findings.catalogue_entry import Entry, Need, Threshold
from driftscope.analysis.findings.finding import Finding, Severity, Trust
from driftscope.analysis.findings.finding_confidence import ends, judged
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.number_words import count, listed, percent
from driftscope.analysis.summary.run_summary import RunSummary

MOVES_ABOVE = 0.10
"""Excess of the chain's own share at depth K over the no-drift expectation. Orientation from the
paper's figures (arXiv 2605.09992): attention on recent tokens rose by 0.17 to depth 8 in the
drifting drafter and by 0.03 in the other; 0.10 lies half-way."""
SINK_FLOOR = 0.05
"""Sink mass at depth 1: half of the weakest sink (0.11) that the paper reports for a model that has
one."""
SINK_TIMES_EVEN = 3.0
"""Ratio of a sink's mass to what even attention over the visible slots would give its slots.
Without this bound any first token of a short context would be a sink."""
SINK_LOST_BELOW = 0.5
"""Share of its expected mass that the sink keeps at depth K. The paper's drifting drafter kept 0.17
of its depth-1 mass, the healthy one 0.91; the middle is 0.54."""


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


def excess_self(run: RunSummary) -> float | None:
    """Return the chain's own share at depth K minus the no-drift expectation; both are 0 at depth
    1. None if they are unknown."""
    own, expected = run.attention.self_mass, run.attention.no_drift_self_mass
    return None if own is None or expected is None else own[-1] - expected[-1]


def attention_moves_to_chain(case: Case) -> Finding | None:
    """Find that the chain's own tokens get more attention than their number of slots explains."""
    run, spread = case.run, case.run.groups.self_last_interval
    excess = excess_self(run)
    if excess is None or not excess > MOVES_ABOVE:
        return None
    own, expected = run.attention.self_mass, run.attention.no_drift_self_mass
    assert own is not None and expected is not None  # noqa: S101  as excess_self has it
    trust, because = judged(run.requests, spread, above=expected[-1] + MOVES_ABOVE)
    return Finding(
        id="attention_moves_to_chain",
        # The rule judges a level at depth K, not a change: a drafter that prefers recent tokens at
        # every depth meets it too, the shipped EAGLE-3.1 (excess 0.40) more than EAGLE-3 (0.38).
        severity=Severity.INFO,
        runs=(run.label,),
        title="Attention moves to the chain's own tokens",
        statement=f"the chain's own tokens take {percent(own[-1])} of the attention at depth "
        f"{run.depths}, from {percent(own[1])} at depth 2 and none at depth 1; without drift the "
        f"{count(run.depths - 1, 'slot')} that they add would get {percent(expected[-1])}",
        evidence={
            "self_mass_last": own[-1],
            **ends("self_mass_last", spread),
            "self_mass_depth_2": own[1],
            "no_drift_last": expected[-1],
            "excess": excess,
            "threshold": MOVES_ABOVE,
        },
        confidence=trust,
        because=because,
        advice="The drafter leans on its own guesses more with every depth. That is a change to "
        "watch, not harm by itself: a drafter that likes recent tokens shows it too and may be "
        "healthy. Read it together with the hidden state and the acceptance by depth.",
    )


def no_sink(case: Case) -> Finding | None:
    """Find that there is no sink, so that statements about the sink do not apply."""
    run = case.run
    if has_sink(run) is not False:
        return None
    if run.manifest.sinkless:
        return _none_found(run)
    sink, even = run.attention.sink_mass, run.attention.even_sink_mass
    assert sink is not None and even is not None  # noqa: S101  has_sink is False then
    slots = run.manifest.sink_slots
    return Finding(
        id="no_sink",
        severity=Severity.INFO,
        runs=(run.label,),
        title=_NO_SINK,
        statement=f"{_named(slots)} {percent(sink[0])} of the attention at depth 1; even attention "
        f"would give {percent(even)}, and a sink holds at least {SINK_TIMES_EVEN:.0f} times that "
        f"and {percent(SINK_FLOOR)}",
        evidence={
            "sink_mass_first": sink[0],
            "even_share": even,
            "sink_tokens": len(slots),
            "floor": SINK_FLOOR,
            "times_even": SINK_TIMES_EVEN,
        },
        confidence=Trust.MEDIUM,
        because="a sink further in than the sink set would not be seen",
        advice="Nothing to do. If you know that this target parks attention further in, set "
        "DRIFTSCOPE_SINK_TOKENS so that those slots count, and record again.",
    )


def _none_found(run: RunSummary) -> Finding:
    """Return the finding for a probe that looked for a sink set and found none; the evidence is
    among the run's notes."""
    return Finding(
        id="no_sink",
        severity=Severity.INFO,
        runs=(run.label,),
        title=_NO_SINK,
        confidence=Trust.HIGH,
        because="the probe looked at the attention on each early slot",
        statement=run.manifest.notes[-1] if run.manifest.notes else "no sink found",
        evidence={"sink_tokens": 0},
        advice="Nothing to do. The slots that a sink would have taken count as prompt. If you know "
        "that this target parks attention further in, set DRIFTSCOPE_SINK_TOKENS to those slots, "
        "and record again.",
    )


_NO_SINK = "This target has no attention sink, so sink loss does not apply"


def sink_lost(case: Case) -> Finding | None:
    """Find that the sink's share falls over depth by more than the growing chain explains."""
    run, spread = case.run, case.run.groups.sink_last_interval
    sink, kept = run.attention.sink_mass, run.attention.no_drift_kept
    if not has_sink(run) or sink is None or kept is None:
        return None
    expected = sink[0] * kept[-1]
    retention = sink[-1] / expected
    if not retention < SINK_LOST_BELOW:
        return None
    trust, because = judged(run.requests, spread, below=SINK_LOST_BELOW * expected)
    return Finding(
        id="sink_lost",
        severity=Severity.HIGH,
        runs=(run.label,),
        title="The attention sink is lost over depth",
        statement=f"the sink holds {percent(sink[0])} of the attention at depth 1 and "
        f"{percent(sink[-1])} at depth {run.depths}; without drift it would keep "
        f"{percent(expected)}",
        evidence={
            "sink_mass_first": sink[0],
            "sink_mass_last": sink[-1],
            **ends("sink_mass_last", spread),
            "no_drift_last": expected,
            "retention": retention,
            "threshold": SINK_LOST_BELOW,
        },
        confidence=trust,
        because=because,
        advice="This is attention drift as the paper describes it. Use a drafter with "
        "norm_output and fc_norm (EAGLE-3.1), and check that the chat template still begins "
        "with the token that the drafter was trained with (often BOS): --chat-template sets it. If "
        "the drafter has a sliding window, check that the engine keeps the sink's slots in it.",
    )


def _named(slots: Sequence[int]) -> str:
    if tuple(slots) != tuple(range(len(slots))):
        return f"the sink set (slots {listed([str(slot) for slot in slots])}) holds"
    return "the first slot holds" if len(slots) == 1 else f"the first {len(slots)} slots hold"


_SINK = Need[Case](
    words="attention masses with a sink set in the drafter's sight",
    met=lambda case: has_sink(case.run) is not None,
)
_SOURCE = "half of the weakest sink of a model that has one in arXiv 2605.09992"

ENTRIES = (
    Entry(
        id="attention_moves_to_chain",
        title="Attention moves to the chain's own tokens",
        meaning="Attention drift: with depth the drafter looks at its own guesses more than the "
        "slots that they add account for.",
        thresholds=(
            Threshold(
                name="MOVES_ABOVE",
                value=MOVES_ABOVE,
                means="mass on the chain at depth K beyond the no-drift expectation",
                source="half-way between 0.17 (drifting) and 0.03 in arXiv 2605.09992",
            ),
        ),
        need=Need[Case](
            words="attention masses, at two depths or more",
            met=lambda case: case.run.depths > 1 and excess_self(case.run) is not None,
        ),
        rule=attention_moves_to_chain,
    ),
    Entry(
        id="sink_lost",
        title="The attention sink is lost over depth",
        meaning="The slots on which the target parks its attention keep less of it with depth than "
        "the growing chain accounts for: a template without BOS, a window, or drift.",
        thresholds=(
            Threshold(
                name="SINK_LOST_BELOW",
                value=SINK_LOST_BELOW,
                means="sink mass at depth K over the no-drift expectation",
                source="middle of 0.17 (drifting) and 0.91 (healthy) in arXiv 2605.09992",
            ),
            Threshold(
                name="SINK_FLOOR",
                value=SINK_FLOOR,
                means="mass at depth 1 from which there is a sink to lose",
                source=_SOURCE,
            ),
        ),
        need=_SINK,
        rule=sink_lost,
    ),
    Entry(
        id="no_sink",
        title=_NO_SINK,
        meaning="The sink set holds no more attention at depth 1 than its slots would anyway.",
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
                source="driftscope: a short context makes a sink of any first token",
            ),
        ),
        need=_SINK,
        rule=no_sink,
    ),
)
