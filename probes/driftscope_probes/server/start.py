"""Replaces this process by vLLM's or SGLang's server with the probe on."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from driftscope.boundary.files import make_private_directory
from driftscope.errors import ProbeError, TraceError, UsageError
from driftscope.trace.control import ControlValueError, ProbeChange, share_of
from driftscope.trace.manifest import MANIFEST
from driftscope.trace.runs import quoted
from driftscope.trace.writer_files import check_writable
from driftscope_probes.settings import (
    DISABLE,
    STRICT,
    fix_run_directory,
    is_strict,
    settings_from,
    sinks_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOptions:
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
        ProbeChange(every=self.every, budget=share, labels=self.labels)
        if self.sink_tokens is not None:
            try:
                sinks_of(self.sink_tokens)
            except ControlValueError as error:
                raise ControlValueError(f"sink-tokens: {error}") from error

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


def switch_on(recording: RecordingOptions) -> bool:
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
    run = Path(os.environ["DRIFTSCOPE_TRACE"])
    if (run / MANIFEST).exists():
        raise ProbeError(f"{run}: already holds a run; give --trace a new directory")
    if is_strict(os.environ):
        # Whether the directory can be written shows before the engine's start, and a start that
        # fails leaves a directory that says so.
        try:
            make_private_directory(run)
            check_writable(run)
        except OSError as error:
            raise TraceError(
                f"{run}: cannot write a trace there ({error.strerror or error}); give --trace a "
                "writable directory"
            ) from error
    say(f"will record to {run} once its models are loaded")
    say(f"while it serves, run: driftscope probe status {quoted(run)}")
    say(f"end it with Ctrl-C, then run: driftscope analyze {quoted(run)}")
    return True


def say(words: str) -> None:
    """Print one line to stderr."""
    sys.stderr.write(f"driftscope: {words}\n")
    sys.stderr.flush()


def has_option(options: Sequence[str], *names: str) -> bool:
    """Return whether an option is among those for the engine, spelt with dashes or
    underscores."""
    spelt = [option.partition("=")[0].replace("_", "-") for option in options]
    return any(option.startswith(names) for option in spelt)


FIELD = "{drafter}"
"""Part of a run directory's name that is replaced."""
NO_SPECULATION = "no-speculation"
"""Name in place of a drafter's if there is none."""
UNKNOWN = "drafter"
"""Name if the options leave the drafter to a file or to vLLM."""
MAX_CHARS = 40
_SPECULATIVE = "--speculative-config"
_SHORT = "-sc"
_PARTS = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}
"""vLLM's options for single fields of it (0.32)."""
_UNFIT = re.compile(r"[^A-Za-z0-9._]+")


def drafter_name(options: Sequence[str]) -> str:
    """Return the last part of the drafter's name or path, or else the method, as a file name."""
    has_option = speculation_of(options)
    return file_name(str(has_option.get("model") or has_option.get("method") or ""))


def file_name(model: str) -> str:
    """Return the last part of a model's name or path as a file name; UNKNOWN for ""."""
    name = model.rstrip("/").rpartition("/")[2]
    return _UNFIT.sub("-", name).strip("-.")[:MAX_CHARS] or UNKNOWN


def speculation_of(options: Sequence[str]) -> dict[str, object]:
    """Return the fields of the speculation config; {} if the options name none.

    It may be one JSON object, dotted options or options for single fields:
    `--speculative-config '{"model": "D"}'`, `-sc ...`, `--speculative-config.model D` and
    `--spec-model D`.
    """
    return dict(_speculation(options))


