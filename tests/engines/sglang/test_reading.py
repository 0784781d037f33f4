"""A run recorded in SGLang is read like any other: analysis, JSON and the HTML report."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.sglang_process.job import VERSION, K

from engines.sglang.conftest import Outcomes

pytestmark = [pytest.mark.sglang, pytest.mark.nightly]
ANALYZE = (sys.executable, "-m", "driftscope", "analyze")


@pytest.fixture(scope="module")
def written(sglang_outcome: Outcomes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the report of a run as page and as JSON."""
    folder: Path = tmp_path_factory.mktemp("report")
    run = sglang_outcome("eagle31, batch of 8").run
    for name, options in {"report.html": (), "report.json": ("--format", "json")}.items():
        subprocess.run(
            [*ANALYZE, run, "-q", *options, "-o", folder / name], check=True, timeout=300
        )
    return folder


def test_the_report_names_the_engine(written: Path) -> None:
    (run,) = json.loads((written / "report.json").read_text())["runs"]
    assert (run["manifest"]["engine"], run["manifest"]["engine_version"]) == ("sglang", VERSION)


def test_the_report_has_every_depth(written: Path) -> None:
    (run,) = json.loads((written / "report.json").read_text())["runs"]
    assert run["rounds"] > 100
    assert len(run["acceptance"]["marginal"]) == K


def test_the_page_is_whole(written: Path) -> None:
    page = (written / "report.html").read_text()
    assert f"sglang {VERSION}" in page and page.rstrip().endswith("</html>")
