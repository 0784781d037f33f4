"""Section that compares the first run with the others: a table, and pictures of differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from markupsafe import Markup

from driftscope.analysis.advice import Advice, same_models
from driftscope.analysis.circumstances import Group
from driftscope.analysis.closeup import ACCEPTED, AT, TPOT, TTFT, Distribution
from driftscope.analysis.compare import LENGTH, MARGINAL, WHOLE, Comparison, mix_words
from driftscope.analysis.number_words import listed, milliseconds, number, percent, times
from driftscope.analysis.statistics.intervals import Interval, difference, quantile_interval
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.analysis.time_per_token import Estimate
from driftscope.findings.case import Case, comparison_of
from driftscope.metrics import acceptance, fallback, hidden, latency
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope.metrics.definition import Definition
from driftscope.metrics.latency import PREDICTED_TPOT
from driftscope.pipeline import Analysis
from driftscope_reports.charts import Axis, Unit, bars, depths, figure, scaled
from driftscope_reports.model import Picture, Section, axis_name, table
from driftscope_reports.page import part
from driftscope_reports.sections_speed import (
    ON_PURPOSE,
    deliberate,
    outcome_share,
    outcome_words,
    outcomes_of,
    short_outcome,
)
from driftscope_reports.sections_where import (
    ENOUGH,
    SEGMENTS,
    Circumstance,
    circumstances,
    groups_of,
    short,
)

PERCENTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
"""Percentiles of the requests at which durations are compared."""
WORSE, BETTER, SAME, APART = "▼ worse", "▲ better", "= no clear difference", "≠ differs"
_LOOKS = {
    WORSE: ("high", "/"),
    BETTER: ("good", ""),
    APART: ("apart", "-"),
    SAME: ("same", "."),
}
"""Colour and pattern, so that differences are never shown by colour alone."""


class Good(IntEnum):
    """Direction that is better."""

    MORE = 1
    LESS = -1
    NEITHER = 0


class Gap(NamedTuple):
    """A difference with its 95% interval; None where a run lacks one."""

    value: float | None
    interval: Interval | None


_Value = tuple[float | None, Interval | None]
"""A figure of one run with its 95% interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The first run and another; `index` is the position of the other."""

    index: int
    runs: tuple[RunSummary, RunSummary]
    advice: tuple[Advice | None, Advice | None]
    comparison: Comparison | None = None
    """Comparison of the two, as `driftscope compare` makes it."""


def compare(analysis: Analysis) -> Section:
    """Return one table of differences from the first run, then pictures of them."""
    if len(analysis.runs) < 2:
        return Section(
            id="compare",
            name="Compare",
            missing="Not applicable: this report has one run. Analyse two runs, or this report and "
            "another run, to see their differences here.",
        )
    first, *others = analysis.runs
    cases = {case.run.label: case for case in analysis.cases}
    pairs = [
        Pair(
            index=i,
            runs=(first, other),
            advice=(_advice(cases.get(first.label)), _advice(cases.get(other.label))),
            comparison=_comparison(first, other, cases.get(other.label)),
        )
        for i, other in enumerate(others, start=1)
    ]
    made = [_differences(pair) for pair in pairs]
    counts = [
        f"{len(pictures)} of {len(pictures) + len(alike)} quantities of {pair.runs[1].label}"
        for pair, (pictures, alike) in zip(pairs, made, strict=True)
    ]
    return Section(
        id="compare",
        name="Compare",
        conclusion=f"{listed(counts)} differ clearly from those of {first.label}.",
        lead=f"Everything is compared with {first.label}. Only what can be better or worse is "
        "drawn; the other sections overlay the runs.",
        pictures=[picture for pictures, _ in made for picture in pictures],
        above=[_table(pairs)],
        below=[
            *(_at_mix(pair.runs[1], c) for pair in pairs if (c := pair.comparison) and c.mix),
            *(_alike(p, alike) for p, (_, alike) in zip(pairs, made, strict=True) if alike),
        ],
    )


def _advice(case: Case | None) -> Advice | None:
    return None if case is None else case.advice


def _comparison(first: RunSummary, other: RunSummary, case: Case | None) -> Comparison | None:
    """Return the comparison of the first run with another one; findings may use a baseline
    instead."""
    reference = None if case is None else case.reference
    if case is not None and reference is not None and reference.label == first.label:
        return case.comparison
    return comparison_of(first, other)


def _alike(pair: Pair, alike: Sequence[str]) -> Markup:
    names = listed([f"{name[:1].lower()}{name[1:]}" for name in alike])
    words = f"{pair.runs[1].label} shows no clear difference in {names}."
    return part("paragraph", words, "missing")


def _at_mix(other: RunSummary, comparison: Comparison) -> Markup:
    """Return which differences are taken at one mix of labels, and at which."""
    words = f"{other.label}: {mix_words(comparison)} Each run's own figures are as served."
    return part("paragraph", words)


# ---- one difference


def gap(a: float | None, a_spread: Interval | None, b: float | None, b_spread: Any) -> Gap:
    """Return b - a, for independent runs."""
    if a is None or b is None:
        return Gap(None, None)
    if a_spread is None or b_spread is None:
        return Gap(b - a, None)
    return Gap(b - a, difference(b, b_spread, a, a_spread))


def compared(
    comparison: Comparison | None, metric: str, depth: int | None = None, segment: str = WHOLE
) -> Gap | None:
    """Return the difference of one figure from `driftscope compare`, paired if both runs answered
    the same prompts; None if the runs were not compared in it."""
    differences = comparison.at(metric, segment) if comparison else ()
    mine = [each for each in differences if each.depth == depth]
    return Gap(mine[0].difference, mine[0].interval) if mine else None


def word(interval: Interval, good: Good) -> str:
    """Return the word for a difference with this interval."""
    if not interval.excludes_zero():
        return SAME
    if good is Good.NEITHER:
        return APART
    return BETTER if (interval.low > 0) == (good is Good.MORE) else WORSE


def difference_bars(
    xs: Sequence[float | str], gaps: Sequence[Gap], goods: Sequence[Good]
) -> list[Any]:
    """Return bars of the differences that have an interval, grouped by their word."""
    words = [
        word(each.interval, good) if each.interval else None
        for each, good in zip(gaps, goods, strict=True)
    ]
    return [
        bars(
            outcome,
            xs,
            [each.value if w == outcome else None for each, w in zip(gaps, words, strict=True)],
            colours=colour,
            pattern=pattern,
            intervals=[
                each.interval if w == outcome else None for each, w in zip(gaps, words, strict=True)
            ],
        )
        for outcome, (colour, pattern) in _LOOKS.items()
        if outcome in words
    ]


# ---- the table

_LAST = "Accepted to the last depth"
_Row = tuple[
    str,
    Callable[[RunSummary], float | None],
    Callable[[RunSummary], Interval | None],
    Callable[[float | None], str],
    Good,
]


def spread_of(run: RunSummary, name: str) -> Sequence[Interval | None]:
    """Return the intervals by depth of the quantity with this name; () without any."""
    if name == "marginal":
        return run.acceptance.marginal_interval or ()
    return run.spread.get(name, ())


def _last(name: str) -> Callable[[RunSummary], Interval | None]:
    return lambda run: spread[-1] if (spread := spread_of(run, name)) else None


_ROWS: tuple[_Row, ...] = (
    (
        MEAN_LENGTH.title,
        lambda r: r.acceptance.mean_length,
        lambda r: r.acceptance.mean_length_interval,
        number,
        Good.MORE,
    ),
    (_LAST, lambda r: r.acceptance.marginal[-1], _last("marginal"), percent, Good.MORE),
    (
        "Growth of the hidden state",
        lambda r: r.hidden.growth,
        lambda r: r.hidden.growth_interval,
        times,
        Good.LESS,
    ),
    (
        "Attention on the chain, last depth",
        lambda r: r.attention.self_mass[-1] if r.attention.self_mass else None,
        _last("self_mass"),
        percent,
        Good.NEITHER,
    ),
    (
        "Attention on the sink, last depth",
        lambda r: r.attention.sink_mass[-1] if r.attention.sink_mass else None,
        _last("sink_mass"),
        percent,
        Good.NEITHER,
    ),
    (
        "Time per output token",
        lambda r: r.latency.tpot_s,
        lambda r: r.latency.tpot_s_interval,
        milliseconds,
        Good.LESS,
    ),
    (
        "Time to first token",
        lambda r: r.latency.ttft_s,
        lambda r: r.latency.ttft_s_interval,
        milliseconds,
        Good.LESS,
    ),
    (
        "Rejected rounds, share of steps",
        lambda r: r.fallback.rejected_share,
        lambda r: r.fallback_spread.rejected,
        percent,
        Good.LESS,
    ),
    (
        "Undrafted steps, share of steps",
        lambda r: r.fallback.undrafted_share,
        lambda r: r.fallback_spread.undrafted,
        percent,
        Good.LESS,
    ),
)


def _table(pairs: Sequence[Pair]) -> Markup:
    rows = []
    several = len(pairs) > 1
    for words, of, spread, say, good in _ROWS:
        for pair in pairs:
            first, other = pair.runs
            a, b = of(first), of(other)
            found = _tested(words, pair) or gap(a, spread(first), b, spread(other))
            ends = found.interval
            rows.append(
                [
                    words,
                    *([other.label] if several else []),
                    _verdict(ends, good),
                    say(a),
                    say(b),
                    "–" if found.value is None else _signed(found.value, say),
                    f"{_signed(ends.low, say)} to {_signed(ends.high, say)}" if ends else "–",
                ]
            )
    label = pairs[0].runs[0].label
    names = ["this run" if several else pairs[0].runs[1].label, "difference", "95% interval"]
    head = ["figure", *(["run"] if several else []), "change", label, *names]
    return table(head, rows, words=3 if several else 2, caption=f"Differences to {label}")


def _tested(words: str, pair: Pair) -> Gap | None:
    """Return the difference of a table row that `driftscope compare` tests."""
    a, b = pair.runs
    if words == MEAN_LENGTH.title:
        return compared(pair.comparison, LENGTH)
    same_depth = words == _LAST and len(a.acceptance.marginal) == len(b.acceptance.marginal)
    return compared(pair.comparison, MARGINAL, len(a.acceptance.marginal)) if same_depth else None


def _signed(value: float, say: Callable[[float | None], str]) -> str:
    """Return a signed difference; differences of shares are in points, not in percent."""
    return f"{'−' if value < 0 else '+'}{say(abs(value)).replace('%', ' points')}"


def _verdict(interval: Interval | None, good: Good) -> str:
    if interval is None:
        return "no interval"
    outcome = word(interval, good)
    made: Markup = part("span", outcome, f"tone-{_LOOKS[outcome][0]}")
    return made


# ---- the pictures


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """Data of one picture of differences."""

    id: str
    words: str
    how: str
    at: Sequence[float | str]
    gaps: Sequence[Gap]
    goods: Sequence[Good]
    x_title: str
    unit: Unit
    definitions: tuple[Definition, ...]
    both: str
    axis: Axis = Axis.CATEGORY
    where: str = "({})"
    """Format of a place in the title."""
    names: Sequence[str] = ()
    """Full names of the places, if `at` has them abbreviated."""

    @property
    def apart(self) -> list[tuple[float | str, float]]:
        """Places whose interval excludes 0, with their differences."""
        return [
            (at, each.value)
            for at, each in zip(self.names or self.at, self.gaps, strict=True)
            if each.value is not None and each.interval and each.interval.excludes_zero()
        ]


def _differences(pair: Pair) -> tuple[list[Picture], list[str]]:
    """Return a picture of each quantity that can be better or worse and differs clearly somewhere,
    and the names of those that do not differ."""
    a, b = pair.runs
    drawn = [_by_depth(pair, *quantity) for quantity in _QUANTITIES]
    drawn += [_durations(a, b, TPOT, latency.TPOT), _durations(a, b, TTFT, latency.TTFT)]
    drawn += [_by_k(pair), _fallback(a, b)]
    drawn += [_by_circumstance(pair, circumstance) for circumstance in circumstances(pair.runs)]
    known = [each for each in drawn if each and any(one.interval for one in each.gaps)]
    pictures = [_picture(pair, each) for each in known if each.apart]
    return pictures, [each.words for each in known if not each.apart]


def _picture(pair: Pair, drawn: _Drawn) -> Picture:
    a, b = pair.runs
    return Picture(
        id=f"compare-{drawn.id}-{pair.index}",
        title=f"{drawn.words}: {_largest_words(drawn, b.label)}",
        how=f"{drawn.how} {b.label} minus {a.label}, with the 95% interval. An interval that "
        "contains 0 shows no clear difference.",
        chart=figure(
            difference_bars(drawn.at, drawn.gaps, drawn.goods),
            x_title=drawn.x_title,
            y_title=_TITLES[drawn.unit],
            axis=drawn.axis,
            unit=drawn.unit,
            stacked=True,
            level=0.0,
            from_zero=False,
            named=True,
        ),
        definitions=drawn.definitions,
        both=drawn.both,
    )


_TITLES = {
    Unit.SHARE: "difference in points",
    Unit.MS: "difference in ms",
    Unit.NUMBER: "difference",
}


def _largest_words(drawn: _Drawn, other: str) -> str:
    """Return the deepest depth, or else the place with the largest difference, among those whose
    interval excludes 0."""
    apart = drawn.apart
    at, value = apart[-1] if drawn.axis is Axis.DEPTH else max(apart, key=lambda p: abs(p[1]))
    more = "more" if value > 0 else "less"
    return f"{_amount(abs(value), drawn.unit)} {more} in {other} {drawn.where.format(at)}"


def _amount(value: float, unit: Unit) -> str:
    if unit is Unit.SHARE:
        return percent(value).replace("%", " points")
    return f"{number(value)} ms" if unit is Unit.MS else number(value)


def _grown(run: RunSummary) -> list[float] | None:
    fed = run.hidden.fed_rms
    return [value / fed[0] for value in fed] if fed and fed[0] else None


_Quantity = tuple[
    str,
    str,
    Callable[[RunSummary], Sequence[float | None] | None],
    str,
    Good,
    Unit,
    Definition,
    str,
]


_QUANTITIES: tuple[_Quantity, ...] = (
    (
        "acceptance",
        "Acceptance",
        lambda r: r.acceptance.marginal,
        "marginal",
        Good.MORE,
        Unit.SHARE,
        acceptance.MARGINAL,
        "acceptance-marginal",
    ),
    (
        "conditional",
        "Acceptance given the previous depth",
        lambda r: r.acceptance.conditional,
        "conditional",
        Good.MORE,
        Unit.SHARE,
        acceptance.CONDITIONAL,
        "acceptance-conditional",
    ),
    (
        "growth",
        "Growth of the state fed forward",
        _grown,
        "growth",
        Good.LESS,
        Unit.NUMBER,
        hidden.GROWTH,
        "hidden-fed",
    ),
)
"""Quantities by depth: id, words, values of a run, key of its intervals in `RunSummary.spread`, the
better direction, unit, definition, and id of the picture that overlays the runs."""


def _by_depth(
    pair: Pair,
    name: str,
    words: str,
    of: Callable[[RunSummary], Sequence[float | None] | None],
    spread: str,
    good: Good,
    unit: Unit,
    definition: Definition,
    both: str,
) -> _Drawn | None:
    a, b = pair.runs
    mine, theirs = of(a), of(b)
    if mine is None or theirs is None:
        return None
    spreads = spread_of(a, spread), spread_of(b, spread)
    alone = [gap(*row) for row in zip(mine, spreads[0], theirs, spreads[1], strict=False)]
    tested = pair.comparison if spread == "marginal" else None
    gaps = [compared(tested, MARGINAL, depth) or each for depth, each in enumerate(alone, start=1)]
    return _Drawn(
        id=name,
        words=words,
        how="At each depth:",
        at=depths(gaps),
        gaps=gaps,
        goods=[good] * len(gaps),
        x_title=axis_name([a, b]),
        unit=unit,
        definitions=(definition,),
        both=both,
        axis=Axis.DEPTH,
        where=f"at {axis_name([a, b])} {{}}",
    )


def _durations(a: RunSummary, b: RunSummary, name: str, what: Definition) -> _Drawn | None:
    mine, theirs = (run.closeup.durations.get(name) if run.closeup else None for run in (a, b))
    if mine is None or theirs is None:
        return None
    gaps = [gap(*_quantile(mine, at), *_quantile(theirs, at)) for at in PERCENTILES]
    return _Drawn(
        id=name.removesuffix("_s"),
        words=what.title,
        how="At each percentile of the requests, fastest first:",
        at=[f"p{100 * at:.0f}" for at in PERCENTILES],
        gaps=gaps,
        goods=[Good.LESS] * len(gaps),
        x_title="percentile of the requests",
        unit=Unit.MS,
        definitions=(what,),
        both=f"speed-{name.removesuffix('_s')}",
        where="at {}",
    )


def _quantile(distribution: Distribution, share: float) -> _Value:
    """Return the quantile and its interval in milliseconds; `share` is one of those kept."""
    value = distribution.quantiles_s[round(share * (len(AT) - 1))]
    spread = quantile_interval(share, distribution.count, AT, distribution.quantiles_s)
    return 1000 * value, scaled(spread, 1000)


def _by_k(pair: Pair) -> _Drawn | None:
    """Return the differences of predicted speed by K. Runs of the same models share one cost model,
    so that the difference of their predictions has no interval: None."""
    mine, theirs = pair.advice
    if mine is None or theirs is None or same_models(*pair.runs):
        return None
    rows = list(zip(mine.overall.tpot_s, theirs.overall.tpot_s, strict=False))
    return _Drawn(
        id="by-k",
        words="Predicted time per token",
        how="For each K, the number of draft tokens:",
        at=[f"{k}" for k in range(len(rows))],
        gaps=[gap(*_predicted(x), *_predicted(y)) for x, y in rows],
        goods=[Good.LESS] * len(rows),
        x_title="K",
        unit=Unit.MS,
        definitions=(PREDICTED_TPOT,),
        both="speed-by-k",
        where="at K = {}",
    )


def _predicted(time: Estimate) -> _Value:
    """Return the estimate in milliseconds; (None, None) if the steps leave it open."""
    return 1000 * time.value if time.interval else None, scaled(time.interval, 1000)


def _fallback(a: RunSummary, b: RunSummary) -> _Drawn:
    names = outcomes_of([a, b])
    return _Drawn(
        id="fallback",
        words="Outcomes of the decode steps",
        how="As a share of all decode steps of a run:",
        at=[short_outcome(name) for name in names],
        gaps=[gap(*outcome_share(a, name), *outcome_share(b, name)) for name in names],
        goods=[
            Good.MORE if name == ACCEPTED else Good.NEITHER if deliberate(name) else Good.LESS
            for name in names
        ],
        x_title="decode steps",
        unit=Unit.SHARE,
        definitions=(fallback.REJECTED, fallback.UNDRAFTED),
        both="fallback-shares",
        names=[outcome_words(name).removesuffix(ON_PURPOSE) for name in names],
    )


def _by_circumstance(pair: Pair, circumstance: Circumstance) -> _Drawn | None:
    """Return the differences of groups with enough requests in both runs. Those of labels are
    tested together with everything else."""
    a, b = ([g for g in groups_of(run, circumstance) if g.requests >= ENOUGH] for run in pair.runs)
    mine = {group.name: group for group in a}
    both = [(mine[group.name], group) for group in b if group.name in mine]
    if len(both) < 2:
        return None
    labels = circumstance.field == SEGMENTS
    tested = pair.comparison if labels and pair.runs[0].segments[0].by == "label" else None
    gaps = [
        compared(tested, LENGTH, segment=y.name) or gap(*_length(x), *_length(y)) for x, y in both
    ]
    return _Drawn(
        id=circumstance.field,
        words=f"Tokens per round by {circumstance.words.lower()}",
        how="Each group that both runs have:",
        at=[short(group.name) for _, group in both],
        gaps=gaps,
        goods=[Good.MORE] * len(gaps),
        x_title=circumstance.x_title,
        unit=Unit.NUMBER,
        definitions=(MEAN_LENGTH,),
        both=f"where-{circumstance.field}",
        names=[group.name for _, group in both],
    )


def _length(group: Group) -> _Value:
    return group.mean_length, group.mean_length_interval
