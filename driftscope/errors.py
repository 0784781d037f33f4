"""All exceptions that driftscope raises on purpose.

    DriftscopeError                 exit 1
    ├── TraceError                  a run directory or one of its files
    │   ├── NotATraceError          no run is there
    │   ├── DamagedTraceError       a file cannot be read
    │   ├── SchemaVersionError      written by a newer driftscope
    │   └── MixedTraceError         files that do not belong together
    ├── CheckpointError             a model folder that cannot be inspected
    ├── ProbeError                  the engine cannot be instrumented as asked
    │   ├── SettingError            a DRIFTSCOPE_* setting cannot be used
    │   └── UnknownDrafterError     only acceptance and timing of this drafter can be recorded
    ├── ControlError                a running probe cannot be reached, or does not do as asked
    ├── TelemetryError              telemetry cannot be sent as configured
    ├── PeerError                   a server gives no answer or a wrong one
    ├── NoDataError                 exit 4: a run without a single round
    ├── UnknownKindError            exit 5: input of a kind that driftscope does not know
    └── UsageError                  exit 2: an option has an unusable value

Each message is one line that states what is wrong, where, and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Input of a kind that is not known."""

    what: str
    """The input, in a few words."""
    instead: str
    """The consequence: what is done with the input."""
    recognised: Sequence[str] = ()
    not_recognised: Sequence[str] = ()
    nearest: str = ""
    """Nearest known kind, and what the input has and lacks of it; "" if none is near."""
    adding: str
    """How to have the kind known."""

    def __str__(self) -> str:
        """Return the answer in one sentence."""
        return f"{self.what} is of no known kind: {'; '.join((self.instead, *self.details))}"

    @property
    def details(self) -> Sequence[str]:
        """The parts of the sentence after its first words."""
        return tuple(self._details())

    def _details(self) -> Iterator[str]:
        if self.recognised:
            yield f"recognised: {', '.join(self.recognised)}"
        if self.not_recognised:
            yield f"not recognised: {', '.join(self.not_recognised)}"
        if self.nearest:
            yield f"nearest is {self.nearest}"
        yield f"to have it known: {self.adding}"


def nearest_kind(kinds: Iterable[tuple[str, Sequence[str]]], has: Callable[[str], bool]) -> str:
    """Return in words the kind of whose marks the input has the largest share, and of several the
    one with the most marks, with those that it has and lacks; "" if it has none of any kind.
    `kinds`: names, and marks."""
    best: tuple[float, int, str] = (0.0, 0, "")
    for name, marks in kinds:
        marks_met = [mark for mark in marks if has(mark)]
        absent = [mark for mark in marks if mark not in marks_met]
        lacks = f"lacks {', '.join(absent)}" if absent else "and differs otherwise"
        if marks_met:
            words = f"{name}: has {', '.join(marks_met)}, {lacks}"
            best = max(best, (len(marks_met) / len(marks), len(marks_met), words))
    return best[-1]


EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_GATE_FAILED = 3
EXIT_NO_DATA = 4
EXIT_UNKNOWN = 5
EXIT_INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended in good order, as in shells."""
MAX_MESSAGE = 2000
"""Largest number of characters of an error's message that are kept."""


class DriftscopeError(Exception):
    """Base class of every error raised on purpose; `exit_code` is the CLI's exit code.

    A message that quotes a long input is shortened in the middle to MAX_MESSAGE characters.
    """

    exit_code = EXIT_ERROR

    def __init__(self, message: str = "") -> None:
        super().__init__(_shortened(message))


def _shortened(message: str) -> str:
    if len(message) <= MAX_MESSAGE:
        return message
    left_out = len(message) - MAX_MESSAGE
    begin, end = message[: MAX_MESSAGE // 2], message[-(MAX_MESSAGE // 2) :]
    return f"{begin} ({left_out} characters left out) {end}"


class TraceError(DriftscopeError):
    """A run directory, or a file in it, cannot be used."""


class NotATraceError(TraceError):
    """The path contains no run."""


class DamagedTraceError(TraceError):
    """A file of the run cannot be read."""


class SchemaVersionError(TraceError):
    """The run was written with a newer major version of the trace schema."""


class MixedTraceError(TraceError):
    """Files or runs cannot be analysed together."""


class CheckpointError(DriftscopeError):
    """A folder holds no checkpoint that can be inspected, or one of its files is damaged."""


class ProbeError(DriftscopeError):
    """The engine cannot be instrumented as asked; raised at start-up only, never while serving."""


class SettingError(ProbeError):
    """A DRIFTSCOPE_* setting has a value that cannot be used."""


class UnknownDrafterError(ProbeError):
    """The inside of this drafter would be recorded incorrectly, so it is not recorded."""


class ControlError(DriftscopeError):
    """A running probe cannot be reached, or does not do what it was asked to do."""


class TelemetryError(DriftscopeError):
    """Telemetry cannot be sent as configured. In an engine this is raised at start-up only."""


class PeerError(DriftscopeError):
    """A server gives no answer, or not the answer that its protocol requires."""

    def __init__(self, url: str, why: str) -> None:
        """Build the message from `url`, given without user and password, and `why`."""
        super().__init__(f"{url}: {why}")
        self.url, self.why = url, why


class NoDataError(DriftscopeError):
    """The run is valid but contains nothing to analyse."""

    exit_code = EXIT_NO_DATA


class UnknownKindError(DriftscopeError):
    """The input is of a kind that driftscope does not know, so that it is not judged."""

    exit_code = EXIT_UNKNOWN

    def __init__(self, unknown: Unknown) -> None:
        super().__init__(str(unknown))
        self.unknown = unknown


class UsageError(DriftscopeError):
    """An option has a value that cannot be used."""

    exit_code = EXIT_USAGE
