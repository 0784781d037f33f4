"""Section that compares the first run with the others: acceptance by depth, and every figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from markupsafe import Markup

from driftscope.analysis.closeup import AT, TPOT, TTFT
from driftscope.analysis.comparability import Claim
from driftscope.analysis.compare import (
    LENGTH,
    MARGINAL,
    WHOLE,
    Comparison,
    mix_words,
)
from driftscope.analysis.number_words import (
    NOTHING,
    listed,
    milliseconds,
    number,
    percent,
    runs_of_numbers,
    times,
)
from driftscope.analysis.statistics.intervals import (
    Z95,
    Interval,
    difference,
    quantile_interval,
)
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.analysis.validity import RUN_EFFECT
from driftscope.findings.case import Case, comparison_of
from driftscope.metrics.acceptance import MARGINAL as MARGINAL_RATE
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope.pipeline import Analysis
from driftscope_reports.charts import Unit, bars, depths, figure
from driftscope_reports.model import Picture, Section, axis_name, table
from driftscope_reports.page import part
from driftscope_reports.sections_speed import deliberate, outcome_share, outcome_words, outcomes_of
from driftscope_reports.sections_where import ENOUGH, SEGMENTS, circumstances, groups_of

PERCENTILES = (0.5, 0.9)
"""Percentiles of the requests at which durations are compared."""
WORSE, BETTER, SAME, APART = "▼ worse", "▲ better", "= no clear difference", "≠ differs"
_TONES = {WORSE: "high", BETTER: "good", APART: "apart", SAME: "same"}
"""CSS class of each word; a sign stands before it, so that colour alone says nothing."""


class Good(IntEnum):
    """Direction that is better."""

    MORE = 1
    LESS = -1
    NEITHER = 0


class Measured(NamedTuple):
    """A figure of one run, or a difference, with its 95% interval; None where it lacks one."""

    value: float | None
    interval: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A figure of two runs and its difference."""

    words: str
    first: Measured
    second: Measured
    gap: Measured
    say: Callable[[float | None], str]
    good: Good

    @property
    def word(self) -> str | None:
        """Word for the difference; None without an interval."""
        ends = self.gap.interval
        if ends is None:
            return None
        if not ends.excludes_zero():
            return SAME
        if self.good is Good.NEITHER:
            return APART
        return BETTER if (ends.low > 0) == (self.good is Good.MORE) else WORSE


def compare(analysis: Analysis) -> Section:
    """Return the differences of acceptance by depth from the first run, and a table of all."""
    if len(analysis.runs) < 2:
        return Section(
            id="compare",
            name="Compare",
            missing="Not applicable: this report has one run. Analyse two runs, or this report and "
            "another run, to see their differences here.",
        )
    first, *others = analysis.runs
    cases = {case.run.label: case for case in analysis.cases}
    known = [_comparison(first, other, cases.get(other.label)) for other in others]
    made = [
        [_judged(row, comparison) for row in rows_of(first, other, comparison)]
        for other, comparison in zip(others, known, strict=True)
    ]
    counts = [
        f"{sum(row.word not in (SAME, None) for row in rows)} of {len(rows)} figures of {b.label}"
        for b, rows in zip(others, made, strict=True)
    ]
    return Section(
        id="compare",
        name="Compare",
        conclusion=f"{listed(counts)} differ clearly from those of {first.label}.",
        pictures=[_by_depth(first, others, known)],
        below=[
            *(_at_mix(b, c) for b, c in zip(others, known, strict=True) if c and c.mix),
            _table(first, others, made),
        ],
    )


def _judged(row: Row, comparison: Comparison | None) -> Row:
    """Return a row that is called better or worse only if nothing but drafter and K can explain the
    difference."""
    alike = comparison is not None and all(map(comparison.comparability.decides, Claim))
    return row if alike else replace(row, good=Good.NEITHER)


def _comparison(first: RunSummary, other: RunSummary, case: Case | None) -> Comparison | None:
    """Return the comparison of the first run with another one; findings may use a baseline
    instead."""
    reference = None if case is None else case.reference
    if case is not None and reference is not None and reference.label == first.label:
        return case.comparison
    return comparison_of(first, other)


def _at_mix(other: RunSummary, comparison: Comparison) -> Markup:
    """Return which differences are taken at one mix of labels, and at which."""
    words = f"{other.label}: {mix_words(comparison)} Each run's own figures are as served."
    return part("paragraph", words)


# ---- acceptance by depth


