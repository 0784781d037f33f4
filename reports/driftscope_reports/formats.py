"""Write a report in each of its formats, atomically, so that a reader never sees part of it."""

from __future__ import annotations

from pathlib import Path

from driftscope.boundary.files import write_file
from driftscope.errors import UsageError
from driftscope.json_report import to_json
from driftscope.pipeline import Analysis


def write(analysis: Analysis, form: str, path: Path, *, command: str | None = None) -> list[Path]:
    """Write `analysis` as "html", "json" or "markdown"; return the files.

    Raises UsageError for another format, OSError.
    """
    if form == "html":
        # Templates and plotly are imported only for a page.
        from driftscope_reports.html import to_html

        text = to_html(analysis, command=command)
    elif form == "json":
        text = to_json(analysis)
    elif form == "markdown":
        from driftscope_reports.markdown import to_markdown

        text = to_markdown(analysis)
    else:
        raise UsageError(f"--format {form}: unknown; use html, json or markdown")
    write_text(path, text)
    return [path]


def check_folder(path: Path) -> None:
    """Raise UsageError if the folder of a file to write is missing: it is not made, because a typo
    would then hide the report."""
    if not path.parent.is_dir():
        raise UsageError(f"{path}: {path.parent} is no folder; make it first")


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, see `driftscope.boundary.files.write_file`. Raises
    UsageError if its folder is missing, and OSError."""
    check_folder(path)
    write_file(path, text.encode("utf-8", "replace"))
