"""The first run against the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from driftscope.analysis.analyze import Analysis
from driftscope.analysis.interval import Interval, difference
from driftscope.analysis.summary import RunSummary
from driftscope.analysis.words import milliseconds, number, percent, times
from driftscope.metrics.acceptance import MARGINAL, MEAN_LENGTH
from driftscope_reports.byrun import axis_name
from driftscope_reports.chart import Chart, Kind, Series, Unit
from driftscope_reports.markup import Markup, el
from driftscope_reports.section import Picture, Section
from driftscope_reports.tables import table

_WORSE, _BETTER, _SAME = "▼ worse", "▲ better", "= no clear difference"


def section(analysis: Analysis) -> Section:
    """Differences to the first run, by depth and in one table."""
    first, *others = analysis.runs
    if not others:
        return Section(
            id="compare",
            name="Compare",
            missing="Not applicable: there is one run in this report. Give two, or this report and "
            "another run, to see their differences here.",
        )
    return Section(
        id="compare",
        name="Compare",
        lead=f"Every picture above holds all runs. Here they are set against {first.label}: what "
        "is worse is red and hatched, what is better is blue and plain.",
        pictures=tuple(
            p for i, other in enumerate(others, start=1) if (p := _acceptance(i, first, other))
        ),
        body=_table(first, others),
        affects=("acceptance",),
    )


def _acceptance(index: int, first: RunSummary, other: RunSummary) -> Picture | None:
    mine, theirs = first.acceptance.marginal_interval, other.acceptance.marginal_interval
    if mine is None or theirs is None:
        return None
    k = min(first.k, other.k)
    gaps = [
        difference(other.acceptance.marginal[d], theirs[d], first.acceptance.marginal[d], mine[d])
        for d in range(k)
    ]
    deltas = [other.acceptance.marginal[d] - first.acceptance.marginal[d] for d in range(k)]
    return Picture(
        id=f"compare-acceptance-{index}",
        title=_title(first, other, deltas, gaps),
        how="Each bar is how much more of all rounds is accepted to this depth than in "
        f"{first.label}, with its 95% interval. Where the interval crosses 0, the runs cannot be "
        "told apart there.",
        chart=Chart(
            series=_signed(other.label, deltas, gaps), x_title=axis_name([first, other]),
            y_title="difference", unit=Unit.SHARE, level=0.0, from_zero=False,
        ),
        definitions=(MARGINAL,),
    )  # fmt: skip


def _signed(label: str, deltas: Sequence[float], gaps: Sequence[Interval]) -> tuple[Series, ...]:
    """One series each for worse, better and neither: told apart by hatching too."""
    out = []
    for words, colour, pattern in (
        (_WORSE, "worse", "/"), (_BETTER, "better", ""), (_SAME, "same", "."),
    ):  # fmt: skip
        which = [_word(gap) == words for gap in gaps]
        if any(which):
            out.append(
                Series(
                    name=f"{label}: {words}",
                    kind=Kind.STACK,
                    x=tuple(range(1, len(deltas) + 1)),
                    y=tuple(d if w else None for d, w in zip(deltas, which, strict=True)),
                    colour=colour,
                    pattern=pattern,
                    low=tuple(g.low if w else None for g, w in zip(gaps, which, strict=True)),
                    high=tuple(g.high if w else None for g, w in zip(gaps, which, strict=True)),
                )
            )
    return tuple(out)


def _word(gap: Interval, *, more_is_better: bool = True) -> str:
    if not gap.excludes_zero():
        return _SAME
    return _BETTER if (gap.low > 0) == more_is_better else _WORSE


def _title(
    first: RunSummary, other: RunSummary, deltas: Sequence[float], gaps: Sequence[Interval]
) -> str:
    apart = [d for d, gap in enumerate(gaps, start=1) if gap.excludes_zero()]
    names = f"{other.label} against {first.label}"
    if not apart:
        return f"{names}: acceptance cannot be told apart at any depth"
    last = apart[-1]
    more = "more" if deltas[last - 1] > 0 else "less"
    return (
        f"{names}: at {axis_name([first, other])} {last}, {percent(abs(deltas[last - 1]))} of all "
        f"rounds {more} are accepted"
    )


_Row = tuple[str, Callable[[RunSummary], float | None], Callable[[float | None], str], bool,
             Callable[[RunSummary], Interval | None]]  # fmt: skip


def _none(_: RunSummary) -> None:
    return None


_ROWS: tuple[_Row, ...] = (
    (MEAN_LENGTH.title, lambda r: r.acceptance.mean_length, number, True,
     lambda r: r.acceptance.mean_length_interval),
    ("Accepted to the last depth", lambda r: r.acceptance.marginal[-1], percent, True,
     lambda r: r.acceptance.marginal_interval[-1] if r.acceptance.marginal_interval else None),
    ("Growth of the hidden state", lambda r: r.hidden.growth, times, False,
     lambda r: r.hidden.growth_interval),
    ("Attention on the chain, last depth",
     lambda r: r.attention.self_mass[-1] if r.attention.self_mass else None, percent, False, _none),
    ("Time per output token", lambda r: r.latency.tpot_s, milliseconds, False, _none),
    ("Time to first token", lambda r: r.latency.ttft_s, milliseconds, False, _none),
    ("Rejected rounds, of steps", lambda r: r.fallback.rejected_share, percent, False, _none),
    ("Undrafted steps, of steps", lambda r: r.fallback.undrafted_share, percent, False, _none),
)  # fmt: skip


def _table(first: RunSummary, others: Sequence[RunSummary]) -> Markup:
    rows = []
    for words, of, say, more_is_better, spread in _ROWS:
        for other in others:
            a, b = of(first), of(other)
            known = a is not None and b is not None
            gap = _gap(a, spread(first), b, spread(other))
            rows.append([
                words, other.label, say(a), say(b),
                _signed_words(b - a, say) if known else "–",  # type: ignore[operator]
                f"{_signed_words(gap.low, say)} to {_signed_words(gap.high, say)}" if gap else "–",
                _verdict(gap, more_is_better),
            ])  # fmt: skip
    head = ["figure", "run", first.label, "this run", "difference", "95% interval", ""]
    head[-1] = "so it is"
    return table(head, rows, words=2, caption=f"Differences to {first.label}")


def _gap(
    a: float | None, a_spread: Interval | None, b: float | None, b_spread: Interval | None
) -> Interval | None:
    if a is None or b is None or a_spread is None or b_spread is None:
        return None
    return difference(b, b_spread, a, a_spread)


def _signed_words(value: float, say: Callable[[float | None], str]) -> str:
    return f"{'−' if value < 0 else '+'}{say(abs(value))}"


def _verdict(gap: Interval | None, more_is_better: bool) -> Markup | str:
    if gap is None:
        return "no interval"
    word = _word(gap, more_is_better=more_is_better)
    tone = {_WORSE: "worse", _BETTER: "better", _SAME: "same"}[word]
    return el("span", word, class_=f"tone-{tone}")
