"""Section that compares the first run with the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from driftscope.analysis.advice import Advice
from driftscope.analysis.compare import LENGTH, MARGINAL, Comparison, mix_words
from driftscope.analysis.number_words import listed, milliseconds, number, percent, times
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.case import Case, comparison_of
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope.pipeline import Analysis
from driftscope_reports.html.parts.heatmap import (
    BETTER,
    SAME,
    WORSE,
    Gap,
    Good,
    compared,
    gap,
    word,
)
from driftscope_reports.html.parts.tables import table
from driftscope_reports.html.sections.comparison.difference_charts import (
    Differences,
    Pair,
    differences,
)
from driftscope_reports.html.sections.comparison.quantities import spread_of
from driftscope_reports.markup import Markup, el
from driftscope_reports.model import Section

_MANY = 3
"""Number of other runs from which only some quantities are drawn."""


def section(analysis: Analysis) -> Section:
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
    made = [differences(pair, all_of=len(pairs) < _MANY) for pair in pairs]
    return Section(
        id="compare",
        name="Compare",
        conclusion=_conclusion(pairs, made),
        lead=f"Everything is compared with {first.label}: worse is red and hatched, better is blue "
        "and plain, different but neither is violet and striped, and no clear difference is grey "
        "and dotted.",
        pictures=tuple(picture for each in made for picture in each.pictures),
        above=_table(pairs),
        body=el(
            "div",
            [
                *(_at_mix(pair.runs[1], c) for pair in pairs if (c := pair.comparison) and c.mix),
                *(_alike(p, d) for p, d in zip(pairs, made, strict=True) if d.alike),
            ],
        ),
        affects=("acceptance",),
    )


def _conclusion(pairs: Sequence[Pair], made: Sequence[Differences]) -> str:
    """Return how many quantities differ clearly from the first run's."""
    each = [
        f"{len(d.pictures)} of {len(d.pictures) + len(d.alike)} quantities of {p.runs[1].label}"
        for p, d in zip(pairs, made, strict=True)
    ]
    return f"{listed(each)} differ clearly from those of {pairs[0].runs[0].label}."


def _alike(pair: Pair, made: Differences) -> Markup:
    names = listed([f"{name[:1].lower()}{name[1:]}" for name in made.alike])
    return el("p", f"{pair.runs[1].label} shows no clear difference in {names}.", class_="missing")


def _at_mix(other: RunSummary, comparison: Comparison) -> Markup:
    """Return which differences are taken at one mix of labels, and at which."""
    return el(
        "p",
        f"{other.label}: {mix_words(comparison)} Each run's own figures are as served.",
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


_Row = tuple[
    str,
    Callable[[RunSummary], float | None],
    Callable[[float | None], str],
    Good,
    Callable[[RunSummary], Interval | None],
]


def _last(name: str) -> Callable[[RunSummary], Interval | None]:
    return lambda run: spread[-1] if (spread := spread_of(run, name)) else None


_LAST = "Accepted to the last depth"
_ROWS: tuple[_Row, ...] = (
    (
        MEAN_LENGTH.title,
        lambda r: r.acceptance.mean_length,
        number,
        Good.MORE,
        lambda r: r.acceptance.mean_length_interval,
    ),
    (_LAST, lambda r: r.acceptance.marginal[-1], percent, Good.MORE, _last("marginal")),
    (
        "Growth of the hidden state",
        lambda r: r.hidden.growth,
        times,
        Good.LESS,
        lambda r: r.hidden.growth_interval,
    ),
    (
        "Attention on the chain, last depth",
        lambda r: r.attention.self_mass[-1] if r.attention.self_mass else None,
        percent,
        Good.LESS,
        _last("self_mass"),
    ),
    (
        "Attention on the sink, last depth",
        lambda r: r.attention.sink_mass[-1] if r.attention.sink_mass else None,
        percent,
        Good.MORE,
        _last("sink_mass"),
    ),
    (
        "Time per output token",
        lambda r: r.latency.tpot_s,
        milliseconds,
        Good.LESS,
        lambda r: r.latency.tpot_s_interval,
    ),
    (
        "Time to first token",
        lambda r: r.latency.ttft_s,
        milliseconds,
        Good.LESS,
        lambda r: r.latency.ttft_s_interval,
    ),
    (
        "Rejected rounds, share of steps",
        lambda r: r.fallback.rejected_share,
        percent,
        Good.LESS,
        lambda r: r.fallback_spread.rejected,
    ),
    (
        "Undrafted steps, share of steps",
        lambda r: r.fallback.undrafted_share,
        percent,
        Good.LESS,
        lambda r: r.fallback_spread.undrafted,
    ),
)


def _tested(words: str, pair: Pair) -> Gap | None:
    """Return the difference of a table row that `driftscope compare` tests."""
    a, b = pair.runs
    if words == MEAN_LENGTH.title:
        return compared(pair.comparison, LENGTH)
    same_depth = words == _LAST and len(a.acceptance.marginal) == len(b.acceptance.marginal)
    return compared(pair.comparison, MARGINAL, len(a.acceptance.marginal)) if same_depth else None


def _table(pairs: Sequence[Pair]) -> Markup:
    rows, first, others = [], pairs[0].runs[0], [pair.runs[1] for pair in pairs]
    for words, of, say, good, spread in _ROWS:
        for pair, other in zip(pairs, others, strict=True):
            a, b = of(first), of(other)
            difference = _tested(words, pair) or gap(a, spread(first), b, spread(other))
            ends = difference.interval
            rows.append(
                [
                    words,
                    *([other.label] if len(others) > 1 else []),
                    _verdict(ends, good),
                    say(a),
                    say(b),
                    "–" if difference.value is None else _signed(difference.value, say),
                    f"{_signed(ends.low, say)} to {_signed(ends.high, say)}" if ends else "–",
                ]
            )
    several = len(others) > 1
    head = [
        "figure",
        *(["run"] if several else []),
        "change",
        first.label,
        "this run" if several else others[0].label,
        "difference",
        "95% interval",
    ]
    return table(head, rows, words=3 if several else 2, caption=f"Differences to {first.label}")


def _signed(value: float, say: Callable[[float | None], str]) -> str:
    """Return a signed difference; differences of shares are in points, not in percent."""
    return f"{'−' if value < 0 else '+'}{say(abs(value)).replace('%', ' points')}"


def _verdict(interval: Interval | None, good: Good) -> Markup | str:
    if interval is None:
        return "no interval"
    outcome = word(interval, good)
    tone = {WORSE: "worse", BETTER: "better", SAME: "same"}[outcome]
    return el("span", outcome, class_=f"tone-{tone}")
