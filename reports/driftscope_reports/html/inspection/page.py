"""An inspection as one HTML file that needs no network."""

from __future__ import annotations

from pathlib import Path

from driftscope.inspect.checks.check_result import Level
from driftscope.inspect.inspection import Inspection
from driftscope_reports.html.inspection import trial_sections
from driftscope_reports.html.inspection.result_cards import LEVELS, cards
from driftscope_reports.html.parts import section_html
from driftscope_reports.html.parts.tables import table
from driftscope_reports.markup import Markup, el, encodable
from driftscope_reports.model import Section, in_page
from driftscope_reports.page import Content, framed, part

_HEALTHY = ("✓ No error, no warning", "good")


def to_html(result: Inspection, *, command: str | None = None) -> str:
    """Return the page; `command` is the command line that made it, shown at its end."""
    name = Path(result.drafter).name or result.drafter
    parts = trial_sections.sections(result.trial) if result.trial else []
    made = [in_page(section) for section in [*parts, _origin(result, name, command)]]
    content = Content(
        title=f"Inspection: {name}",
        skip="Skip to the result",
        contents=[("verdict", "Result"), ("findings", "Found"), *((s.id, s.name) for s in made)],
        main=[
            _opening(result, name),
            cards(result),
            *(section_html.section(section, ()) for section in made),
        ],
        pictures=[picture for section in made for picture in section.pictures],
    )
    return encodable(framed(content))


def _opening(result: Inspection, name: str) -> Markup:
    """Return the first screen: how bad it is, and the result in one sentence."""
    worst = next((level for level in Level if result.count(level)), Level.NOTE)
    words, kind = _HEALTHY if worst is Level.NOTE else LEVELS[worst]
    return el(
        "section",
        el("div", el("p", words, class_=f"state {kind}"), class_="badges"),
        el("h1", _counts(result, name)),
        el("p", result.conclusion, class_="detail") if result.conclusion else None,
        class_="verdict",
        id="verdict",
    )


def _counts(inspection: Inspection, name: str) -> str:
    counts = ", ".join(
        f"{number} {level}{'' if number == 1 else 's'}"
        for level in Level
        if (number := inspection.count(level))
    )
    first = inspection.results[0] if inspection.results else None
    lead = f"; first: {first.title}" if first and first.level is Level.ERROR else ""
    return f"{name}: {counts or 'nothing found'} in {inspection.checks} checks{lead}"


def _origin(inspection: Inspection, name: str, command: str | None) -> Section:
    sizes = inspection.sizes
    row = [
        name,
        inspection.drafter,
        inspection.format if inspection.checked else f"{inspection.format}, not checked further",
        sizes.licence or "–",
        f"{sizes.parameters:,}",
        f"{sizes.bytes:,}",
        "–" if sizes.share is None else f"{sizes.share:.1%}",
    ]
    return Section(
        id="provenance",
        name="What was inspected",
        lead=f"Target: {inspection.target or 'none given'}.",
        body=el(
            "div",
            table(
                ["drafter", "path", "format", "licence", "parameters", "bytes", "of the target's"],
                [row],
                words=4,
                caption="The drafter that was inspected",
            ),
            [el("p", "Made again with:"), part("to_copy", command)] if command else None,
        ),
    )
