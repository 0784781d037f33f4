"""Pictures of a run's differences from the first, each figure with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from driftscope.analysis.advice import Advice, same_models
from driftscope.analysis.circumstances import Group
from driftscope.analysis.closeup import ACCEPTED, AT, REJECTED, TPOT, TTFT, Distribution
from driftscope.analysis.compare import LENGTH, MARGINAL, Comparison
from driftscope.analysis.figures.results import Segment
from driftscope.analysis.number_words import number, percent
from driftscope.analysis.statistics.intervals import Interval, quantile_interval
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.analysis.time_per_token import Estimate
from driftscope.metrics import fallback, latency
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope.metrics.definition import Definition
from driftscope.metrics.latency import PREDICTED_TPOT
from driftscope.vocabulary import UndraftedReason
from driftscope_reports.drawing.chart import Axis, Chart, Unit, depths
from driftscope_reports.html.parts.heatmap import Gap, Good, bars, compared, gap
from driftscope_reports.html.parts.run_series import axis_name
from driftscope_reports.html.sections import step_outcomes
from driftscope_reports.html.sections.circumstances import ENOUGH, KINDS, short
from driftscope_reports.html.sections.comparison.quantities import QUANTITIES, Quantity, spread_of
from driftscope_reports.model import Picture

PERCENTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
"""Percentiles of the requests at which durations are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The first run and another; `index` is the position of the other."""

    index: int
    runs: tuple[RunSummary, RunSummary]
    advice: tuple[Advice | None, Advice | None]
    comparison: Comparison | None = None
    """Comparison of the two, as `driftscope compare` makes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """Data of one picture of differences."""

    id: str
    words: str
    how: str
    at: tuple[float | str, ...]
    gaps: tuple[Gap, ...]
    goods: tuple[Good, ...]
    x_title: str
    unit: Unit
    what: tuple[Definition, ...]
    both: str
    axis: Axis = Axis.CATEGORY
    where: str = "({})"
    """Format of a place in the title."""
    names: tuple[str, ...] = ()
    """Full names of the places, if `at` has them abbreviated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Quantities that differ between two runs, and those that do not."""

    pictures: tuple[Picture, ...]
    """One picture of each quantity with a clear difference somewhere."""
    alike: tuple[str, ...]
    """Names of the quantities without a clear difference anywhere."""


def differences(pair: Pair, *, all_of: bool) -> Differences:
    """Return the differences in everything that both runs have and that has an interval. Without
    `all_of`, only figures that can be better or worse are drawn."""
    a, b = pair.runs
    shown = [each for each in QUANTITIES if all_of or each.good is not Good.NEITHER]
    drawn = [_by_depth(pair, each) for each in shown]
    drawn += [_durations(a, b, TPOT, latency.TPOT), _durations(a, b, TTFT, latency.TTFT)]
    drawn += [_by_k(pair), _fallback(a, b), _by_label(pair)]
    drawn += [_by_circumstance(a, b, field, words, x) for field, words, x, _ in KINDS]
    made = [(each, p) for each in drawn if each and (p := _picture(pair, each))]
    return Differences(
        pictures=tuple(picture for each, picture in made if _apart(each)),
        alike=tuple(each.words for each, _ in made if not _apart(each)),
    )


def _picture(pair: Pair, drawn: _Drawn) -> Picture | None:
    series = bars(drawn.at, drawn.gaps, drawn.goods)
    if not series:
        return None
    a, b = pair.runs
    return Picture(
        id=f"compare-{drawn.id}-{pair.index}",
        title=f"{drawn.words}: {_seen(drawn, b.label)}",
        how=f"{drawn.how} {b.label} minus {a.label}, with the 95% interval. An interval that "
        "contains 0 shows no clear difference.",
        chart=Chart(
            series=series,
            x_title=drawn.x_title,
            y_title=_TITLES[drawn.unit],
            axis=drawn.axis,
            unit=drawn.unit,
            level=0.0,
            from_zero=False,
            named=True,
        ),
        definitions=drawn.what,
        both=drawn.both,
    )


