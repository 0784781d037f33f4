"""Where the drafter's attention goes as depth grows, against the no-drift expectation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from driftscope.analysis.finding import Finding, Severity
from driftscope.analysis.summary import RunSummary
from driftscope.analysis.words import count, listed, percent

MOVES_ABOVE = 0.10
"""Rise of the chain's own share at depth K beyond the no-drift expectation. Orientation from the
paper's figures (arXiv 2605.09992): attention on recent tokens rose by 0.17 to depth 8 in the
drifting drafter and by 0.03 in the other; 0.10 lies half-way."""
SINK_FLOOR = 0.05
"""Half of the weakest sink (0.11) that the paper reports for a model that has one."""
SINK_TIMES_EVEN = 3.0
"""A sink must hold this many times what even attention over the visible slots would give its slots,
or a short context would make one of any first token."""
SINK_LOST_BELOW = 0.5
"""Share of its expected mass that the sink keeps at depth K. The paper's drifting drafter kept 0.17
of its depth-1 mass, the healthy one 0.91; their middle is 0.54."""


def has_sink(run: RunSummary) -> bool | None:
    """Whether the sink set holds clearly more attention at depth 1 than even attention would give.

    None where the mass was not recorded or does not apply (the sink lies outside the drafter's
    attention window). The rule: at least SINK_FLOOR and SINK_TIMES_EVEN times
    the even share. Where the probe looked for a sink and found none, there is none.
    """
    if run.manifest.sinkless and run.attention.self_mass is not None:
        return False
    sink, even = run.attention.sink_mass, run.attention.even_sink_mass
    if sink is None or even is None or not math.isfinite(sink[0]):
        return None
    return bool(sink[0] >= SINK_FLOOR and sink[0] >= SINK_TIMES_EVEN * even)


def excess_self(run: RunSummary) -> float | None:
    """Chain's own share at depth K beyond the no-drift expectation; both start from 0 at depth
    1."""
    own, expected = run.attention.self_mass, run.attention.no_drift_self_mass
    return None if own is None or expected is None else own[-1] - expected[-1]


def attention_moves_to_chain(run: RunSummary) -> Finding | None:
    """The chain's own tokens get more than the slots they add account for."""
    excess = excess_self(run)
    if excess is None or not excess > MOVES_ABOVE:
        return None
    own, expected = run.attention.self_mass, run.attention.no_drift_self_mass
    assert own is not None and expected is not None
    return Finding(
        id="attention_moves_to_chain",
        severity=Severity.MEDIUM,
        runs=(run.label,),
        title="Attention moves to the chain's own tokens",
        statement=f"the chain's own tokens take {percent(own[-1])} of the attention at depth "
        f"{run.k}, from {percent(own[1])} at depth 2 and none at depth 1; without drift the "
        f"{count(run.k - 1, 'slot')} that they add would get {percent(expected[-1])}",
        evidence={
            "self_mass_last": own[-1],
            "self_mass_depth_2": own[1],
            "no_drift_last": expected[-1],
            "excess": excess,
            "threshold": MOVES_ABOVE,
        },
        advice="The drafter leans on its own guesses more with every depth. That is a change to "
        "watch, not harm by itself: a drafter that likes recent tokens shows it too and may be "
        "healthy. Read it together with the hidden state and the acceptance by depth.",
    )


def no_sink(run: RunSummary) -> Finding | None:
    """Statements about the sink do not apply."""
    if has_sink(run) is not False:
        return None
    if run.manifest.sinkless:
        return _none_found(run)
    sink, even = run.attention.sink_mass, run.attention.even_sink_mass
    assert sink is not None and even is not None
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
        advice="Nothing to do. If you know that this target parks attention further in, set "
        "DRIFTSCOPE_SINK_TOKENS so that those slots count, and record again.",
    )


def _none_found(run: RunSummary) -> Finding:
    """The probe looked for a sink set; the evidence is among the run's notes."""
    return Finding(
        id="no_sink",
        severity=Severity.INFO,
        runs=(run.label,),
        title=_NO_SINK,
        statement=run.manifest.notes[-1] if run.manifest.notes else "no sink found",
        evidence={"sink_tokens": 0},
        advice="Nothing to do. The slots that a sink would have taken count as prompt. If you know "
        "that this target parks attention further in, set DRIFTSCOPE_SINK_TOKENS to those slots, "
        "and record again.",
    )


_NO_SINK = "This target has no attention sink, so sink loss does not apply"


def sink_lost(run: RunSummary) -> Finding | None:
    """The sink's share falls over depth by more than the growing chain accounts for."""
    sink, kept = run.attention.sink_mass, run.attention.no_drift_kept
    if not has_sink(run) or sink is None or kept is None:
        return None
    expected = sink[0] * kept[-1]
    retention = sink[-1] / expected
    if not retention < SINK_LOST_BELOW:
        return None
    return Finding(
        id="sink_lost",
        severity=Severity.HIGH,
        runs=(run.label,),
        title="The attention sink is lost over depth",
        statement=f"the sink holds {percent(sink[0])} of the attention at depth 1 and "
        f"{percent(sink[-1])} at depth {run.k}; without drift it would keep {percent(expected)}",
        evidence={
            "sink_mass_first": sink[0],
            "sink_mass_last": sink[-1],
            "no_drift_last": expected,
            "retention": retention,
            "threshold": SINK_LOST_BELOW,
        },
        advice="This is attention drift as the paper describes it. Use a drafter with "
        "norm_output and fc_norm (EAGLE-3.1), and check that the chat template still begins "
        "with the token that the drafter was trained with (often BOS).",
    )


def _named(slots: Sequence[int]) -> str:
    if tuple(slots) != tuple(range(len(slots))):
        return f"the sink set (slots {listed([str(slot) for slot in slots])}) holds"
    return "the first slot holds" if len(slots) == 1 else f"the first {len(slots)} slots hold"
