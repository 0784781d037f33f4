"""SGLang calls `register` in every process: it costs nothing where the probe is off, and a version
that was not tested is refused with one line."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from driftscope.errors import ProbeError
from driftscope_probes.sglang.plugin import TESTED, check_version

REGISTER = "import os, sys; from driftscope_probes.sglang.plugin import register; register(); "


def _python(
    code: str, path: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DRIFTSCOPE_")}
    places = [str(path), *sys.path] if path else sys.path
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", REGISTER + code],
        env={**clean, "PYTHONPATH": os.pathsep.join(places), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _installed(folder: Path, version: str) -> Path:
    """Return a folder in which an SGLang of that version seems to be installed."""
    info = folder / f"sglang-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    return folder


@pytest.mark.process
@pytest.mark.parametrize(
    "environ", [{}, {"DRIFTSCOPE_TRACE": "/runs/a", "DRIFTSCOPE_DISABLE": "1"}]
)
def test_off_it_imports_and_hooks_nothing(environ: dict[str, str]) -> None:
    found = _python("print({'torch', 'wrapt', 'pyarrow', 'sglang'} & set(sys.modules))", **environ)
    assert (found.returncode, found.stdout, found.stderr) == (0, "set()\n", "")


@pytest.mark.process
@pytest.mark.parametrize("version", ["0.5.9", "0.6.0"])
def test_an_unknown_version_costs_one_line(tmp_path: Path, version: str) -> None:
    path = _installed(tmp_path / "site", version)
    found = _python("print('wrapt' in sys.modules)", path, DRIFTSCOPE_TRACE=str(tmp_path / "run"))
    assert (found.returncode, found.stdout) == (0, "False\n")
    (line,) = found.stderr.splitlines()
    assert f"SGLang {version} is not supported" in line and TESTED[0] in line
    assert not (tmp_path / "run").exists()


@pytest.mark.process
def test_a_tested_version_is_hooked_when_it_is_imported(tmp_path: Path) -> None:
    path = _installed(tmp_path / "site", TESTED[0])
    found = _python("print('sglang' in sys.modules)", path, DRIFTSCOPE_TRACE=str(tmp_path / "run"))
    assert (found.returncode, found.stdout, found.stderr) == (0, "False\n", "")


@pytest.mark.process
def test_strict_ends_the_process(tmp_path: Path) -> None:
    path = _installed(tmp_path / "site", "0.5.9")
    trace = str(tmp_path / "run")
    found = _python("print('served')", path, DRIFTSCOPE_TRACE=trace, DRIFTSCOPE_STRICT="1")
    assert found.returncode == 1 and not found.stdout and "not supported" in found.stderr


def test_local_builds_of_a_tested_version_are_known() -> None:
    check_version(f"{TESTED[0]}+cpu")
    with pytest.raises(ProbeError, match="doctor --engine sglang"):
        check_version("0.5.24")


def test_entry_point_is_installed() -> None:
    text = (Path(__file__).parents[4] / "probes/pyproject.toml").read_text()
    assert 'entry-points."sglang.srt.plugins"' in text
    for entry in importlib.metadata.entry_points(group="sglang.srt.plugins", name="driftscope"):
        assert entry.value == "driftscope_probes.sglang.plugin:register"