_TITLES = {
    Unit.SHARE: "difference in points",
    Unit.MS: "difference in ms",
    Unit.NUMBER: "difference",
}


def _apart(drawn: _Drawn) -> list[tuple[float | str, float]]:
    """Return the places whose interval excludes 0, with their differences."""
    return [
        (at, each.value)
        for at, each in zip(drawn.names or drawn.at, drawn.gaps, strict=True)
        if each.value is not None and each.interval and each.interval.excludes_zero()
    ]


def _seen(drawn: _Drawn, other: str) -> str:
    """Return the deepest depth, or else the place with the largest difference, among those whose
    interval excludes 0."""
    apart = _apart(drawn)
    if not apart:
        return "no clear difference anywhere"
    at, value = apart[-1] if drawn.axis is Axis.DEPTH else max(apart, key=lambda p: abs(p[1]))
    more = "more" if value > 0 else "less"
    return f"{_amount(abs(value), drawn.unit)} {more} in {other} {drawn.where.format(at)}"


def _amount(value: float, unit: Unit) -> str:
    if unit is Unit.SHARE:
        return percent(value).replace("%", " points")
    return f"{number(value)} ms" if unit is Unit.MS else number(value)


def _by_depth(pair: Pair, quantity: Quantity) -> _Drawn | None:
    a, b = pair.runs
    mine, theirs = quantity.of(a), quantity.of(b)
    if mine is None or theirs is None:
        return None
    spreads = spread_of(a, quantity.spread), spread_of(b, quantity.spread)
    apart = [gap(*row) for row in zip(mine, spreads[0], theirs, spreads[1], strict=False)]
    tested = pair.comparison if quantity.spread == "marginal" else None
    gaps = tuple(
        compared(tested, MARGINAL, depth) or alone for depth, alone in enumerate(apart, start=1)
    )
    return _Drawn(
        id=quantity.id,
        words=quantity.words,
        how="At each depth:",
        at=depths(gaps),
        gaps=gaps,
        goods=(quantity.good,) * len(gaps),
        x_title=axis_name([a, b]),
        unit=quantity.unit,
        what=(quantity.what,),
        both=quantity.both,
        axis=Axis.DEPTH,
        where=f"at {axis_name([a, b])} {{}}",
    )


def _durations(a: RunSummary, b: RunSummary, name: str, what: Definition) -> _Drawn | None:
    mine, theirs = (run.closeup.durations.get(name) if run.closeup else None for run in (a, b))
    if mine is None or theirs is None:
        return None
    gaps = tuple(gap(*_quantile(mine, at), *_quantile(theirs, at)) for at in PERCENTILES)
    return _Drawn(
        id=name.removesuffix("_s"),
        words=what.title,
        how="At each percentile of the requests, fastest first:",
        at=tuple(f"p{100 * at:.0f}" for at in PERCENTILES),
        gaps=gaps,
        goods=(Good.LESS,) * len(gaps),
        x_title="percentile of the requests",
        unit=Unit.MS,
        what=(what,),
        both=f"speed-{name.removesuffix('_s')}",
        where="at {}",
    )


def _quantile(distribution: Distribution, share: float) -> tuple[float, Interval | None]:
    """Return the quantile and its interval in milliseconds; `share` is one of those kept."""
    value = distribution.quantiles_s[round(share * (len(AT) - 1))]
    spread = quantile_interval(share, distribution.count, AT, distribution.quantiles_s)
    return 1000 * value, _thousandfold(spread)


def _value_and_interval(time: Estimate) -> tuple[float | None, Interval | None]:
    """Return the estimate in milliseconds; (None, ...) if the steps leave it open."""
    return 1000 * time.value if time.interval else None, _thousandfold(time.interval)


def _thousandfold(spread: Interval | None) -> Interval | None:
    return spread and Interval.of(1000 * spread.low, 1000 * spread.high)


