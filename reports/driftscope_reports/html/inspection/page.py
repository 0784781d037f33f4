"""An inspection of one checkpoint, or of two, as one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from driftscope.analysis.compare import verdict
from driftscope.inspect.checks.check_result import Level
from driftscope.inspect.inspection import Inspection
from driftscope.inspect.pair_inspection import PairInspection
from driftscope_reports.html.inspection import pair_section, trial_sections
from driftscope_reports.html.inspection.result_cards import LEVELS, cards
from driftscope_reports.html.parts import section_html
from driftscope_reports.html.parts.tables import table
from driftscope_reports.markup import Child, Markup, el, encodable
from driftscope_reports.model import Section, in_page
from driftscope_reports.page import Content, framed, part

_HEALTHY = ("✓ No error, no warning", "good")


def to_html(result: Inspection | PairInspection, *, command: str | None = None) -> str:
    """Return the page; `command` is the command line that made it, shown at its end."""
    pair = result if isinstance(result, PairInspection) else None
    each = (result.first, result.second) if isinstance(result, PairInspection) else (result,)
    names = pair_names(pair) if pair else (_name(each[0]),)
    made = [in_page(section) for section in [*_sections(each, pair), _origin(each, names, command)]]
    content = Content(
        title=f"Inspection: {' and '.join(names)}",
        skip="Skip to the result",
        contents=[("verdict", "Result"), ("findings", "Found"), *((s.id, s.name) for s in made)],
        main=[
            _opening(each, names, pair),
            cards(each, names),
            *(section_html.section(section, ()) for section in made),
        ],
        pictures=[picture for section in made for picture in section.pictures],
    )
    return encodable(framed(content))


def pair_names(pair: PairInspection) -> tuple[str, str]:
    """Return short names of both drafters, which differ."""
    if pair.trial is not None:
        return pair.trial.comparison.first, pair.trial.comparison.second
    names = _name(pair.first), _name(pair.second)
    return names if names[0] != names[1] else (pair.first.drafter, pair.second.drafter)


def _name(inspection: Inspection) -> str:
    return Path(inspection.drafter).name or inspection.drafter


def _sections(each: Sequence[Inspection], pair: PairInspection | None) -> list[Section]:
    if pair is not None:
        return [pair_section.section(pair.trial)] if pair.trial else []
    return trial_sections.sections(each[0].trial) if each[0].trial else []


def _opening(
    each: Sequence[Inspection], names: Sequence[str], pair: PairInspection | None
) -> Markup:
    """Return the first screen: how bad it is, and the result in one sentence."""
    words, name = _state(each)
    compared = f"{verdict(pair.trial.comparison)}." if pair and pair.trial else None
    counted = [_counts(one, label) for one, label in zip(each, names, strict=True)]
    concluded = [one.conclusion for one in each if one.conclusion and not pair]
    return el(
        "section",
        el("div", el("p", words, class_=f"state {name}"), class_="badges"),
        el("h1", compared or counted[0]),
        [
            el("p", line, class_="detail")
            for line in (*(counted if compared else counted[1:]), *concluded)
        ],
        class_="verdict",
        id="verdict",
    )


def _state(each: Sequence[Inspection]) -> tuple[str, str]:
    found = {result.level for one in each for result in one.results} - {Level.NOTE}
    worst = next((level for level in Level if level in found), None)
    return LEVELS[worst] if worst else _HEALTHY


def _counts(inspection: Inspection, name: str) -> str:
    counts = ", ".join(
        f"{number} {level}{'' if number == 1 else 's'}"
        for level in Level
        if (number := inspection.count(level))
    )
    first = inspection.results[0] if inspection.results else None
    lead = f"; first: {first.title}" if first and first.level is Level.ERROR else ""
    return f"{name}: {counts or 'nothing found'} in {inspection.checks} checks{lead}"


def _origin(each: Sequence[Inspection], names: Sequence[str], command: str | None) -> Section:
    rows = [_facts(one, name) for one, name in zip(each, names, strict=True)]
    return Section(
        id="provenance",
        name="What was inspected",
        lead=f"Target: {each[0].target or 'none given'}.",
        body=el(
            "div",
            table(
                ["drafter", "path", "format", "licence", "parameters", "bytes", "of the target's"],
                rows,
                words=4,
                caption="Drafters that were inspected",
            ),
            [el("p", "Made again with:"), part("to_copy", command)] if command else None,
        ),
    )


def _facts(inspection: Inspection, name: str) -> list[Child]:
    sizes = inspection.sizes
    share = "–" if sizes.share is None else f"{sizes.share:.1%}"
    return [
        name,
        inspection.drafter,
        inspection.format if inspection.checked else f"{inspection.format}, not checked further",
        sizes.licence or "–",
        f"{sizes.parameters:,}",
        f"{sizes.bytes:,}",
        share,
    ]
