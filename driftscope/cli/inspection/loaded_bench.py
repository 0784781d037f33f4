"""The target of a trial with the prompts that the command names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from driftscope.boundary.terminal_text import shown
from driftscope.inspect.files.opening import CAREFUL, Opening
from driftscope.inspect.files.target_files import TargetFiles

if TYPE_CHECKING:  # imports torch
    from driftscope.inspect.trial.passages import Teacher
    from driftscope.inspect.trial.trial import Bench

EXTRA = "inspect"
_WEIGHTS = ".safetensors", ".bin"
"""Ends of the names of files with weights."""
MOST_PROMPTS = 32
"""Number of prompts that are used unless the command names another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """Options of the command that concern a trial."""

    prompts: str
    k: int
    most_prompts: int = MOST_PROMPTS
    config_file: Path | None = None
    weights_folder: Path | None = None
    opening: Opening = CAREFUL

    @property
    def writes(self) -> bool:
        """Whether a repair is to be written."""
        return bool(self.config_file or self.weights_folder)


def load_bench(target: TargetFiles, options: TrialOptions) -> Bench:
    """Load the target, and let it encode the first prompts; a line on stderr says what is loaded.

    Raises DriftscopeError for prompts that cannot be read, or a target that cannot be loaded.
    """
    from driftscope.inspect.trial.trial import Bench
    from driftscope.workloads.suites.readers import prompts_of

    chosen = prompts_of(options.prompts)[: options.most_prompts]

    def encoded(teacher: Teacher) -> dict[str, list[int]]:
        return {each.key: teacher.encode(each.messages, each.text) for each in chosen}

    typer.echo(loading_line(target.folder), err=True)
    conversations = {each.key: each.messages for each in chosen if each.text is None}
    return Bench(target, encoded, conversations)


def loading_line(folder: Path) -> str:
    """Return how much there is to load: minutes pass before a large target answers."""
    size = sum(file.stat().st_size for end in _WEIGHTS for file in folder.glob(f"*{end}"))
    words = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
    return f"loading the target: {words} in {shown(str(folder))}"
