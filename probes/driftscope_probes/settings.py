"""The probe's settings, read from environment variables."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftscope.errors import SettingError, TelemetryError
from driftscope.telemetry import settings as telemetry
from driftscope.trace.control import MAX_EVERY, ControlValueError, ProbeChange, share_of
from driftscope.vocabulary import SINK_DEFAULT, SINK_GIVEN, SINK_SOUGHT


def suggestion(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return "; did you mean X?" for the most similar known name, or "" if none is similar.

    All names begin with `prefix`, which does not make them similar.
    """
    import difflib  # seldom needed, and this runs in every process of an engine

    short = [other.removeprefix(prefix) for other in known]
    near = difflib.get_close_matches(name.removeprefix(prefix), short, n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


DEFAULT_SINK_TOKENS = 4
"""Number of initial tokens that hold the sink in StreamingLLM (arXiv 2309.17453)."""
MAX_SINK_TOKENS = 4096
AUTO = "auto"
DEFAULT_MAX_MB = 2048
DEFAULT_DISTANCE_EVERY = 16
"""A chain's attention by distance takes more bytes than the rest of its row. With one chain in
sixteen, a recorded round takes at most 190 bytes (K = 8, one layer; measured in
`tests/unit/trace/test_segments.py`)."""
IN_GRAPH, EAGER, SHADOW = RECORDINGS = ("in-graph", "eager", "shadow")
RUN_ID = "DRIFTSCOPE_RUN_ID"
"""Variable that the processes of one start use to recognise each other; not a setting."""
REQUEST_KEY = "DRIFTSCOPE_REQUEST_KEY"
"""Variable with the key that all processes of one start use to hash request ids and prompts: 32 hex
digits, never written to a file."""
KEY_BYTES = 16
CORES = "DRIFTSCOPE_CORES"
"""Variable with the cores of the first process of a start; not a setting."""
DISABLE = "DRIFTSCOPE_DISABLE"
STRICT = "DRIFTSCOPE_STRICT"
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"", "0", "false", "no", "off"}

DEFAULT_BUDGET = 0.01
"""Share of the time per output token that the probe may use: the share that users said they would
accept in production (issue 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One attribute per setting; its variable is DRIFTSCOPE_ and the name in capitals.

    The docstring below each is its row in docs/configuration.md.
    """

    trace: Path
    """Run directory to write; `{time}` and `{pid}` are replaced once, when the engine starts."""
    every: int | None = None
    """Record the chains of each n-th draft step; verification is always recorded."""
    budget: float = DEFAULT_BUDGET
    """Share of the time per output token that the probe may take: a governor sets the rate, unless
    `DRIFTSCOPE_EVERY` is given."""
    sink_tokens: int | tuple[int, ...] | None = DEFAULT_SINK_TOKENS
    """The sink set: the first n slots, or slots such as `0,1,17` (`7,` for one), or `auto`: search
    for it in the first chains."""
    sink_source: str = SINK_DEFAULT
    distance_every: int = DEFAULT_DISTANCE_EVERY
    """Record attention by distance and near misses for the first 64 recorded chains, then one in n;
    0: for none."""
    recording: str = "in-graph"
    """`in-graph`: the taps run inside CUDA graphs; `eager`: in recorded steps the drafter runs
    without graphs; `shadow`: in recorded steps it runs once more without graphs, only for the
    measurement."""
    token_ids: bool = False
    """Whether the drafted token ids are also recorded."""
    identifiers: bool = True
    """`off`: record request ids as keyed hashes, and no trace context."""
    prompt_digests: bool = True
    """`off`: record no keyed hash of prompts; repeated prompts and conversations are then not
    recognised."""
    regions: bool = True
    """`off`: do not record which kinds of text an answer consists of, see `Region`."""
    prompt_salt: str = ""
    """Secret text that keys the digests of prompts. Runs with the same text have the same digest
    for the same prompt."""
    deployment: str = ""
    """Name of a deployment whose parts are started one by one, such as on several machines: starts
    of one name that share the run directory record one run."""
    labels: tuple[str, ...] = ()
    """Record only the chains of requests with one of these workload labels, separated by commas."""
    max_mb: int = DEFAULT_MAX_MB
    """Largest total size of each process's record files, in MiB."""
    telemetry: telemetry.ExportSettings | None = None
    """Destinations of metrics while the probe records; None: none. OpenTelemetry's own variables
    apply in addition to `otlp`, `prometheus` and `metric_labels`."""

    @property
    def sink_slots(self) -> tuple[int, ...]:
        """Sink set, ascending; () until it has been determined."""
        given = self.sink_tokens
        return tuple(range(given)) if isinstance(given, int) else given or ()

    test_raise: str = ""
    """For tests only: every hook raises "before" or "after" its work; output stays the same."""


