"""The probe's settings: environment variables take precedence over the DRIFTSCOPE_CONFIG file."""

from __future__ import annotations

import os
import secrets
import time
import tomllib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftscope.boundary.bounds import MAX_JSON_BYTES
from driftscope.boundary.file_input import read_text
from driftscope.errors import ProbeError
from driftscope.telemetry.export import settings as telemetry
from driftscope.trace.format.control_file import MAX_EVERY, Change, ControlValueError, share_of
from driftscope.vocabulary import SINK_DEFAULT, SINK_GIVEN, SINK_SOUGHT

DEFAULT_SINK_TOKENS = 4
"""Number of initial tokens that hold the sink in StreamingLLM (arXiv 2309.17453)."""
MAX_SINK_TOKENS = 4096
AUTO = "auto"
DEFAULT_MAX_MB = 2048
IN_GRAPH, EAGER, SHADOW = RECORDINGS = ("in-graph", "eager", "shadow")
STRATEGIES = ("auto", "lse", "keys")
RUN_ID = "DRIFTSCOPE_RUN_ID"
"""Variable that the processes of one start use to recognise each other; not a setting."""
REQUEST_KEY = "DRIFTSCOPE_REQUEST_KEY"
"""Variable with the key that all processes of one start use to hash request ids: 32 hex digits,
never written to a file."""
KEY_BYTES = 16
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
    per_head: bool = False
    """Whether attention masses are also recorded for each head."""
    recording: str = "in-graph"
    """`in-graph`: CUDA graphs record the taps; `eager`: a recorded step's drafter runs without
    graphs; `shadow`: it runs once more without graphs, only to be measured."""
    strategy: str = "auto"
    """Attention masses: `lse` with the served kernel's own log-sum-exp (FlashAttention), `keys`
    from all keys, `auto` with `lse` where the kernel gives it."""
    token_ids: bool = False
    """Whether the drafted token ids are also recorded."""
    identifiers: bool = True
    """`off`: record request ids as keyed hashes, and no trace context."""
    labels: tuple[str, ...] = ()
    """Record only the chains of requests with one of these workload labels, separated by commas."""
    max_mb: int = DEFAULT_MAX_MB
    """Bound of each process's record files, in MiB."""
    telemetry: telemetry.Settings | None = None
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

    Raises ProbeError for a bad value.
    """
    if _flag("DISABLE", environ.get("DRIFTSCOPE_DISABLE", "")):
        return None
    values = {**_file(environ.get("DRIFTSCOPE_CONFIG", "")), **_environment(environ)}
    if not values.get("trace"):
        return None
    return Settings(
        trace=Path(values["trace"]).expanduser().absolute(),
        every=_number("every", values["every"], 1, MAX_EVERY) if "every" in values else None,
        budget=_share("budget", values.get("budget", DEFAULT_BUDGET)),
        per_head=_flag("per_head", values.get("per_head", "")),
        **_sinks(values.get("sink_tokens")),
        recording=_choice("recording", values.get("recording", RECORDINGS[0]), RECORDINGS),
        strategy=_choice("strategy", values.get("strategy", STRATEGIES[0]), STRATEGIES),
        token_ids=_flag("token_ids", values.get("token_ids", "")),
        identifiers=_flag("identifiers", values.get("identifiers", "on")),
        labels=_labels(values.get("labels", "")),
        max_mb=_number("max_mb", values.get("max_mb", DEFAULT_MAX_MB), 1, 1 << 30),
        telemetry=telemetry.settings_from({**environ, **_telemetry(values)}),
        test_raise=_choice("test_raise", values.get("test_raise", ""), ("", "before", "after")),
    )


def fix_run_directory(settings: Settings) -> None:
    """Fix run directory, run id and request-id key for this process and its children."""
    now = time.strftime("%Y%m%d-%H%M%S")
    path = str(settings.trace).replace("{time}", now).replace("{pid}", str(os.getpid()))
    os.environ["DRIFTSCOPE_TRACE"] = path
    os.environ.setdefault(RUN_ID, uuid.uuid4().hex[:12])
    if not settings.identifiers:
        request_key()


def request_key() -> bytes:
    """Return the key with which this start hashes request ids; create one if there is none.

    Raises ProbeError for a key that is not hexadecimal or has the wrong length: a weak key would be
    no protection.
    """
    given = os.environ.setdefault(REQUEST_KEY, secrets.token_hex(KEY_BYTES))
    try:
        key = bytes.fromhex(given)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ProbeError(
            f"{REQUEST_KEY}: give {2 * KEY_BYTES} random hex digits, or leave it unset"
        )
    return key


_NAMES = (
    "trace",
    "every",
    "budget",
    "per_head",
    "labels",
    "sink_tokens",
    "recording",
    "strategy",
    "token_ids",
    "identifiers",
    "max_mb",
    "otlp",
    "prometheus",
    "metric_labels",
    "test_raise",
)


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    found = {name: environ.get(f"DRIFTSCOPE_{name.upper()}") for name in _NAMES}
    return {name: value for name, value in found.items() if value}


def _file(name: str) -> dict[str, str]:
    if not name:
        return {}
    try:
        raw = tomllib.loads(read_text(name, limit=MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ProbeError(f"DRIFTSCOPE_CONFIG: {name} cannot be read as TOML ({error})") from error
    unknown = sorted(set(raw) - set(_NAMES))
    if unknown:
        raise ProbeError(
            f"DRIFTSCOPE_CONFIG: {name} has unknown settings {', '.join(unknown)}; "
            f"known are {', '.join(_NAMES)}"
        )
    if isinstance(labels := raw.get("labels"), list):
        raw["labels"] = ",".join(map(str, labels))
    if isinstance(sinks := raw.get("sink_tokens"), list):
        raw["sink_tokens"] = "".join(f"{slot}," for slot in sinks)
    return {key: str(value) for key, value in raw.items()}


def _telemetry(values: Mapping[str, Any]) -> dict[str, str]:
    names = (telemetry.OTLP, telemetry.PROMETHEUS, telemetry.METRIC_LABELS)
    return {name: values.get(name.removeprefix("DRIFTSCOPE_").lower(), "") for name in names}


def _number(name: str, value: object, low: int, high: int) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise ProbeError(
            f"DRIFTSCOPE_{name.upper()}={value!r}: give a whole number from {low} to {high}"
        )
    return number


def _share(name: str, value: object) -> float:
    try:
        return share_of(str(value))
    except ControlValueError as error:
        raise ProbeError(
            f"DRIFTSCOPE_{name.upper()}={value!r}: give a share such as 1% or 0.01"
        ) from error


def sinks_of(value: str) -> int | tuple[int, ...] | None:
    """Parse a sink set into the form of `Settings.sink_tokens`; raises ControlValueError."""
    if value.strip().lower() == AUTO:
        return None
    parts = [part.strip() for part in value.split(",")]
    several = len(parts) > 1
    slots = {int(part) for part in parts if part.isascii() and part.isdigit()}
    low, high = (0, MAX_SINK_TOKENS - 1) if several else (1, MAX_SINK_TOKENS)
    right = all(part.isascii() and part.isdigit() for part in parts if part or not several)
    if not slots or not right or not low <= min(slots) <= max(slots) <= high:
        raise ControlValueError(
            f"give the first how many slots, from 1 to {MAX_SINK_TOKENS}, or the slots themselves, "
            f"such as 0,1,17, or {AUTO}"
        )
    return tuple(sorted(slots)) if several else slots.pop()


def _sinks(value: str | None) -> dict[str, Any]:
    if value is None:
        return {}
    try:
        found = sinks_of(value)
    except ControlValueError as error:
        raise ProbeError(f"DRIFTSCOPE_SINK_TOKENS={value!r}: {error}") from error
    return {"sink_tokens": found, "sink_source": SINK_SOUGHT if found is None else SINK_GIVEN}


def _labels(value: str) -> tuple[str, ...]:
    try:
        given = dict.fromkeys(filter(None, (label.strip() for label in value.split(","))))
        return Change(labels=tuple(given)).labels or ()
    except ControlValueError as error:
        said = str(error).removeprefix("labels: ")
        raise ProbeError(f"DRIFTSCOPE_LABELS={value!r}: {said}") from error


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ProbeError(
            f"DRIFTSCOPE_{name.upper()}={value!r}: give one of {', '.join(filter(None, allowed))}"
        )
    return value


def _flag(name: str, value: str) -> bool:
    text = str(value).strip().lower()
    if text not in _TRUE | _FALSE:
        raise ProbeError(f"DRIFTSCOPE_{name.upper()}={value!r}: give 1 or 0")
    return text in _TRUE
