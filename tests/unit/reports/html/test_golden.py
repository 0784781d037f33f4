"""Same trace, same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from driftscope.pipeline import Inputs, analyze
from driftscope_reports.html.document import to_html

TRACE = Path(__file__).parents[4] / "reports" / "gallery" / "traces" / "server"


@pytest.mark.process
def test_another_process_writes_the_same_bytes(tmp_path: Path) -> None:
    """With another order of hashes, and from another folder."""
    code = (
        "from pathlib import Path; from driftscope.pipeline import Inputs, analyze; "
        "from driftscope_reports.html.document import to_html; "
        f"Path('page.html').write_text(to_html(analyze(Inputs(sources=[Path({str(TRACE)!r})],"
        " labels=['server'])), command='driftscope analyze server'), encoding='utf-8')"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    analysis = analyze(Inputs(sources=[TRACE], labels=["server"]))
    page = to_html(analysis, command="driftscope analyze server")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
