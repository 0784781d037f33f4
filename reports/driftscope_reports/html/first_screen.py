"""First screen of the report: the verdict and one card per run."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.findings.finding import Severity, Trust
from driftscope.analysis.number_words import count, listed, milliseconds, number, percent, times
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics.acceptance import MARGINAL, MEAN_LENGTH
from driftscope.metrics.definition import Definition
from driftscope.metrics.hidden import GROWTH
from driftscope.metrics.latency import TPOT
from driftscope.pipeline import Analysis
from driftscope_reports.drawing.chart import Chart, Kind, Series, Unit
from driftscope_reports.drawing.palette import GLYPHS, PATTERNS, colour
from driftscope_reports.drawing.svg import svg
from driftscope_reports.html.parts.run_series import axis_name, by_run
from driftscope_reports.markup import Markup, el

_STATE = {
    Severity.HIGH: "▲ Act on this",
    Severity.MEDIUM: "◆ Worth a look",
    Severity.INFO: "✓ Nothing to fix",
    Severity.GOOD: "✓ Nothing to fix",
}
"""The worst severity in a few words, above the verdict."""


def opening(analysis: Analysis, warnings: Markup | None, losses: Markup | None = None) -> Markup:
    """Return section 1: the verdict, its meaning in plain words, and one card per run.

    `warnings` are those that no later section shows; `losses`, that is missing records, come before
    every figure.
    """
    first, *rest = analysis.verdict
    return el(
        "section",
        losses,
        _state(analysis),
        el("h1", first),
        el("p", plainly(analysis.runs), class_="lead") if analysis.runs else None,
        el("p", " ".join(rest), class_="rest") if rest else None,
        el(
            "div",
            [_card(i, run) for i, run in enumerate(analysis.runs)],
            _next(analysis) if analysis.runs else None,
            class_="cards",
        ),
        warnings,
        class_="verdict",
        id="verdict",
    )


def _state(analysis: Analysis) -> Markup | None:
    worst = next((s for s in Severity if any(f.severity is s for f in analysis.findings)), None)
    return None if worst is None else el("p", _STATE[worst], class_=f"state {worst.value}")


def _next(analysis: Analysis) -> Markup:
    """Return the first thing to do, with the option to paste; findings of low confidence come
    last."""
    wanted = [f for f in analysis.findings if f.severity in (Severity.HIGH, Severity.MEDIUM)]
    urgent = [f for f in wanted if f.severity is Severity.HIGH or f.cost_tps or f.option]
    first = next((f for f in urgent if f.confidence is not Trust.LOW), next(iter(urgent), None))
    if first is None:
        return _nothing(len({f.id for f in wanted}))
    begin = ". ".join(first.advice.split(". ")[:_SENTENCES])
    cost = f", worth about {first.cost_tps:,.0f} tokens per second" if first.cost_tps else ""
    about = f" ({listed(first.runs)})" if len(analysis.runs) > 1 else ""
    more = len({f.id for f in wanted}) - 1
    return el(
        "article",
        el("h2", "Do this first"),
        el("p", f"{begin.rstrip('.')}."),
        el("code", first.option, class_="option", tabindex="0") if first.option else None,
        el("p", el("b", "Why: "), first.title[:1].lower() + first.title[1:], cost, about, "."),
        el("p", el("a", f"{count(more, 'more finding')} to look at", href="#findings"))
        if more
        else None,
        class_="card next",
    )


_SENTENCES = 2
"""Number of sentences of an advice on the first screen: the first may only name the subject."""


def _nothing(to_look_at: int) -> Markup:
    look = el("a", f"{count(to_look_at, 'finding')} to look at", href="#findings")
    return el(
        "article",
        el("h2", "Nothing to change"),
        el("p", "No finding asks for another setting or another drafter."),
        el("p", look) if to_look_at else None,
        class_="card next",
    )


def plainly(runs: Sequence[RunSummary]) -> str:
    """Return what was served and the result, for a reader who knows none of the terms."""
    ks = sorted({k for run in runs for k in run.ks})
    ahead = f"{ks[0]}" if len(ks) == 1 else f"up to {ks[-1]}"
    kept = by_run(runs, [number(run.acceptance.mean_length - 1.0, 1) for run in runs])
    tokens = "token" if ks == [1] else "tokens"
    return (
        f"To answer faster, a small model guesses {ahead} {tokens} ahead and the large model "
        f"checks them at once. Of these guesses {kept} are kept on average."
    )


def _card(index: int, run: RunSummary) -> Markup:
    spread = run.acceptance.mean_length_interval
    interval = f"95% interval {spread.low:.2f} to {spread.high:.2f}" if spread else None
    return el(
        "article",
        el(
            "div",
            el("h2", _glyph(index), " ", run.label),
            el(
                "p",
                el("strong", number(run.acceptance.mean_length), class_="figure"),
                el("span", " ", el("abbr", "tokens per round", title=MEAN_LENGTH.meaning)),
                el("small", interval) if interval else None,
            ),
            el(
                "dl",
                _entry(GROWTH, "growth with depth", times(run.hidden.growth)),
                _entry(
                    MARGINAL, f"accepted to depth {run.k}", percent(run.acceptance.marginal[-1])
                ),
                _entry(TPOT, "time per output token", milliseconds(run.latency.tpot_s)),
            ),
            class_="figures",
        ),
        el(
            "div",
            el("p", "How often each guess is kept", class_="how"),
            svg(_kept(index, run), id=f"card-{index}", title=_kept_words(run)),
            class_="kept",
        ),
        class_=f"card run-{index % len(GLYPHS)}",
    )


def _kept(index: int, run: RunSummary) -> Chart:
    rates = run.acceptance.marginal
    bars = Series(
        name=run.label,
        kind=Kind.BAR,
        x=tuple(range(1, len(rates) + 1)),
        y=rates,
        colour=colour(index),
        pattern=PATTERNS[index % len(PATTERNS)],
    )
    return Chart(
        series=(bars,),
        x_title=axis_name([run]),
        y_title="of all rounds",
        unit=Unit.SHARE,
        said=True,
        y_most=1.0,
        width=400,
        height=190,
    )


def _kept_words(run: RunSummary) -> str:
    rates = [f"{d}: {percent(r)}" for d, r in enumerate(run.acceptance.marginal, start=1)]
    return f"{run.label}: rounds in which the guess is kept, by depth: {', '.join(rates)}"


def _glyph(index: int) -> Markup:
    return el("span", GLYPHS[index % len(GLYPHS)], class_="glyph", aria_hidden="true")


def _entry(definition: Definition, words: str, figure: str) -> list[Markup]:
    return [el("dt", el("abbr", words, title=definition.meaning)), el("dd", figure)]
