"""The result of one check of a checkpoint's files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from driftscope.inspect.files.drafter_files import DrafterFiles
from driftscope.inspect.files.target_files import TargetFiles


class Level(StrEnum):
    """How bad a result is."""

    ERROR = "error"
    """An engine refuses the checkpoint, or accepts next to nothing of its drafts."""
    WARNING = "warning"
    """An engine may accept less than it could."""
    NOTE = "note"
    """Worth knowing; nothing is wrong."""


class Certainty(StrEnum):
    """How sure a result is."""

    CERTAIN = "certain"
    """It follows from the files and the engine's source."""
    LIKELY = "likely"
    """Few working checkpoints look like this."""
    POSSIBLE = "possible"
    """Working checkpoints can look like this too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One thing that a check found.

    `rule` names the engine or library, and the part of it, that makes `expected` so.
    """

    id: str
    level: Level
    title: str
    expected: str
    rule: str
    there: str
    """Content of the files instead."""
    change: str | None = None
    """Change to make, with the exact line of the config if it is one; None if nothing needs to be
    done."""
    certainty: Certainty = Certainty.CERTAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """A drafter's files, and its target's if they were given."""

    drafter: DrafterFiles
    target: TargetFiles | None = None