def _by_depth(
    first: RunSummary, others: Sequence[RunSummary], known: Sequence[Comparison | None]
) -> Picture:
    """Return the differences of acceptance by depth, as `driftscope compare` tests them."""
    drawn, apart = [], []
    for index, (other, comparison) in enumerate(zip(others, known, strict=True), start=1):
        mine, theirs = (run.acceptance for run in (first, other))
        gaps = [
            compared(comparison, MARGINAL, depth)
            or gap(
                Measured(mine.marginal[depth - 1], _interval_at(mine.marginal_interval, depth)),
                Measured(theirs.marginal[depth - 1], _interval_at(theirs.marginal_interval, depth)),
            )
            for depth in depths(mine.marginal[: len(theirs.marginal)])
        ]
        ends = [known.interval for known in gaps]
        drawn.append(
            bars(other.label, depths(gaps), [g.value for g in gaps], run=index, intervals=ends)
        )
        at: Sequence[int] = comparison.apart_at if comparison else ()
        if comparison is None:
            at = [depth for depth, end in enumerate(ends, start=1) if end and end.excludes_zero()]
        apart.append(f"{other.label} at {runs_of_numbers(at) if at else 'none'}")
    return Picture(
        id="compare-acceptance",
        title=f"Acceptance differs clearly from {first.label}'s by {axis_name([first, *others])}: "
        f"{listed(apart)}",
        how=f"At each depth, acceptance minus that of {first.label}, with the 95% interval: pair "
        "by pair if both answered the same prompts. The title names the depths that differ when "
        "all are tested together.",
        chart=figure(
            drawn,
            x_title=axis_name([first, *others]),
            y_title="difference of acceptance",
            unit=Unit.SHARE,
            level=0.0,
            from_zero=False,
            named=True,
        ),
        definitions=(MARGINAL_RATE,),
        hero=True,
    )


def _interval_at(spread: Sequence[Interval | None] | None, depth: int) -> Interval | None:
    return spread[depth - 1] if spread else None


# ---- every figure


def gap(a: Measured, b: Measured) -> Measured:
    """Return b - a, for independent runs."""
    if a.value is None or b.value is None:
        return Measured(None, None)
    if a.interval is None or b.interval is None:
        return Measured(b.value - a.value, None)
    return Measured(b.value - a.value, difference(b.value, b.interval, a.value, a.interval))


def compared(
    comparison: Comparison | None, metric: str, depth: int | None = None, segment: str = WHOLE
) -> Measured | None:
    """Return the difference of one figure from `driftscope compare`, paired if both runs answered
    the same prompts; None if the runs were not compared in it."""
    differences = comparison.at(metric, segment) if comparison else ()
    mine = [at_depth for at_depth in differences if at_depth.depth == depth]
    return Measured(mine[0].difference, mine[0].interval) if mine else None


_Of = Callable[[RunSummary], tuple[float | None, Interval | None]]
_LAST = "Accepted to the last depth"


def _last(values: Sequence[float] | None, spread: Sequence[Interval | None] | None) -> Measured:
    return Measured(values[-1] if values else None, spread[-1] if spread else None)


_FIGURES: tuple[tuple[str, _Of, Callable[[float | None], str], Good], ...] = (
    (
        MEAN_LENGTH.title,
        lambda r: (r.acceptance.mean_length, r.acceptance.mean_length_interval),
        number,
        Good.MORE,
    ),
    (
        _LAST,
        lambda r: _last(r.acceptance.marginal, r.acceptance.marginal_interval),
        percent,
        Good.MORE,
    ),
    (
        "Growth of the hidden state",
        lambda r: (r.hidden.growth, r.hidden.growth_interval),
        times,
        Good.LESS,
    ),
    (
        "Attention on the chain, last depth",
        lambda r: _last(r.attention.self_mass, r.spread.get("self_mass")),
        percent,
        Good.NEITHER,
    ),
    (
        "Attention on the sink, last depth",
        lambda r: _last(r.attention.sink_mass, r.spread.get("sink_mass")),
        percent,
        Good.NEITHER,
    ),
    (
        "Time per output token",
        lambda r: (r.latency.tpot_s, r.latency.tpot_s_interval),
        milliseconds,
        Good.LESS,
    ),
    (
        "Time to first token",
        lambda r: (r.latency.ttft_s, r.latency.ttft_s_interval),
        milliseconds,
        Good.LESS,
    ),
)
"""Name, figure of a run with its interval, format, and direction that is better."""


