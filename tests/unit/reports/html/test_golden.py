"""Same trace, same bytes: the page of a committed trace, part by part, as when last looked at.

`python tests/unit/reports/html/test_golden.py` writes the file anew; look at the pages of
`make gallery` before committing it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import driftscope
from driftscope.pipeline import Inputs, analyze
from driftscope_reports.html.document import to_html

GOLDEN = Path(__file__).parent / "data" / "page.json"
TRACE = Path(__file__).parents[4] / "reports" / "gallery" / "traces" / "server"
_PART = re.compile(r"<(section|script|style|header|footer)\b[^>]*>")
_ID = re.compile(r' id="([a-z]+)"')
_LONG = re.compile(r"-?\d+\.\d{6,}(?:e[+-]?\d+)?")
"""Numbers whose last digits are the platform's."""


def _page() -> str:
    analysis = analyze(Inputs(sources=[TRACE], labels=["server"]))
    return to_html(analysis, command="driftscope analyze server")


@pytest.fixture(scope="module")
def page() -> str:
    return _page()


def parts(page: str) -> dict[str, str]:
    """A digest of each part of the page, in order, from its opening tag to that of the next."""
    page = page.replace(f"driftscope {driftscope.__version__}", "driftscope")
    page = _LONG.sub(lambda found: f"{float(found[0]):.6g}", page)
    starts = [(m.start(), f[1] if (f := _ID.search(m[0])) else m[1]) for m in _PART.finditer(page)]
    ends = [*(at for at, _ in starts[1:]), len(page)]
    return {
        f"{n:02d} {name}": hashlib.sha256(page[at:end].encode()).hexdigest()[:16]
        for n, ((at, name), end) in enumerate(zip(starts, ends, strict=True))
    }


def test_every_part_is_as_it_was(page: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert {"verdict", "drift", "where", "figures"} <= {n.split()[1] for n in golden}
    assert parts(page) == golden


@pytest.mark.process
def test_another_process_writes_the_same_bytes(page: str, tmp_path: Path) -> None:
    """With another order of hashes, and from another folder."""
    code = (
        "from pathlib import Path; from driftscope.pipeline import Inputs, analyze; "
        "from driftscope_reports.html.document import to_html; "
        f"Path('page.html').write_text(to_html(analyze(Inputs(sources=[Path({str(TRACE)!r})],"
        " labels=['server'])), command='driftscope analyze server'), encoding='utf-8')"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page


if __name__ == "__main__":
    made = _page()
    GOLDEN.write_text(json.dumps(parts(made), indent=1) + "\n")
