"""Runs a command of driftscope in this process: a process for each case takes seconds to start."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from dataclasses import dataclass
from unittest.mock import patch

from driftscope.cli.app import main


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str


def in_process(*arguments: object) -> Done:
    """Run `driftscope ARGUMENTS` as its entry point does, and return what it printed."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        patch.object(sys, "argv", ["driftscope", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    assert isinstance(code, int)
    return Done(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())
