"""Start of an engine's server with the probe on, for any engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from driftscope.boundary.file_output import make_private_directory
from driftscope.errors import ProbeError, TraceError
from driftscope.trace.format.control_file import Change, ControlValueError, share_of
from driftscope.trace.format.manifest import MANIFEST
from driftscope.trace.write.run_directory import check_writable
from driftscope_probes.settings import (
    DISABLE,
    STRICT,
    fix_run_directory,
    is_strict,
    settings_from,
    sinks_of,
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


def switch_on(recording: Recording) -> bool:
    """Set the probe's variables in this process's environment; return whether it will record.

    Sets DRIFTSCOPE_STRICT=1 unless it is set. Raises ProbeError if the run directory already holds
    a run, and TraceError if it cannot be written.
    """
    os.environ.update(recording.environment())
    os.environ.setdefault(STRICT, "1")  # a person watches this start
    settings = settings_from(os.environ)
    if settings is None:
        say(f"the probe is off ({DISABLE} is set): nothing is recorded")
        return False
    fix_run_directory(settings)
    _announce(Path(os.environ["DRIFTSCOPE_TRACE"]))
    return True


def _announce(run: Path) -> None:
    if (run / MANIFEST).exists():
        raise ProbeError(f"{run}: already holds a run; give --trace a new directory")
    if is_strict(os.environ):
        _make(run)
    say(f"will record to {run} once the drafter is loaded")
    say(f"while it serves, run: driftscope probe status {run}")
    say(f"end it with Ctrl-C, then run: driftscope analyze {run}")


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


def say(words: str) -> None:
    """Print one line to stderr."""
    sys.stderr.write(f"driftscope: {words}\n")
    sys.stderr.flush()


def given(options: Sequence[str], *names: str) -> bool:
    """Return whether an option is among those for the engine, spelt with dashes or
    underscores."""
    spelt = [option.partition("=")[0].replace("_", "-") for option in options]
    return any(option.startswith(names) for option in spelt)
