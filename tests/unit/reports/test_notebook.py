"""The example notebook, run by a real kernel."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.process

CHECKOUT = Path(__file__).parents[3]


@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries
def test_the_example_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "examples").mkdir()
    shutil.copytree(CHECKOUT / "reports/gallery/traces", tmp_path / "reports/gallery/traces")
    book = nbformat.read(CHECKOUT / "examples/notebook.ipynb", as_version=4)
    NotebookClient(
        book, timeout=120, resources={"metadata": {"path": str(tmp_path / "examples")}}
    ).execute()
    said = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert not [output for output in said if output["output_type"] in ("error", "stream")]
    shown = book.cells[-1]["outputs"][0]["data"]
    assert shown["text/html"].startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    assert shown["text/plain"].startswith("<driftscope report: ")
    assert (tmp_path / "examples" / "report.html").stat().st_size > 800_000
