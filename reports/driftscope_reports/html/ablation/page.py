"""An ablation as one HTML file that needs no network: the page "Why"."""

from __future__ import annotations

from pathlib import Path

from driftscope.ablate.ablation import Ablation
from driftscope.ablate.decomposition import Decomposition
from driftscope.ablate.effect import Effect
from driftscope.ablate.intervention import AS_SERVED
from driftscope_reports.html.ablation import agreement_section, effect_section, loss_section
from driftscope_reports.html.parts import section_html
from driftscope_reports.html.parts.tables import table
from driftscope_reports.markup import Markup, el, encodable
from driftscope_reports.model import Section, in_page
from driftscope_reports.page import Content, framed, part


def to_html(result: Ablation, *, command: str | None = None) -> str:
    """Return the page; `command` is the command line that made it, shown at its end."""
    made = [in_page(section) for section in [*_sections(result), _origin(result, command)]]
    name = Path(result.drafter).name or result.drafter
    content = Content(
        title=f"Why: {name}",
        skip="Skip to the result",
        contents=[("verdict", "Result"), *((s.id, s.name) for s in made)],
        main=[_opening(result, name), *(section_html.section(each, ()) for each in made)],
        pictures=[picture for section in made for picture in section.pictures],
    )
    return encodable(framed(content))


def _sections(result: Ablation) -> list[Section]:
    found = [loss_section.section(result.decomposition, result.k)] if result.decomposition else []
    found += [effect_section.section(result), agreement_section.section(result)]
    if result.vocabulary.lacking:
        found.append(effect_section.vocabulary(result.vocabulary))
    return found


def _opening(result: Ablation, name: str) -> Markup:
    """Return the first screen: the result in one sentence."""
    where = f"{result.positions:,} positions of {result.prompts} prompts, K = {result.k}"
    return el(
        "section",
        el("div", el("p", "Why acceptance falls", class_="state info"), class_="badges"),
        el("h1", _loss(result.decomposition, result.k) or _changes(result)),
        el("p", f"{name} beside {result.target}: {where}", class_="detail"),
        el("p", _changes(result), class_="detail") if result.decomposition else None,
        class_="verdict",
        id="verdict",
    )


def _loss(parts: Decomposition | None, k: int) -> str | None:
    if parts is None:
        return None
    lost, tokens, states, rest = (
        100 * part.value for part in (parts.loss, parts.tokens, parts.states, parts.rest)
    )
    return (
        f"{lost:.1f} points of agreement are lost between depth 1 and {k}: {tokens:+.1f} by wrong "
        f"tokens read, {states:+.1f} by the drafter's own states, {rest:+.1f} by later positions"
    )


def _changes(result: Ablation) -> str:
    tried = [each for each in result.effects if each.intervention.id != AS_SERVED]
    changing = [each for each in tried if each.interval and each.interval.excludes_zero()]
    if not changing:
        return f"None of {len(tried)} interventions changes acceptance length beyond chance."
    listed = ", ".join(_change(each) for each in sorted(changing, key=lambda e: e.difference))
    return f"Acceptance length changes beyond chance with {listed}."


def _change(effect: Effect) -> str:
    return f"{effect.intervention.changes} ({effect.difference:+.2f})"


def _origin(result: Ablation, command: str | None) -> Section:
    rows = [
        ["drafter", result.drafter],
        ["target", result.target],
        ["tokens per draft", str(result.k)],
        ["prompts", str(result.prompts)],
        ["positions", f"{result.positions:,}"],
    ]
    return Section(
        id="provenance",
        name="What was run",
        lead="Both models ran outside any engine, on the target's own greedy answers.",
        body=el(
            "div",
            table(["", ""], rows, words=2, caption="What was run"),
            [el("p", "This page is made again with:"), part("to_copy", command)]
            if command
            else None,
        ),
    )