def settings_from(environ: Mapping[str, str]) -> Settings | None:
    """Return the settings in force, or None if the probe is off.

    Raises SettingError for a bad value, and TelemetryError.
    """
    if is_disabled(environ):
        return None
    values = _environment(environ)
    if not values.get("trace"):
        return None
    return Settings(
        trace=_folder(values["trace"]),
        **_sinks(values.get("sink_tokens")),
        **{name: parse(name, values[name]) for name, parse in _PARSERS.items() if name in values},
        telemetry=telemetry.settings_from({**environ, **_telemetry(values)}),
    )


def _folder(value: str) -> Path:
    try:
        return Path(value).expanduser().absolute()
    except (OSError, RuntimeError) as error:  # no home, or no working directory
        raise SettingError(f"DRIFTSCOPE_TRACE={value!r}: give a full path ({error})") from error


def is_disabled(environ: Mapping[str, str]) -> bool:
    """Return whether DRIFTSCOPE_DISABLE has any value but a false one. The switch that turns the
    probe off must work however it is spelt, and when no other setting can be read."""
    return environ.get(DISABLE, "").strip().lower() not in _FALSE


def is_strict(environ: Mapping[str, str]) -> bool:
    """Return whether a fault of the probe stops the engine's start; not if the value is unknown."""
    return environ.get(STRICT, "").strip().lower() in _TRUE


def telemetry_from(environ: Mapping[str, str]) -> telemetry.ExportSettings | None:
    """Return where metrics go if that can be read, even if other settings cannot be used."""
    if is_disabled(environ):
        return None
    try:
        return telemetry.settings_from({**environ, **_telemetry(_environment(environ))})
    except TelemetryError:
        return None


def fix_run_directory(settings: Settings) -> None:
    """Fix run directory, run id and request-id key for this process and its children."""
    now = time.strftime("%Y%m%d-%H%M%S")
    path = str(settings.trace).replace("{time}", now).replace("{pid}", str(os.getpid()))
    os.environ["DRIFTSCOPE_TRACE"] = path
    if settings.deployment:
        os.environ[RUN_ID] = _GIVEN + settings.deployment
    os.environ.setdefault(RUN_ID, uuid.uuid4().hex[:12])
    if not settings.identifiers or (settings.prompt_digests and not settings.prompt_salt):
        request_key()


_GIVEN = "="
"""Beginning of a run id that a deployment gives to all of its engines."""


def run_id_of(engine: str) -> str:
    """Return the run id of an engine of this start: that of the deployment or, since one process
    may start several engines, one that has the engine's own id."""
    start = os.environ.setdefault(RUN_ID, uuid.uuid4().hex[:12])
    if start.startswith(_GIVEN):
        return start.removeprefix(_GIVEN)
    return f"{start}-{engine}" if engine else start


