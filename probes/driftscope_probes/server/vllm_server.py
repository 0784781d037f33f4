"""Replaces this process by vLLM's OpenAI-compatible server with the probe on."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from driftscope.errors import ProbeError, UsageError
from driftscope_probes.server.recorded_start import Recording, given, say, switch_on
from driftscope_probes.server.speculation_options import with_drafter

DRAIN_S = "10"
"""Seconds that running requests get to finish after SIGINT, and the trace to close. vLLM's default
of 0 kills its processes at once, and the last rows are lost."""


LABEL_HEADER = "driftscope_probes.server.label_header.LabelHeader"
DEV_MODE = "VLLM_SERVER_DEV_MODE"
"""vLLM's switch for /collective_rpc and for many other endpoints."""
OPENED = (
    "--control opens vLLM's development endpoints: anyone who can reach this port can then call "
    "any method of the workers, put the engine to sleep, drop its caches and replace its weights, "
    "even without an API key; keep the port private, or control the probe through the run "
    "directory instead"
)


def replace_with_server(
    model: str, options: Sequence[str], recording: Recording, *, control: bool = False
) -> NoReturn:
    """Replace this process by vLLM's server for `model`; `control` opens its RPC to the workers.

    Sets DRIFTSCOPE_STRICT=1 unless it is set. Raises UsageError if vLLM would have nothing to
    record, ProbeError if vLLM is not installed or if the run directory already holds a run, and
    TraceError if that cannot be written.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ProbeError(
            "vLLM is not installed here: install driftscope into the environment of your vLLM"
        )
    if not given(options, "--speculative-config", "-sc", "--spec-", "--config"):
        raise UsageError(
            "no --speculative-config: without a drafter there is nothing to record; example: "
            '--speculative-config \'{"method": "eagle3", "model": "DRAFTER", '
            '"num_speculative_tokens": 4}\''
        )
    named = replace(recording, trace=with_drafter(recording.trace, options))
    if switch_on(named):
        options = [*options, "--middleware", LABEL_HEADER]
    if control:
        os.environ[DEV_MODE] = "1"
        say(OPENED)
    command = server_command(model, options)
    os.execv(command[0], command)  # noqa: S606 the Python of this environment, no shell


def server_command(model: str, options: Sequence[str]) -> list[str]:
    """Return the command that starts vLLM's OpenAI-compatible server with `options`.

    `vllm serve` needs the version of the distribution "vllm", which a CPU build does not have.
    """
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        server = ["-m", "vllm.entrypoints.openai.api_server", "--model", model]
    else:
        server = ["-m", "vllm.entrypoints.cli.main", "serve", model]
    drain = [] if given(options, "--shutdown-timeout") else ["--shutdown-timeout", DRAIN_S]
    return [sys.executable, *server, *options, *drain]
