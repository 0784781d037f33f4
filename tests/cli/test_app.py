"""Help and version answer at once; what is not understood is a usage error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.hostile.texts import TEXTS

from driftscope.cli import app
from driftscope.errors import DriftscopeError

Driftscope = Callable[..., "subprocess.CompletedProcess[str]"]
COMMANDS = ("demo", "analyze", "doctor", "serve", "probe", "export", "dashboards", "watch")
HEAVY = {
    "torch",
    "vllm",
    "plotly",
    "pandas",
    "pyarrow",
    "numpy",
    "transformers",
    "wrapt",
    "opentelemetry",
    "prometheus_client",
    "grpc",
}


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], *([c, "-h"] for c in COMMANDS), ["probe", "set", "-h"]]
)
def test_help_and_version_import_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "from driftscope.cli.app import main\n"
        "try:\n main()\n"
        "except SystemExit as end:\n code = end.code\n"
        f"print(json.dumps([code or 0, sorted({HEAVY!r} & set(sys.modules))]), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert json.loads(done.stderr) == [0, []]
    assert done.stdout


def test_help_names_every_command_and_the_exit_codes(driftscope: Driftscope) -> None:
    done = driftscope("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert command in done.stdout
    words = " ".join(done.stdout.split()).lower()
    for code in ("0", "1", "2", "4"):
        assert code in words
    assert "usage" in words


def test_version(driftscope: Driftscope, version: str) -> None:
    done = driftscope("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"driftscope {version}\n", "")


@pytest.mark.parametrize(
    "arguments", [["analyse"], ["--no-such-option"], ["doctor", "extra"], ["serve"], ["analyze"]]
)
def test_what_is_not_understood_exits_2(driftscope: Driftscope, arguments: list[str]) -> None:
    done = driftscope(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Error" in done.stderr


def test_without_a_command_it_shows_help(driftscope: Driftscope) -> None:
    done = driftscope()
    assert done.returncode == 2
    assert "analyze" in done.stdout + done.stderr


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_an_error_is_one_line_that_steers_no_terminal(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise DriftscopeError(f"runs/{text}: cannot be read")

    monkeypatch.setattr(app, "app", fails)
    with pytest.raises(SystemExit) as ended:
        app.main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("driftscope: error: runs/") and err.rstrip("\n").isprintable()
