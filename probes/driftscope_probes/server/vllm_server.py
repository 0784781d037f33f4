"""Replaces this process by vLLM's OpenAI-compatible server with the probe on."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from driftscope.boundary.file_output import make_private_directory
from driftscope.errors import ProbeError, TraceError, UsageError
from driftscope.trace.format.control_file import Change, ControlValueError, share_of
from driftscope.trace.format.manifest import MANIFEST
from driftscope.trace.write.run_directory import check_writable
from driftscope_probes.base.settings import (
    DISABLE,
    STRICT,
    fix_run_directory,
    is_strict,
    settings_from,
    sinks_of,
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The probe settings that `driftscope serve` sets.

    `every`, `budget` and `labels` default to None: the environment's value applies. Raises
    ControlValueError for a value that cannot be used.
    """

    trace: Path
    every: int | None = None
    budget: str | None = None
    """Share as text, such as "1%"."""
    labels: tuple[str, ...] | None = None
    sink_tokens: str | None = None
    """Sink set as text, such as "4", "0,1,17" or "auto"."""
    token_ids: bool = False
    otlp: str | None = None
    """URL of an OpenTelemetry collector."""
    prometheus: str | None = None
    """Port, or host:port, at which Prometheus scrapes are answered."""

    def __post_init__(self) -> None:
        share = None if self.budget is None else share_of(self.budget)
        Change(every=self.every, budget=share, labels=self.labels)
        if self.sink_tokens is not None:
            _check_sinks(self.sink_tokens)

    def environment(self) -> dict[str, str]:
        """Return the settings as DRIFTSCOPE_* variables."""
        rate = None if self.every is None else str(self.every)
        values = {
            "TRACE": str(self.trace),
            "EVERY": rate if self.budget is None else "",
            "BUDGET": self.budget,
            "LABELS": None if self.labels is None else ",".join(self.labels),
            "SINK_TOKENS": self.sink_tokens,
            "TOKEN_IDS": "1" if self.token_ids else None,
            "OTLP": self.otlp,
            "PROMETHEUS": self.prometheus,
        }
        return {f"DRIFTSCOPE_{name}": value for name, value in values.items() if value is not None}


def _check_sinks(value: str) -> None:
    try:
        sinks_of(value)
    except ControlValueError as error:
        raise ControlValueError(f"sink-tokens: {error}") from error


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
    if not _given(options, "--speculative-config", "-sc", "--spec-", "--config"):
        raise UsageError(
            "no --speculative-config: without a drafter there is nothing to record; example: "
            '--speculative-config \'{"method": "eagle3", "model": "DRAFTER", '
            '"num_speculative_tokens": 4}\''
        )
    named = replace(recording, trace=with_drafter(recording.trace, options))
    os.environ.update(named.environment())
    os.environ.setdefault(STRICT, "1")  # a person watches this start
    settings = settings_from(os.environ)
    if settings is None:
        _say(f"the probe is off ({DISABLE} is set): nothing is recorded")
    else:
        fix_run_directory(settings)
        _announce(Path(os.environ["DRIFTSCOPE_TRACE"]))
        options = [*options, "--middleware", LABEL_HEADER]
    if control:
        os.environ[DEV_MODE] = "1"
        _say(OPENED)
    command = server_command(model, options)
    os.execv(command[0], command)  # noqa: S606 the Python of this environment, no shell


def _announce(run: Path) -> None:
    if (run / MANIFEST).exists():
        raise ProbeError(f"{run}: already holds a run; give --trace a new directory")
    if is_strict(os.environ):
        _make(run)
    _say(f"will record to {run} once the drafter is loaded")
    _say(f"while it serves, run: driftscope probe status {run}")
    _say(f"end it with Ctrl-C, then run: driftscope analyze {run}")


def _make(run: Path) -> None:
    """Create the run directory now: whether it can be written shows before vLLM's start, and a
    start that fails leaves a directory that says so."""
    try:
        make_private_directory(run)
        check_writable(run)
    except OSError as error:
        raise TraceError(
            f"{run}: cannot write a trace there ({error.strerror or error}); give --trace a "
            "writable directory"
        ) from error


def _say(words: str) -> None:
    sys.stderr.write(f"driftscope: {words}\n")
    sys.stderr.flush()


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
    drain = [] if _given(options, "--shutdown-timeout") else ["--shutdown-timeout", DRAIN_S]
    return [sys.executable, *server, *options, *drain]


def _given(options: Sequence[str], *names: str) -> bool:
    """Return whether an option is among those for vLLM, spelt with dashes or underscores."""
    spelt = [option.partition("=")[0].replace("_", "-") for option in options]
    return any(option.startswith(names) for option in spelt)
