"""The control file: a small file in a run directory that states what its probe is asked to do.

The file holds the sum of all requests, not only the last change, so that a process that reads it
late misses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from driftscope.boundary.bounds import MAX_LABEL_CHARS
from driftscope.boundary.files import locked, read_json, write_file
from driftscope.boundary.text import dumps

CONTROL = "control.json"
MAX_BYTES = 64 << 10
"""Largest size of the file in bytes; a larger file is not ours and is refused."""
_READABLE = 0o644
"""File mode: the requester may be the superuser and the probe another user; the directory's mode
keeps others out."""
MAX_EVERY = 1_000_000
MAX_LABELS = 256


class ControlValueError(ValueError):
    """A value that a probe cannot be set to; the message names the setting and the valid values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeChange:
    """Changes that a probe is asked to make; None: leave the setting unchanged.

    `every` and `budget` exclude each other, as they do in the probe. Raises ControlValueError.
    """

    recording: bool | None = None
    """Whether draft steps are recorded until this is set again; verification always is."""
    every: int | None = None
    """Record the chains of every n-th draft step."""
    budget: float | None = None
    """Share of the time per output token that the probe may use; its governor enforces it."""
    labels: tuple[str, ...] | None = None
    """Workload labels whose requests' chains are recorded; (): all requests."""

    def __post_init__(self) -> None:
        _check(type(self.recording) in (bool, type(None)), "recording: give true or false")
        _check(
            self.every is None or (type(self.every) is int and 1 <= self.every <= MAX_EVERY),
            f"every: give a whole number from 1 to {MAX_EVERY}",
        )
        share = self.budget
        _check(
            share is None or (type(share) in (int, float) and 0 < share <= 1),
            "budget: give a share above 0, at most 1",
        )
        _check(self.every is None or share is None, "every, budget: give one of the two")
        _check(
            self.labels is None
            or (len(self.labels) <= MAX_LABELS and all(map(_fits, self.labels))),
            f"labels: give at most {MAX_LABELS}, each of 1 to {MAX_LABEL_CHARS} characters",
        )

    @classmethod
    def checked(cls, values: object) -> ProbeChange:
        """Build a change from unchecked JSON; raises ControlValueError."""
        if not isinstance(values, Mapping):
            raise ControlValueError("give an object of settings")
        known = [setting.name for setting in fields(cls)]
        if unknown := sorted(str(key) for key in values.keys() - set(known)):
            raise ControlValueError(f"{', '.join(unknown)}: known are {', '.join(known)}")
        changes = dict(values)
        if changes.get("labels") is not None:
            _check(isinstance(changes["labels"], list | tuple), "labels: give a list")
            changes["labels"] = tuple(dict.fromkeys(map(_label, changes["labels"])))
        return cls(**changes)

    def given(self) -> dict[str, Any]:
        """Return the settings to change, as for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def then(self, later: ProbeChange) -> ProbeChange:
        """Return both changes combined; `later` takes precedence."""
        new = later.given()
        if not {"every", "budget"}.isdisjoint(new):
            new = {"every": None, "budget": None, **new}
        return replace(self, **new)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The content of a control file."""

    revision: int = 0
    """Count of changes to the file; 0: none."""
    change: ProbeChange = field(default_factory=ProbeChange)


def read_control(run: Path) -> Asked:
    """Return what the run's probe was asked for; raises ControlValueError for an invalid file."""
    path = run / CONTROL
    try:
        raw = read_json(path, limit=MAX_BYTES, follow=False)
        _check(isinstance(raw, dict), "give an object of settings")
        revision = raw.pop("revision", 0)
        _check(type(revision) is int and revision >= 0, "revision: give a whole number")
        return Asked(revision=revision, change=ProbeChange.checked(raw))
    except FileNotFoundError:
        return Asked()
    except (OSError, ValueError) as error:
        raise ControlValueError(f"{path}: {error}") from error


def ask(run: Path, change: ProbeChange) -> Asked:
    """Add `change` to what the run's probe is asked for.

    Concurrent requests are processed one after the other, each with its own revision. An invalid
    file is replaced. Raises OSError.
    """
    with locked(run):
        try:
            before = read_control(run)
        except ControlValueError:
            before = Asked()
        after = Asked(revision=before.revision + 1, change=before.change.then(change))
        content = {"revision": after.revision, **after.change.given()}
        text = dumps(content, sort_keys=True) + "\n"
        write_file(run / CONTROL, text.encode(), mode=_READABLE)
    return after


def share_of(text: str) -> float:
    """Parse a share from "0.01" or "1%"; raises ControlValueError."""
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = 0.0
    _check(0 < share <= 1 and not rest, f"budget {text!r}: give a share such as 1% or 0.01")
    return share


def _check(holds: bool, words: str) -> None:
    if not holds:
        raise ControlValueError(words)


def _label(value: object) -> str:
    _check(isinstance(value, str), "labels: give strings")
    return str(value)


def _fits(label: str) -> bool:
    return 0 < len(label) <= MAX_LABEL_CHARS
