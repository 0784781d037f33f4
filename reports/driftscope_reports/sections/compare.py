"""The first run against the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from driftscope.analysis.analyze import Analysis
from driftscope.analysis.interval import Interval
from driftscope.analysis.summary import RunSummary, Segment
from driftscope.analysis.words import milliseconds, number, percent, times
from driftscope.metrics import confidence, hidden
from driftscope.metrics.acceptance import MARGINAL, MEAN_LENGTH
from driftscope.metrics.attention import GENERATED, PROMPT, SELF, SINK
from driftscope.metrics.definition import Definition
from driftscope_reports.byrun import axis_name
from driftscope_reports.chart import Axis, Chart, Series, Unit
from driftscope_reports.markup import Markup, el
from driftscope_reports.section import Picture, Section, Size, sized
from driftscope_reports.sections.differences import (
    BETTER,
    SAME,
    WORSE,
    Gap,
    Good,
    bars,
    gap,
    word,
)
from driftscope_reports.tables import table


def section(analysis: Analysis) -> Section:
    """Differences to the first run, by depth, by label and in one table."""
    if len(analysis.runs) < 2:
        return Section(
            id="compare",
            name="Compare",
            missing="Not applicable: there is one run in this report. Give two, or this report and "
            "another run, to see their differences here.",
        )
    first, *others = analysis.runs
    return Section(
        id="compare",
        name="Compare",
        lead=f"Every picture above holds all runs. Here they are set against {first.label}: what "
        "is worse is red and hatched, what is better blue and plain, what only differs violet and "
        "striped, and what cannot be told apart grey and dotted.",
        pictures=tuple(
            sized(picture, Size.SMALL)
            for i, other in enumerate(others, start=1)
            for picture in _pictures(i, first, other, all_of=len(others) < _MANY)
        ),
        body=_table(first, others),
        affects=("acceptance",),
    )


_MANY = 3
"""Other runs from which not every quantity is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quantity:
    """One figure by depth."""

    id: str
    words: str
    of: Callable[[RunSummary], Sequence[float] | None]
    spread: str
    """Key of `RunSummary.spread`."""
    good: Good
    unit: Unit
    what: Definition


def _grown(run: RunSummary) -> tuple[float, ...] | None:
    fed = run.hidden.fed_rms
    return tuple(value / fed[0] for value in fed) if fed and fed[0] else None


_QUANTITIES = (
    _Quantity(id="acceptance", words="Acceptance", of=lambda r: r.acceptance.marginal,
              spread="marginal", good=Good.MORE, unit=Unit.SHARE, what=MARGINAL),
    _Quantity(id="growth", words="Growth of the state fed forward", of=_grown, spread="growth",
              good=Good.LESS, unit=Unit.NUMBER, what=hidden.GROWTH),
    _Quantity(id="self", words="Attention on the chain", of=lambda r: r.attention.self_mass,
              spread="self_mass", good=Good.LESS, unit=Unit.SHARE, what=SELF),
    _Quantity(id="sink", words="Attention on the sink", of=lambda r: r.attention.sink_mass,
              spread="sink_mass", good=Good.MORE, unit=Unit.SHARE, what=SINK),
    _Quantity(id="prompt", words="Attention on the prompt", of=lambda r: r.attention.prompt_mass,
              spread="prompt_mass", good=Good.NEITHER, unit=Unit.SHARE, what=PROMPT),
    _Quantity(id="generated", words="Attention on verified output",
              of=lambda r: r.attention.generated_mass, spread="generated_mass", good=Good.NEITHER,
              unit=Unit.SHARE, what=GENERATED),
    _Quantity(id="in", words="State fed in", of=lambda r: r.hidden.in_rms, spread="in_rms",
              good=Good.NEITHER, unit=Unit.NUMBER, what=hidden.IN_RMS),
    _Quantity(id="prenorm", words="State before the final norm",
              of=lambda r: r.hidden.prenorm_rms, spread="prenorm_rms", good=Good.NEITHER,
              unit=Unit.NUMBER, what=hidden.PRENORM_RMS),
    _Quantity(id="postnorm", words="State after the final norm",
              of=lambda r: r.hidden.postnorm_rms, spread="postnorm_rms", good=Good.NEITHER,
              unit=Unit.NUMBER, what=hidden.POSTNORM_RMS),
    _Quantity(id="top1", words="The drafter's confidence", of=lambda r: r.confidence.top1,
              spread="top1", good=Good.NEITHER, unit=Unit.SHARE, what=confidence.TOP1),
    _Quantity(id="entropy", words="Entropy of its choice", of=lambda r: r.confidence.entropy,
              spread="entropy", good=Good.NEITHER, unit=Unit.NUMBER, what=confidence.ENTROPY),
)  # fmt: skip


def _pictures(index: int, first: RunSummary, other: RunSummary, *, all_of: bool) -> list[Picture]:
    """With many runs, only of what is better or worse."""
    shown = [each for each in _QUANTITIES if all_of or each.good is not Good.NEITHER]
    drawn = [_by_depth(index, first, other, quantity) for quantity in shown]
    return [p for p in (*drawn, _by_label(index, first, other)) if p]


def _by_depth(
    index: int, first: RunSummary, other: RunSummary, quantity: _Quantity
) -> Picture | None:
    a, b = quantity.of(first), quantity.of(other)
    if a is None or b is None:
        return None
    mine, theirs = _spread(first, quantity.spread), _spread(other, quantity.spread)
    k = min(len(a), len(b), len(mine), len(theirs))
    gaps = [gap(a[d], mine[d], b[d], theirs[d]) for d in range(k)]
    series = bars(range(1, k + 1), gaps, quantity.good)
    if not series:
        return None
    return Picture(
        id=f"compare-{quantity.id}-{index}",
        title=f"{quantity.words}, {_names(first, other)}: "
        f"{_seen(gaps, quantity, axis_name([first, other]))}",
        how=f"How much higher it is in {other.label} than in {first.label}, with the 95% interval. "
        "One that crosses 0 is no clear difference.",
        chart=_chart(series, axis_name([first, other]), quantity.unit),
        definitions=(quantity.what,),
    )


