"""The command line in this process: exit code, output, and the form of an error."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn
from unittest import mock

from driftscope.cli.app import main

Driftscope = Callable[..., "subprocess.CompletedProcess[str]"]
"""A fixture that runs `driftscope` with the arguments that it is given."""


def run_command(
    *arguments: object,
    cwd: Path = Path(),
    warned: Literal["error", "ignore"] = "error",
    **environ: str,
) -> subprocess.CompletedProcess[str]:
    """Run `driftscope` with these arguments in `cwd`, with warnings as errors or ignored.

    Variables of driftscope and vLLM are taken from `environ` alone. Starting a process for each of
    hundreds of commands takes minutes; `tests/commands/test_app.py` starts some.
    """
    out, err = (
        io.TextIOWrapper(io.BytesIO(), "utf-8", errors, write_through=True)
        for errors in ("strict", "backslashreplace")
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DRIFTSCOPE_", "VLLM_"))}
    variables = {**kept, "NO_COLOR": "1", **environ}
    argv = ["driftscope", *map(str, arguments)]
    code: object = 0
    with (
        mock.patch.dict(os.environ, variables, clear=True),
        mock.patch.object(sys, "argv", argv),
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter(warned)
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    assert isinstance(code, int)
    printed, said = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(argv, code, printed, said)


def run_process(
    *command: object,
    cwd: Path = Path(),
    timeout_s: float = 120,
    encoding: str | None = None,
    **environ: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, which imports what this one does.

    Variables of driftscope, vLLM and Triton are taken from `environ` alone.
    """
    others = ("DRIFTSCOPE_", "VLLM_", "TRITON_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    path = os.pathsep.join(sys.path)
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**kept, "PYTHONPATH": path, "NO_COLOR": "1", **environ},
        capture_output=True,
        text=True,
        encoding=encoding,
        timeout=timeout_s,
        check=False,
    )


def run_python(
    *arguments: object, path: Sequence[Path] = (), **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python in a process, with `path` before the path of this one."""
    before = os.pathsep.join([*map(str, path), *sys.path])
    return run_process(sys.executable, *arguments, PYTHONPATH=before, **more)


def strict_json(text: str) -> Any:
    """Parse JSON as a parser does that knows no NaN."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def assert_fails(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """Fail unless one clear line is on stderr, nothing on stdout, and the exit code is `code`."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("driftscope: error: ")
    for word in words:
        assert word in line


def analyze_json(run: Path) -> subprocess.CompletedProcess[str]:
    """Run `driftscope analyze RUN --json -`; the report lies beside the run."""
    return run_command("analyze", run, "--json", "-o", run.parent / "analyzed.html")


def probe_answer(*arguments: str) -> dict[str, Any]:
    """Return the JSON document of `driftscope probe`, which must succeed."""
    done = run_command("probe", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
