"""The `driftscope findings` command."""

from __future__ import annotations

from typing import Annotated

import typer


def findings(
    as_json: Annotated[bool, typer.Option("--json", help="Print the catalogue as JSON.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print it as the page docs/findings.md.")
    ] = False,
) -> None:
    """List the findings that driftscope can make in a run: meaning, thresholds and their
    sources."""
    from driftscope.errors import UsageError
    from driftscope_reports.terminal import findings_table

    if as_json and markdown:
        raise UsageError("--json, --markdown: give one of the two")
    if as_json:
        typer.echo(findings_table.to_json(), nl=False)
    elif markdown:
        typer.echo(findings_table.to_markdown(), nl=False)
    else:
        findings_table.show()