def _chart(series: tuple[Series, ...], x_title: str, unit: Unit, axis: Axis = Axis.DEPTH) -> Chart:
    return Chart(series=series, x_title=x_title, y_title="difference", axis=axis, unit=unit,
                 level=0.0, from_zero=False, named=True)  # fmt: skip


def _spread(run: RunSummary, name: str) -> Sequence[Interval | None]:
    if name == "marginal":
        return run.acceptance.marginal_interval or ()
    return run.spread.get(name, ())


def _names(first: RunSummary, other: RunSummary) -> str:
    return f"{other.label} against {first.label}"


def _seen(gaps: Sequence[Gap], quantity: _Quantity, axis: str) -> str:
    apart = [
        (depth, each.value)
        for depth, each in enumerate(gaps, start=1)
        if each.interval and each.interval.excludes_zero() and each.value is not None
    ]
    if not apart:
        return f"cannot be told apart at any {axis}"
    depth, value = apart[-1]
    say = percent if quantity.unit is Unit.SHARE else number
    amount = say(abs(value)).replace("%", " points")
    return f"{amount} {'more' if value > 0 else 'less'} at {axis} {depth}"


def _by_label(index: int, first: RunSummary, other: RunSummary) -> Picture | None:
    """Acceptance length of the labels, or whatever else runs are cut by, that both have."""
    mine = {segment.label: segment for segment in first.segments}
    both = [(mine[s.label], s) for s in other.segments if s.label in mine]
    if len(both) < 2:
        return None
    gaps = [gap(*_length(a), *_length(b)) for a, b in both]
    series = bars([b.label for _, b in both], gaps, Good.MORE)
    if not series:
        return None
    return Picture(
        id=f"compare-labels-{index}",
        title=f"Tokens per round by label, {_names(first, other)}",
        how=f"How many more tokens a round yields in {other.label}, label by label, with the 95% "
        "interval. Labels that only one run has are left out.",
        chart=_chart(series, "workload label", Unit.NUMBER, Axis.CATEGORY),
        definitions=(MEAN_LENGTH,),
    )


def _length(segment: Segment) -> tuple[float | None, Interval | None]:
    return segment.mean_length, segment.mean_length_interval


_Row = tuple[str, Callable[[RunSummary], float | None], Callable[[float | None], str], Good,
             Callable[[RunSummary], Interval | None]]  # fmt: skip


def _none(_: RunSummary) -> None:
    return None


def _last(name: str) -> Callable[[RunSummary], Interval | None]:
    return lambda run: spread[-1] if (spread := _spread(run, name)) else None


_ROWS: tuple[_Row, ...] = (
    (MEAN_LENGTH.title, lambda r: r.acceptance.mean_length, number, Good.MORE,
     lambda r: r.acceptance.mean_length_interval),
    ("Accepted to the last depth", lambda r: r.acceptance.marginal[-1], percent, Good.MORE,
     _last("marginal")),
    ("Growth of the hidden state", lambda r: r.hidden.growth, times, Good.LESS,
     lambda r: r.hidden.growth_interval),
    ("Attention on the chain, last depth",
     lambda r: r.attention.self_mass[-1] if r.attention.self_mass else None, percent, Good.LESS,
     _last("self_mass")),
    ("Attention on the sink, last depth",
     lambda r: r.attention.sink_mass[-1] if r.attention.sink_mass else None, percent, Good.MORE,
     _last("sink_mass")),
    ("Time per output token", lambda r: r.latency.tpot_s, milliseconds, Good.LESS,
     lambda r: r.latency.tpot_s_interval),
    ("Time to first token", lambda r: r.latency.ttft_s, milliseconds, Good.LESS,
     lambda r: r.latency.ttft_s_interval),
    ("Rejected rounds, of steps", lambda r: r.fallback.rejected_share, percent, Good.LESS, _none),
    ("Undrafted steps, of steps", lambda r: r.fallback.undrafted_share, percent, Good.LESS, _none),
)  # fmt: skip


def _table(first: RunSummary, others: Sequence[RunSummary]) -> Markup:
    rows = []
    for words, of, say, good, spread in _ROWS:
        for other in others:
            a, b = of(first), of(other)
            found = gap(a, spread(first), b, spread(other))
            ends = found.interval
            rows.append([
                words, *([other.label] if len(others) > 1 else []), say(a), say(b),
                "–" if found.value is None else _signed(found.value, say),
                f"{_signed(ends.low, say)} to {_signed(ends.high, say)}" if ends else "–",
                _verdict(ends, good),
            ])  # fmt: skip
    names = ["run", first.label, "this run"] if len(others) > 1 else [first.label, others[0].label]
    head = ["figure", *names, "difference", "95% interval", "so it is"]
    return table(head, rows, words=len(names) - 1, caption=f"Differences to {first.label}")


def _signed(value: float, say: Callable[[float | None], str]) -> str:
    """Differences of shares are points, not percent of anything."""
    return f"{'−' if value < 0 else '+'}{say(abs(value)).replace('%', ' points')}"


def _verdict(found: Interval | None, good: Good) -> Markup | str:
    if found is None:
        return "no interval"
    said = word(found, good)
    tone = {WORSE: "worse", BETTER: "better", SAME: "same"}[said]
    return el("span", said, class_=f"tone-{tone}")
