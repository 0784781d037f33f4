"""The report as Markdown for a pull request: verdict, figures, findings; no picture, no HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence

from driftscope.analysis.number_words import NOTHING, ks_of, listed, number
from driftscope.boundary.text import shown as printable
from driftscope.findings.finding import Finding
from driftscope.pipeline import Analysis
from driftscope.version import __version__
from driftscope_reports.tables import figure_rows
from driftscope_reports.terminal import marked

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!()])")


def to_markdown(analysis: Analysis) -> str:
    """Return the report as GitHub-flavoured Markdown, with a newline at the end."""
    screen = analysis.screen
    others = [note for note in analysis.notes if note not in analysis.losses]
    # The lines of the first screen as a list, what to do last.
    lines = [
        f"- **{text(topic.words)}**: {sentences(' '.join(words))}" for topic, words in screen.lines
    ]
    for action in screen.actions:
        is_shown = screen.is_told(action) or not action.title
        why = "" if is_shown else f" Why: {text(action.titled)} ({text(listed(action.runs))})."
        lines.append(f"- **What to do**: {sentences(action.advice)}{why}{_assumed(action)}")
        lines += [f"- **Option**: {code(action.option)}"] if action.option else []
        lines += _causes(action)
    if not analysis.runs:
        figures = ""
    else:
        head = ["", *(f"{run.label} ({ks_of(run.ks)})" for run in analysis.runs)]
        figures = table(head, figure_rows(analysis.runs))
    deepest = max((run.k for run in analysis.runs), default=0)
    if not deepest:
        by_depth = ""
    else:
        rows = []
        for run in analysis.runs:
            for name, values in (
                ("accepted", run.acceptance.marginal),
                ("fed RMS", run.hidden.fed_rms),
                ("attention on the chain", run.attention.self_mass),
            ):
                shown = [number(v) for v in values or ()]
                rows.append([run.label, name, *shown, *([NOTHING] * (deepest - len(shown)))])
        by_depth = table(["run", "by depth", *map(str, range(1, deepest + 1))], rows)
    parts = [
        _quoted("Not everything was recorded:", analysis.losses),
        f"### {text(screen.headline)}",
        text(f"But: {screen.cause}") if screen.cause else "",
        "\n".join(lines),
        figures,
        by_depth,
        "\n".join(line for finding in analysis.other_findings for line in _finding(finding)),
        _quoted("Mind:", others),
        f"driftscope {__version__}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def code(raw: str) -> str:
    """Return an untrusted string as code to paste: between more backticks than it has in a row."""
    shown = " ".join(printable(raw).split())
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{fence} {shown} {fence}"


def sentences(raw: str) -> str:
    """Return untrusted sentences escaped, with what stands between two backticks as code to paste;
    without code if a backtick is left over."""
    parts = raw.split("`")
    if len(parts) % 2 == 0:
        return text(raw)
    return "".join(code(part) if at % 2 else _spaced(part) for at, part in enumerate(parts))


def _spaced(part: str) -> str:
    """Return text between two pieces of code with the spaces at its ends."""
    before, after = part[:1].isspace(), part[-1:].isspace()
    return f"{' ' * before}{text(part)}{' ' * (after and bool(part.strip()))}"


def text(raw: str) -> str:
    """Return an untrusted string escaped, so that it contains no markup, mention or link."""
    shown = _SPECIAL.sub(r"\\\1", " ".join(printable(raw).split()))
    return shown.replace("://", ":\u200b//").replace("@", "@\u200b")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of untrusted strings."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(
        f"| {' | '.join(cell if n == 1 else text(cell) for cell in line)} |"
        for n, line in enumerate(lines)
    )


def _finding(finding: Finding) -> list[str]:
    mark, who = text(f"{marked(finding.severity)}:"), text(listed(finding.runs))
    stated = f"{sentences(finding.statement)}. {sentences(finding.advice)}{_assumed(finding)}"
    return [f"- **{mark} {text(finding.title)}** ({who}): {stated}", *_causes(finding)]


def _causes(finding: Finding) -> list[str]:
    """List the causes to check, numbered below the finding, and those that are ruled out."""
    lines = []
    for at, cause in enumerate(finding.causes, start=1):
        evidence = f" ({text(cause.observed)})" if cause.observed else ""
        name = f"**{text(cause.cause)}**" if cause.supported else text(cause.cause)
        lines.append(f"  {at}. {name}{evidence}. Check: {sentences(cause.check)}")
    lines += [f"  - ruled out: {text(e.cause)} ({text(e.observed)})" for e in finding.ruled_out]
    return lines


def _assumed(finding: Finding) -> str:
    return f" Assumed: {text('; '.join(finding.assumed))}." if finding.assumed else ""


def _quoted(head: str, notes: Sequence[Finding]) -> str:
    lines = [f"> - {text(note.line)}" for note in notes]
    return "\n".join([f"> {head}", *lines]) if lines else ""
