"""The command line in this process: what it prints, and its exit code."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import warnings
from pathlib import Path
from unittest import mock

from driftscope.cli.app import main


def run_command(*arguments: object, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `driftscope` with these arguments in `cwd`, with warnings as errors.

    Variables of driftscope and vLLM are taken from `environ` alone. Starting a process for each of
    hundreds of commands takes minutes; `tests/commands/test_app.py` starts some.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
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
        warnings.simplefilter("error")
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    assert isinstance(code, int)
    printed, said = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(argv, code, printed, said)