def rows_of(a: RunSummary, b: RunSummary, comparison: Comparison | None) -> Iterator[Row]:
    """Yield every figure of two runs: of all requests, of durations at percentiles, of outcomes,
    and of the groups with enough requests in both."""
    for words, of, say, good in _FIGURES:
        yield _row(words, of(a), of(b), say, good, _tested(words, a, b, comparison))
    for name, words in ((TPOT, "Time per output token"), (TTFT, "Time to first token")):
        for share in PERCENTILES:
            ends = _quantile(a, name, share), _quantile(b, name, share)
            yield _row(f"{words}, p{100 * share:.0f}", *ends, milliseconds, Good.LESS)
    for name in outcomes_of([a, b])[1:]:
        good = Good.NEITHER if deliberate(name) else Good.LESS
        words = f"Steps: {outcome_words(name)}"
        yield _row(words, outcome_share(a, name), outcome_share(b, name), percent, good)
    for circumstance in circumstances([a, b]):
        mine = {g.name: g for g in groups_of(a, circumstance) if g.requests >= ENOUGH}
        both = [
            (mine[group.name], group)
            for group in groups_of(b, circumstance)
            if group.requests >= ENOUGH and group.name in mine
        ]
        labels = circumstance.field == SEGMENTS and a.segments[0].by == "label"
        for x, y in both if len(both) > 1 else ():
            tested = compared(comparison, LENGTH, segment=y.name) if labels else None
            words = f"Tokens per round, {circumstance.words.lower()}: {y.name}"
            first = x.mean_length, x.mean_length_interval
            second = y.mean_length, y.mean_length_interval
            yield _row(words, first, second, number, Good.MORE, tested)


def _row(
    words: str,
    first: tuple[float | None, Interval | None],
    second: tuple[float | None, Interval | None],
    say: Callable[[float | None], str],
    good: Good,
    tested: Measured | None = None,
) -> Row:
    a, b = Measured(*first), Measured(*second)
    apart = tested or gap(a, b)
    if say is milliseconds:
        apart = _from_start_to_start(apart, a, b)
    return Row(words=words, first=a, second=b, gap=apart, say=say, good=good)


def _from_start_to_start(apart: Measured, a: Measured, b: Measured) -> Measured:
    """Return a difference of times with what one server differs by from start to start."""
    ends = apart.interval
    if ends is None or apart.value is None or a.value is None or b.value is None:
        return apart
    half = Z95 * RUN_EFFECT * math.hypot(a.value, b.value)
    low = apart.value - math.hypot(apart.value - ends.low, half)
    high = apart.value + math.hypot(ends.high - apart.value, half)
    return Measured(apart.value, Interval.of(low, high, ends.clusters))


def _tested(
    words: str, a: RunSummary, b: RunSummary, comparison: Comparison | None
) -> Measured | None:
    """Return the difference of a figure that `driftscope compare` tests."""
    if words == MEAN_LENGTH.title:
        return compared(comparison, LENGTH)
    last = len(a.acceptance.marginal)
    same_depth = words == _LAST and last == len(b.acceptance.marginal)
    return compared(comparison, MARGINAL, last) if same_depth else None


def _quantile(run: RunSummary, name: str, share: float) -> Measured:
    """Return a quantile of a duration; `share` is one of those kept."""
    known = run.closeup.durations.get(name) if run.closeup else None
    if known is None:
        return Measured(None, None)
    spread = quantile_interval(share, known.count, AT, known.quantiles_s)
    return Measured(known.quantiles_s[round(share * (len(AT) - 1))], spread)


def _table(
    first: RunSummary, others: Sequence[RunSummary], made: Sequence[Sequence[Row]]
) -> Markup:
    """Return the rows that both runs have: those that can be judged and differ first."""
    several = len(others) > 1
    order = [WORSE, BETTER, APART, SAME, None]
    known = [
        (row, other.label)
        for other, rows in zip(others, made, strict=True)
        for row in rows
        if row.gap.value is not None
    ]
    cells = [
        [
            row.words,
            *([label] if several else []),
            part("span", row.word, f"tone-{_TONES[row.word]}") if row.word else "no interval",
            row.say(row.first.value),
            row.say(row.second.value),
            _signed(row.gap.value, row.say),
            f"{_signed(ends.low, row.say)} to {_signed(ends.high, row.say)}"
            if (ends := row.gap.interval)
            else NOTHING,
        ]
        for row, label in sorted(known, key=lambda row: order.index(row[0].word))
    ]
    names = ["this run" if several else others[0].label, "difference", "95% interval"]
    head = ["figure", *(["run"] if several else []), "change", first.label, *names]
    caption = f"Differences to {first.label}"
    return table(head, cells, words=3 if several else 2, caption=caption, sortable=True)


def _signed(value: float | None, say: Callable[[float | None], str]) -> str:
    """Return a signed difference; differences of shares are in points, not in percent."""
    if value is None:
        return NOTHING
    return f"{'−' if value < 0 else '+'}{say(abs(value)).replace('%', ' points')}"
