"""Writer of the report in each of its formats."""

from __future__ import annotations

from pathlib import Path

from driftscope.errors import UsageError
from driftscope.json_report import to_json
from driftscope.pipeline import Analysis
from driftscope_reports.html.document import to_html
from driftscope_reports.markdown import to_markdown
from driftscope_reports.report_files import write_text


def write(analysis: Analysis, form: str, path: Path, *, command: str | None = None) -> list[Path]:
    """Write `analysis` as "html", "json" or "markdown"; return the files.

    Raises UsageError for another format, OSError.
    """
    texts = {
        "html": lambda: to_html(analysis, command=command),
        "json": lambda: to_json(analysis),
        "markdown": lambda: to_markdown(analysis),
    }
    if form not in texts:
        raise UsageError(f"--format {form}: unknown; use html, json or markdown")
    write_text(path, texts[form]())
    return [path]
