"""Writer of the report in each of its formats."""

from __future__ import annotations

from pathlib import Path

from driftscope.errors import UsageError
from driftscope.json_report.report import to_json
from driftscope.pipeline import Analysis
from driftscope_reports.html.document import pictures, to_html
from driftscope_reports.markdown import to_markdown
from driftscope_reports.report_files import write_bytes, write_text


def write(analysis: Analysis, form: str, path: Path, *, command: str | None = None) -> list[Path]:
    """Write `analysis` as "html", "json", "markdown" or "png"; return the files.

    PNG writes a folder with every picture. Raises UsageError for another format, OSError.
    """
    if form == "png":
        return _pictures(analysis, path)
    texts = {
        "html": lambda: to_html(analysis, command=command),
        "json": lambda: to_json(analysis),
        "markdown": lambda: to_markdown(analysis),
    }
    if form not in texts:
        raise UsageError(f"--format {form}: unknown; use html, json, markdown or png")
    write_text(path, texts[form]())
    return [path]


def _pictures(analysis: Analysis, folder: Path) -> list[Path]:
    from driftscope_reports.png import to_png

    out = []
    for picture in pictures(analysis):
        path = folder / f"{picture.id}.png"
        write_bytes(path, to_png(picture))
        out.append(path)
    return out