@functools.cache
def engine_cores() -> frozenset[int] | None:
    """Return the cores available to the engine's processes; None if the system does not report
    them. The first process of a start reads them before the engine binds its threads, and tells its
    children."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    own_cores = os.sched_getaffinity(0)
    listed = os.environ.setdefault(CORES, ",".join(map(str, sorted(own_cores))))
    return frozenset(int(core) for core in listed.split(",") if _DIGITS.fullmatch(core)) | own_cores


def free_cpu_cores() -> frozenset[int]:
    """Return the cores that the calling thread is not bound to; all if it is bound to all."""
    cores = engine_cores()
    return frozenset() if cores is None else cores - os.sched_getaffinity(0) or cores


def prompt_key(settings: Settings) -> bytes:
    """Return the key of the digests of prompts: made from the salt or, without one, the key of this
    start. Raises what `request_key` raises."""
    if not settings.prompt_salt:
        return request_key()
    salt = settings.prompt_salt.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(salt, digest_size=KEY_BYTES, person=b"ds-salt").digest()


def request_key() -> bytes:
    """Return the key with which this start hashes request ids and, without a salt, prompts; create
    one if there is none.

    Raises SettingError for a key that is not hexadecimal or has the wrong length: a weak key would
    be no protection.
    """
    given = os.environ.setdefault(REQUEST_KEY, secrets.token_hex(KEY_BYTES))
    try:
        key = bytes.fromhex(given)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise SettingError(
            f"{REQUEST_KEY}: give {2 * KEY_BYTES} random hex digits, or leave it unset"
        )
    return key


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    values = {name: environ.get(f"DRIFTSCOPE_{name.upper()}") for name in NAMES}
    return {name: value for name, value in values.items() if value}


def _telemetry(values: Mapping[str, Any]) -> dict[str, str]:
    names = (telemetry.OTLP, telemetry.PROMETHEUS, telemetry.METRIC_LABELS)
    return {name: values.get(name.removeprefix("DRIFTSCOPE_").lower(), "") for name in names}


def _whole(low: int, high: int) -> Callable[[str, str], int]:
    def parse(name: str, value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise SettingError(
                f"DRIFTSCOPE_{name.upper()}={value!r}: give a whole number from {low} to {high}"
            )
        return number

    return parse


def _share(name: str, value: str) -> float:
    try:
        return share_of(value)
    except ControlValueError as error:
        raise SettingError(
            f"DRIFTSCOPE_{name.upper()}={value!r}: give a share such as 1% or 0.01"
        ) from error


_DIGITS = re.compile("[0-9]{1,9}")


def sinks_of(value: str) -> int | tuple[int, ...] | None:
    """Parse a sink set into the form of `Settings.sink_tokens`; raises ControlValueError."""
    if value.strip().lower() == AUTO:
        return None
    parts = [part.strip() for part in value.split(",")]
    several = len(parts) > 1
    right = all(_DIGITS.fullmatch(part) for part in parts if part or not several)
    slots = {int(part) for part in parts if part} if right else set()
    low, high = (0, MAX_SINK_TOKENS - 1) if several else (1, MAX_SINK_TOKENS)
    if not slots or not low <= min(slots) <= max(slots) <= high:
        raise ControlValueError(
            f"give the number of first slots, from 1 to {MAX_SINK_TOKENS}, or the slots "
            f"themselves, such as 0,1,17, or {AUTO}"
        )
    return tuple(sorted(slots)) if several else slots.pop()


def _sinks(value: str | None) -> dict[str, Any]:
    if value is None:
        return {}
    try:
        sinks = sinks_of(value)
    except ControlValueError as error:
        raise SettingError(f"DRIFTSCOPE_SINK_TOKENS={value!r}: {error}") from error
    return {"sink_tokens": sinks, "sink_source": SINK_SOUGHT if sinks is None else SINK_GIVEN}


def _labels(_: str, value: str) -> tuple[str, ...]:
    try:
        given = dict.fromkeys(filter(None, (label.strip() for label in value.split(","))))
        return ProbeChange(labels=tuple(given)).labels or ()
    except ControlValueError as error:
        reason = str(error).removeprefix("labels: ")
        raise SettingError(f"DRIFTSCOPE_LABELS={value!r}: {reason}") from error


def _one_of(*allowed: str) -> Callable[[str, str], str]:
    def parse(name: str, value: str) -> str:
        if value not in allowed:
            known = ", ".join(filter(None, allowed))
            raise SettingError(f"DRIFTSCOPE_{name.upper()}={value!r}: give one of {known}")
        return value

    return parse


def _flag(name: str, value: str) -> bool:
    text = str(value).strip().lower()
    if text not in _TRUE | _FALSE:
        raise SettingError(f"DRIFTSCOPE_{name.upper()}={value!r}: give 1 or 0")
    return text in _TRUE


_PARSERS: Mapping[str, Callable[[str, str], Any]] = {
    "every": _whole(1, MAX_EVERY),
    "budget": _share,
    "distance_every": _whole(0, MAX_EVERY),
    "labels": _labels,
    "recording": _one_of(*RECORDINGS),
    "token_ids": _flag,
    "identifiers": _flag,
    "prompt_digests": _flag,
    "regions": _flag,
    "prompt_salt": lambda _, value: value,
    "deployment": lambda _, value: value,
    "max_mb": _whole(1, 1 << 30),
    "test_raise": _one_of("", "before", "after"),
}
"""Setting -> function that parses its text. A setting that is not given keeps its default."""
NAMES = (
    *("trace", "sink_tokens", *_PARSERS),
    *("otlp", "prometheus", "metric_labels"),
)