def option_values(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option's name, spelt with dashes, and its value."""
    for at, option in enumerate(options):
        name, equals, value = option.partition("=")
        if not equals:
            value = options[at + 1] if at + 1 < len(options) else ""
        yield name.replace("_", "-"), value


def _speculation(options: Sequence[str]) -> Iterator[tuple[str, object]]:
    for name, value in option_values(options):
        head, _, field = name.partition(".")
        if field := _PARTS.get(name, field.replace("-", "_")):
            if head in (_SPECULATIVE, _SHORT, *_PARTS):
                yield field, value
            continue
        if head not in (_SPECULATIVE, _SHORT):
            continue
        try:
            content = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{_SPECULATIVE} {value}: is not JSON ({error}); {_QUOTES}") from error
        if not isinstance(content, dict):
            raise UsageError(f"{_SPECULATIVE} {value}: is no JSON object; {_QUOTES}")
        yield from content.items()


_QUOTES = (
    "write it in single quotes, with double quotes inside: "
    '\'{"method": "eagle3", "model": "DRAFTER", "num_speculative_tokens": 4}\''
)


DRAIN_S = "10"
"""Seconds that running requests get to finish after SIGINT, and the trace to close. vLLM's default
of 0 kills its processes at once, and the last rows are lost."""


LABEL_HEADER = "driftscope_probes.server.label_header.LabelHeader"


ALGORITHM = "--speculative-algorithm"
DRAFTER = "--speculative-draft-model-path"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """An engine's server."""

    name: str
    named_by: tuple[str, ...]
    """Beginnings of the options that name a drafter."""
    example: str
    """Options that name one."""


_SERVERS = {
    "vllm": _Server(
        name="vLLM",
        named_by=(_SPECULATIVE, _SHORT, "--spec-"),
        example='--speculative-config \'{"method": "eagle3", "model": "DRAFTER", '
        '"num_speculative_tokens": 4}\'',
    ),
    "sglang": _Server(
        name="SGLang",
        named_by=(ALGORITHM,),
        example=f"{ALGORITHM} EAGLE3 {DRAFTER} DRAFTER --speculative-num-steps 4 "
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens 5",
    ),
}


def replace_process(
    engine: str,
    model: str,
    options: Sequence[str],
    recording: RecordingOptions,
    *,
    speculation: bool = True,
) -> NoReturn:
    """Replace this process by the server of `engine`, "vllm" or "sglang", for `model`.

    Sets DRIFTSCOPE_STRICT=1 unless it is set. Raises UsageError if `options` name no drafter
    although there is `speculation`, or one although there is none, ProbeError if the engine is not
    installed or if the run directory already holds a run, and TraceError if that cannot be written.
    """
    server = _SERVERS[engine]
    if importlib.util.find_spec(engine) is None:
        raise ProbeError(
            f"{server.name} is not installed here: install driftscope into the environment of your "
            f"{server.name}"
        )
    option = server.named_by[0]
    if not speculation and has_option(options, *server.named_by):
        raise UsageError(f"--no-speculation and {option} exclude each other: leave one out")
    if speculation and not has_option(options, *server.named_by, "--config"):
        raise UsageError(
            f"no {option}: name the drafter, or give --no-speculation to record the server without "
            f"one, for comparison; example: {server.example}"
        )
    name = NO_SPECULATION
    if speculation and engine == "vllm":
        name = drafter_name(options)
    elif speculation:
        named = dict(option_values(options))
        name = file_name(named.get(DRAFTER) or named.get(ALGORITHM, "").lower())
    trace = Path(str(recording.trace).replace(FIELD, name))
    on = switch_on(replace(recording, trace=trace))
    if engine == "vllm":
        command = vllm_command(model, [*options, "--middleware", LABEL_HEADER] if on else options)
    else:
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", model, *options]
    os.execv(command[0], command)  # noqa: S606 the Python of this environment, no shell


def vllm_command(model: str, options: Sequence[str]) -> list[str]:
    """Return the command that starts vLLM's OpenAI-compatible server with `options`.

    `vllm serve` needs the version of the distribution "vllm", which a CPU build does not have.
    """
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        server = ["-m", "vllm.entrypoints.openai.api_server", "--model", model]
    else:
        server = ["-m", "vllm.entrypoints.cli.main", "serve", model]
    drain = [] if has_option(options, "--shutdown-timeout") else ["--shutdown-timeout", DRAIN_S]
    return [sys.executable, *server, *options, *drain]
