"""An inspection as one HTML file that needs no network: what was found, errors first; the trial."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from driftscope.analysis.number_words import count, number, percent
from driftscope.analysis.statistics.intervals import Interval
from driftscope.inspect.checks.result import Level
from driftscope.inspect.inspection import Answer, Inspection
from driftscope.inspect.trial.result import STOPPED, Trial, Tried, by_reason
from driftscope.inspect.trial.verdict import best_repair
from driftscope.metrics.acceptance import MARGINAL, MEAN_LENGTH
from driftscope.metrics.confidence import TOP1
from driftscope.metrics.hidden import FED_RMS, PRENORM_RMS
from driftscope.trace.manifest import BY_DEPTH
from driftscope_reports.charts import Unit, figure, line
from driftscope_reports.model import Picture, Section, figures_of, section_html, table
from driftscope_reports.page import Content, framed, part, render
from driftscope_reports.sections_inside import CLASSES, mass_areas

LEVELS = {
    Level.ERROR: ("▲ error", "high"),
    Level.WARNING: ("◆ warning", "medium"),
    Level.NOTE: ("ℹ note", "info"),
}
"""Sign, word and CSS class of each level, so that it is never shown by colour alone."""


def cards(inspection: Inspection) -> Markup:
    """Return the section of results."""
    results = [(result, *LEVELS[result.level]) for result in inspection.results]
    return render("inspection_results.jinja", results=results, checks=inspection.checks)


_RMS = (("prenorm_rms", "before the final norm"), ("fed_rms", "fed to the next depth"))


def sections(trial: Trial) -> list[Section]:
    """Return the sections of a trial."""
    return [_repairs(trial)] if trial.overflow else [_by_depth(trial), _repairs(trial)]


def _by_depth(trial: Trial) -> Section:
    as_is = trial.acceptance
    length = interval_words(as_is.mean_length_interval)
    return Section(
        id="trial",
        name="The drafter as it is",
        lead=f"Acceptance length {number(as_is.mean_length)}{length}: {as_is.rounds} rounds "
        f"of {trial.prompts} prompts at K = {trial.k}, as a server would make them.",
        above=[
            part(
                "bullets",
                [
                    *(_sentence(f"not promised: {reason}") for reason in trial.not_promised),
                    *(_sentence(line) for line in trial.inside.lines),
                ],
            )
        ],
        pictures=(_accepted(trial), _masses(trial), _rms(trial), _top1(trial)),
    )


def _accepted(trial: Trial) -> Picture:
    rates = trial.acceptance.marginal
    shown = line("as it is", rates, intervals=trial.acceptance.marginal_interval)
    return Picture(
        id="acceptance-marginal",
        title=f"Accepted: {percent(rates[0])} at depth 1, {percent(rates[-1])} at depth {trial.k}",
        how="Share of the rounds that are accepted up to this depth, so the line can only fall. "
        "Bars are 95% intervals over prompts.",
        chart=_chart((shown,), "of all rounds", Unit.SHARE),
        definitions=(MARGINAL, MEAN_LENGTH),
    )


def _masses(trial: Trial) -> Picture:
    masses = {name: trial.figures.get(f"{name}_mass") for name in CLASSES}
    sink, own = trial.figures["sink_mass"], trial.figures["self_mass"]
    return Picture(
        id="masses",
        title=f"Attention: {percent(sink[0])} to {percent(sink[-1])} on the sink, "
        f"{percent(own[-1])} on the chain itself at depth {trial.k}",
        how="Mean share of the drafter's attention by class of slot. The chain's own slots grow by "
        "one with each depth, so a rising share alone is no drift.",
        chart=_chart(mass_areas(masses), "share of attention", Unit.SHARE),
        definitions=tuple(definition for _, definition, _ in CLASSES.values()),
        hero=True,
    )


def _rms(trial: Trial) -> Picture:
    fed = trial.figures["fed_rms"]
    return Picture(
        id="hidden",
        title=f"State fed to the next depth: RMS {number(fed[0])} to {number(fed[-1])}",
        how="Root mean square of the hidden state at each depth. A trained drafter sees states of "
        "one size at every depth.",
        chart=_chart(_lines([(name, trial.figures[field]) for field, name in _RMS]), "RMS"),
        definitions=(PRENORM_RMS, FED_RMS),
    )


def _top1(trial: Trial) -> Picture:
    top1 = trial.figures["top1"]
    found = trial.inside.confidence
    rates = tuple(share.value if share else None for share in found.right)
    spread = tuple(share.interval if share else None for share in found.right)
    return Picture(
        id="confidence",
        title=f"Confidence: {percent(top1[0])} at depth 1, {percent(top1[-1])} at depth {trial.k}",
        how="Mean probability that the drafter gives to its own draft token, over all positions. "
        "Where drafts get that far with nothing wrong before, the two other lines compare it with "
        "the share of tokens that are right: confidence far above it is confidence in wrong "
        "tokens.",
        chart=_chart(
            [
                line("all positions", trial.figures["top1"]),
                line("sure, in accepted drafts", found.sure, run=1),
                line("right, in accepted drafts", rates, run=2, intervals=spread),
            ],
            "probability",
            Unit.SHARE,
        ),
        definitions=(TOP1,),
    )


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _repairs(trial: Trial) -> Section:
    best = best_repair(trial)
    head = ("change", "if it helps, this was wrong", "prompts", "acceptance length", "gain", "p")
    return Section(
        id="repairs",
        name="Repairs that were tried",
        lead=f"{count(len(trial.tried), 'change')}, one at a time"
        + (f" ({STOPPED}: another one may help more). " if trial.stopped else ". ")
        + (f"This one helps: {best.change.change}." if best else "None helps beyond chance."),
        below=[
            table(
                [*head[:5], "95% interval of the gain, corrected", head[5]],
                [_row(tried) for tried in (*trial.tried, *trial.renderings)],
                words=2,
                caption="Acceptance length with each repair",
                sortable=True,
            ),
            *(
                part("paragraph", f"Not tried: {', '.join(ids)}: {reason}.", "note")
                for reason, ids in by_reason(trial.not_applicable).items()
            ),
        ],
    )


def _row(tried: Tried) -> list[str]:
    gain = tried.gain
    ends = f"{gain.interval.low:+.2f} to {gain.interval.high:+.2f}" if gain.interval else "–"
    return [
        tried.change.change,
        tried.change.mistake,
        str(tried.prompts),
        f"{tried.acceptance.mean_length:.2f}",
        f"{gain.difference:+.2f}",
        ends,
        f"{gain.p:.2g}",
    ]


def interval_words(interval: Interval | None) -> str:
    """Return an interval in brackets, with a space before it; "" without one."""
    if interval is None:
        return ""
    return f" (95% interval {number(interval.low)} to {number(interval.high)})"


def _chart(series: Sequence[Any], y_title: str, unit: Unit = Unit.NUMBER) -> Any:
    return figure(series, x_title=BY_DEPTH, y_title=y_title, unit=unit)


def _lines(values: list[tuple[str, tuple[float, ...]]]) -> list[Any]:
    return [line(name, value, run=at) for at, (name, value) in enumerate(values)]


_HEALTHY = ("✓ No error, no warning", "good")


def to_html(result: Inspection, *, command: str | None = None) -> str:
    """Return the page; `command` is the command line that made it, shown at its end."""
    name = Path(result.drafter).name or result.drafter
    parts = sections(result.trial) if result.trial else []
    made = [*parts, _origin(result, name, command)]
    # The first screen: how bad it is, and the result in one sentence.
    worst = next((level for level in Level if result.count(level)), Level.NOTE)
    words, kind = _HEALTHY if worst is Level.NOTE else LEVELS[worst]
    if worst is Level.NOTE and result.answer is Answer.CANNOT_TELL and result.trial:
        words, kind = "◆ not promised", "medium"
    counts = ", ".join(
        f"{number} {level}{'' if number == 1 else 's'}"
        for level in Level
        if (number := result.count(level))
    )
    first = result.results[0] if result.results else None
    lead = f"; first: {first.title}" if first and first.level is Level.ERROR else ""
    content = Content(
        title=f"Inspection: {name}",
        skip="Skip to the result",
        contents=[("verdict", "Result"), ("findings", "Found"), *((s.id, s.name) for s in made)],
        main=[
            part(
                "opening",
                words,
                kind,
                (f"{name}: {counts or 'nothing found'} in {result.checks} checks{lead}"),
                [result.conclusion],
            ),
            cards(result),
            *(section_html(section) for section in made),
        ],
        figures=figures_of([picture for section in made for picture in section.pictures]),
    )
    return framed(content)


def _origin(inspection: Inspection, name: str, command: str | None) -> Section:
    sizes = inspection.sizes
    row = [
        name,
        inspection.drafter,
        inspection.format if inspection.known else f"{inspection.format}, layout not known",
        sizes.licence or "–",
        f"{sizes.parameters:,}",
        f"{sizes.bytes:,}",
        "–" if sizes.share is None else f"{sizes.share:.1%}",
    ]
    return Section(
        id="provenance",
        name="What was inspected",
        lead=f"Target: {inspection.target or 'none given'}.",
        below=[
            table(
                ["drafter", "path", "format", "licence", "parameters", "bytes", "of the target's"],
                [row],
                words=4,
                caption="The drafter that was inspected",
            ),
            *([part("paragraph", "Made again with:"), part("to_copy", command)] if command else []),
        ],
    )