def _by_k(pair: Pair) -> _Drawn | None:
    """Return the differences of predicted speed by K. Runs of the same models share one cost model,
    so that the difference of their predictions has no interval: None."""
    mine, theirs = pair.advice
    if mine is None or theirs is None or same_models(*pair.runs):
        return None
    rows = list(zip(mine.overall.tpot_s, theirs.overall.tpot_s, strict=False))
    gaps = tuple(gap(*_value_and_interval(x), *_value_and_interval(y)) for x, y in rows)
    return _Drawn(
        id="by-k",
        words="Predicted time per token",
        how="For each K, the number of draft tokens:",
        at=tuple(f"{k}" for k in range(len(rows))),
        gaps=gaps,
        goods=(Good.LESS,) * len(rows),
        x_title="K",
        unit=Unit.MS,
        what=(PREDICTED_TPOT,),
        both="speed-by-k",
        where="at K = {}",
    )


def _fallback(a: RunSummary, b: RunSummary) -> _Drawn:
    names = step_outcomes.outcomes_of([a, b])
    gaps = tuple(
        gap(*step_outcomes.share(a, name), *step_outcomes.share(b, name)) for name in names
    )
    return _Drawn(
        id="fallback",
        words="Outcomes of the decode steps",
        how="As a share of all decode steps of a run:",
        at=tuple(step_outcomes.short_label(name) for name in names),
        gaps=gaps,
        goods=tuple(_wanted(name) for name in names),
        x_title="decode steps",
        unit=Unit.SHARE,
        what=(fallback.REJECTED, fallback.UNDRAFTED),
        both="fallback-shares",
        names=tuple(
            step_outcomes.label(name).removesuffix(step_outcomes.ON_PURPOSE) for name in names
        ),
    )


def _wanted(name: str) -> Good:
    if name == ACCEPTED:
        return Good.MORE
    deliberate = name != REJECTED and name in UndraftedReason.DELIBERATE
    return Good.NEITHER if deliberate else Good.LESS


def _by_label(pair: Pair) -> _Drawn | None:
    """Return the differences by label, or by whatever else splits the runs, that both runs have."""
    a, b = pair.runs
    mine = {segment.label: segment for segment in a.segments}
    both = [(mine[s.label], s) for s in b.segments if s.label in mine]
    if len(both) < 2:
        return None
    cut = both[0][1].by
    tested = pair.comparison if cut == "label" else None
    gaps = tuple(
        compared(tested, LENGTH, segment=y.label) or gap(*_length(x), *_length(y)) for x, y in both
    )
    return _lengths(
        f"Tokens per round by {cut}",
        "labels",
        tuple(y.label for _, y in both),
        gaps,
        "workload label" if cut == "label" else cut,
        "where-mean-length",
    )


def _by_circumstance(
    a: RunSummary, b: RunSummary, field: str, words: str, x_title: str
) -> _Drawn | None:
    """Return the differences of groups with enough requests in both runs."""
    mine: dict[str, Group] = {g.name: g for g in getattr(a.groups, field) if g.requests >= ENOUGH}
    theirs: Sequence[Group] = getattr(b.groups, field)
    both = [(mine[g.name], g) for g in theirs if g.requests >= ENOUGH and g.name in mine]
    if len(both) < 2:
        return None
    gaps = tuple(gap(*_length(x), *_length(y)) for x, y in both)
    drawn = _lengths(
        f"Tokens per round by {words.lower()}",
        field,
        tuple(short(y.name) for _, y in both),
        gaps,
        x_title,
        f"where-{field}",
    )
    return replace(drawn, names=tuple(y.name for _, y in both))


def _lengths(
    words: str, name: str, at: tuple[str, ...], gaps: tuple[Gap, ...], x_title: str, both: str
) -> _Drawn:
    return _Drawn(
        id=name,
        words=words,
        how="Each group that both runs have:",
        at=at,
        gaps=gaps,
        goods=(Good.MORE,) * len(gaps),
        x_title=x_title,
        unit=Unit.NUMBER,
        what=(MEAN_LENGTH,),
        both=both,
    )


def _length(of: Segment | Group) -> tuple[float | None, Interval | None]:
    return of.mean_length, of.mean_length_interval
