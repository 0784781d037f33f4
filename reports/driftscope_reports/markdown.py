"""The report as Markdown for a pull request: verdict, figures, findings; no picture, no HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence

from driftscope.analysis.number_words import NOTHING, ks_of, listed, number
from driftscope.findings.finding import Finding
from driftscope.findings.rules_data import LOSS, QualityWarning, losses_among
from driftscope.pipeline import Analysis
from driftscope.version import __version__
from driftscope_reports.terminal.run_table import figure_rows, marked, plain

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!()])")


def to_markdown(analysis: Analysis) -> str:
    """Return the report as GitHub-flavoured Markdown, with a newline at the end."""
    parts = [_losses(analysis), f"### {text(analysis.verdict[0])}", _claims(analysis)]
    parts += [_figures(analysis), _by_depth(analysis)]
    parts += [_findings(analysis), _warnings(analysis)]
    parts.append(f"driftscope {__version__}")
    return "\n\n".join(part for part in parts if part) + "\n"


def _claims(analysis: Analysis) -> str:
    """Return the lines of the first screen as a list."""
    screen = analysis.screen
    if screen is None:
        return text(" ".join(analysis.verdict[1:]))
    rows = [(name, text(" ".join(texts))) for name, texts in screen.titled()]
    rows.append(("What to do", text(screen.action.sentence)))
    if screen.action.option:
        rows.append(("Option", code(screen.action.option)))
    return "\n".join(f"- **{text(name)}**: {words}" for name, words in rows)


def code(raw: str) -> str:
    """Return an untrusted string as code to paste: between more backticks than it has in a row."""
    shown = " ".join(plain(raw).split())
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{fence} {shown} {fence}"


def text(raw: str) -> str:
    """Return an untrusted string escaped, so that it contains no markup, mention or link."""
    shown = _SPECIAL.sub(r"\\\1", " ".join(plain(raw).split()))
    return shown.replace("://", ":\u200b//").replace("@", "@\u200b")


def _figures(analysis: Analysis) -> str:
    if not analysis.runs:
        return ""
    head = ["", *(f"{run.label} ({ks_of(run.ks)})" for run in analysis.runs)]
    return table(head, figure_rows(analysis.runs))


def _by_depth(analysis: Analysis) -> str:
    deepest = max((run.k for run in analysis.runs), default=0)
    if not deepest:
        return ""
    rows = []
    for run in analysis.runs:
        for name, values in (
            ("accepted", run.acceptance.marginal),
            ("fed RMS", run.hidden.fed_rms),
            ("attention on the chain", run.attention.self_mass),
        ):
            shown = [number(v) for v in values or ()]
            rows.append([run.label, name, *shown, *([NOTHING] * (deepest - len(shown)))])
    return table(["run", "by depth", *map(str, range(1, deepest + 1))], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of untrusted strings."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(
        f"| {' | '.join(cell if n == 1 else text(cell) for cell in line)} |"
        for n, line in enumerate(lines)
    )


def _findings(analysis: Analysis) -> str:
    lines = []
    for finding in analysis.findings:
        mark = f"{marked(finding.severity)}:"
        who = text(listed(finding.runs))
        lines.append(
            f"- **{text(mark)} {text(finding.title)}** ({who}): {text(finding.statement)}. "
            f"{text(finding.advice)}{_assumed(finding)}"
        )
        lines += _causes(finding)
    return "\n".join(lines)


def _causes(finding: Finding) -> list[str]:
    """List the causes to check, numbered below the finding, and those that are ruled out."""
    lines = []
    for at, each in enumerate(finding.causes, start=1):
        seen = f" ({text(each.seen)})" if each.seen else ""
        name = f"**{text(each.cause)}**" if each.supported else text(each.cause)
        lines.append(f"  {at}. {name}{seen}. Check: {text(each.check)}")
    lines += [f"  - ruled out: {text(e.cause)} ({text(e.seen)})" for e in finding.ruled_out]
    return lines


def _assumed(finding: Finding) -> str:
    return f" Assumed: {text('; '.join(finding.assumed))}." if finding.assumed else ""


def _losses(analysis: Analysis) -> str:
    return _quoted("Not everything was recorded:", losses_among(analysis.warnings))


def _warnings(analysis: Analysis) -> str:
    return _quoted("Mind:", [each for each in analysis.warnings if each.id != LOSS])


def _quoted(head: str, warnings: Sequence[QualityWarning]) -> str:
    lines = [f"> - {text(warning.run)}: {text(warning.message)}" for warning in warnings]
    return "\n".join([f"> {head}", *lines]) if lines else ""
