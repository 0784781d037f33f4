"""Quantities by depth in which runs are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics import acceptance, attention, confidence, hidden
from driftscope.metrics.definition import Definition
from driftscope_reports.drawing.chart import Unit
from driftscope_reports.html.parts.heatmap import Good


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One figure by depth."""

    id: str
    words: str
    of: Callable[[RunSummary], Sequence[float | None] | None]
    spread: str
    """Key of `RunSummary.spread`."""
    good: Good
    unit: Unit
    what: Definition
    both: str
    """Id of the picture that overlays the runs."""


def spread_of(run: RunSummary, name: str) -> Sequence[Interval | None]:
    """Return the intervals by depth of the quantity with this name; () without any."""
    if name == "marginal":
        return run.acceptance.marginal_interval or ()
    return run.spread.get(name, ())


def _grown(run: RunSummary) -> tuple[float, ...] | None:
    fed = run.hidden.fed_rms
    return tuple(value / fed[0] for value in fed) if fed and fed[0] else None


def _died(run: RunSummary) -> tuple[float, ...]:
    return tuple(n / run.rounds for n in run.acceptance.histogram[: run.k])


QUANTITIES = (
    Quantity(
        id="acceptance",
        words="Acceptance",
        of=lambda r: r.acceptance.marginal,
        spread="marginal",
        good=Good.MORE,
        unit=Unit.SHARE,
        what=acceptance.MARGINAL,
        both="acceptance-marginal",
    ),
    Quantity(
        id="conditional",
        words="Acceptance given the previous depth",
        of=lambda r: r.acceptance.conditional,
        spread="conditional",
        good=Good.MORE,
        unit=Unit.SHARE,
        what=acceptance.CONDITIONAL,
        both="acceptance-conditional",
    ),
    Quantity(
        id="deaths",
        words="Chains that die",
        of=_died,
        spread="died",
        good=Good.NEITHER,
        unit=Unit.SHARE,
        what=acceptance.MARGINAL,
        both="effect-deaths",
    ),
    Quantity(
        id="growth",
        words="Growth of the state fed forward",
        of=_grown,
        spread="growth",
        good=Good.LESS,
        unit=Unit.NUMBER,
        what=hidden.GROWTH,
        both="hidden-fed",
    ),
    Quantity(
        id="self",
        words="Attention on the chain",
        of=lambda r: r.attention.self_mass,
        spread="self_mass",
        good=Good.LESS,
        unit=Unit.SHARE,
        what=attention.SELF,
        both="masses-self",
    ),
    Quantity(
        id="sink",
        words="Attention on the sink",
        of=lambda r: r.attention.sink_mass,
        spread="sink_mass",
        good=Good.MORE,
        unit=Unit.SHARE,
        what=attention.SINK,
        both="masses-sink",
    ),
    Quantity(
        id="prompt",
        words="Attention on the prompt",
        of=lambda r: r.attention.prompt_mass,
        spread="prompt_mass",
        good=Good.NEITHER,
        unit=Unit.SHARE,
        what=attention.PROMPT,
        both="masses-prompt",
    ),
    Quantity(
        id="generated",
        words="Attention on verified output",
        of=lambda r: r.attention.generated_mass,
        spread="generated_mass",
        good=Good.NEITHER,
        unit=Unit.SHARE,
        what=attention.GENERATED,
        both="masses-generated",
    ),
    Quantity(
        id="null",
        words="Attention on nothing",
        of=lambda r: r.attention.null_mass,
        spread="null_mass",
        good=Good.NEITHER,
        unit=Unit.SHARE,
        what=attention.NULL,
        both="masses-null",
    ),
    Quantity(
        id="in",
        words="State fed in",
        of=lambda r: r.hidden.in_rms,
        spread="in_rms",
        good=Good.NEITHER,
        unit=Unit.NUMBER,
        what=hidden.IN_RMS,
        both="hidden-in",
    ),
    Quantity(
        id="prenorm",
        words="State before the final norm",
        of=lambda r: r.hidden.prenorm_rms,
        spread="prenorm_rms",
        good=Good.NEITHER,
        unit=Unit.NUMBER,
        what=hidden.PRENORM_RMS,
        both="hidden-prenorm",
    ),
    Quantity(
        id="postnorm",
        words="State after the final norm",
        of=lambda r: r.hidden.postnorm_rms,
        spread="postnorm_rms",
        good=Good.NEITHER,
        unit=Unit.NUMBER,
        what=hidden.POSTNORM_RMS,
        both="hidden-postnorm",
    ),
    Quantity(
        id="fed",
        words="State fed forward",
        of=lambda r: r.hidden.fed_rms,
        spread="fed_rms",
        good=Good.NEITHER,
        unit=Unit.NUMBER,
        what=hidden.FED_RMS,
        both="hidden-fed",
    ),
    Quantity(
        id="top1",
        words="The drafter's confidence",
        of=lambda r: r.confidence.top1,
        spread="top1",
        good=Good.NEITHER,
        unit=Unit.SHARE,
        what=confidence.TOP1,
        both="confidence-top1",
    ),
    Quantity(
        id="entropy",
        words="Entropy of the drafter's distribution",
        of=lambda r: r.confidence.entropy,
        spread="entropy",
        good=Good.NEITHER,
        unit=Unit.NUMBER,
        what=confidence.ENTROPY,
        both="confidence-entropy",
    ),
)
