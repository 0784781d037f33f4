"""Replaces this process by SGLang's server with the probe on."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from driftscope.errors import ProbeError, UsageError
from driftscope_probes.server.recorded_start import Recording, given, switch_on
from driftscope_probes.server.speculation_options import FIELD, file_name

ALGORITHM = "--speculative-algorithm"
DRAFTER = "--speculative-draft-model-path"


def replace_with_sglang(model: str, options: Sequence[str], recording: Recording) -> NoReturn:
    """Replace this process by SGLang's server for `model`.

    Sets DRIFTSCOPE_STRICT=1 unless it is set. Raises UsageError if SGLang would have nothing to
    record, ProbeError if it is not installed or if the run directory already holds a run, and
    TraceError if that cannot be written.
    """
    if importlib.util.find_spec("sglang") is None:
        raise ProbeError(
            "SGLang is not installed here: install driftscope-probe into the environment of your "
            "SGLang"
        )
    if not given(options, ALGORITHM, "--config"):
        raise UsageError(
            f"no {ALGORITHM}: without a drafter there is nothing to record; example: {ALGORITHM} "
            f"EAGLE3 {DRAFTER} DRAFTER --speculative-num-steps 4 --speculative-eagle-topk 1 "
            "--speculative-num-draft-tokens 5"
        )
    trace = Path(str(recording.trace).replace(FIELD, file_name(_drafter(options))))
    switch_on(replace(recording, trace=trace))
    command = server_command(model, options)
    os.execv(command[0], command)  # noqa: S606 the Python of this environment, no shell


def server_command(model: str, options: Sequence[str]) -> list[str]:
    """Return the command that starts SGLang's server with `options`."""
    return [sys.executable, "-m", "sglang.launch_server", "--model-path", model, *options]


def _drafter(options: Sequence[str]) -> str:
    """Return the drafter's name or path, or else the algorithm; "" if a file has both."""
    named: dict[str, str] = {}
    for at, option in enumerate(options):
        name, equals, value = option.partition("=")
        if not equals:
            value = options[at + 1] if at + 1 < len(options) else ""
        named[name.replace("_", "-")] = value
    return named.get(DRAFTER) or named.get(ALGORITHM, "").lower()
