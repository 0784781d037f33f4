"""Models that `driftscope inspect` and `driftscope ablate` run: permissions, prompts, progress."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from driftscope.boundary.text import shown
from driftscope.cli.run_reports import steps
from driftscope.distributions import MissingExtraError, needs
from driftscope.errors import CheckpointError, NoDataError, UsageError
from driftscope.inspect.checkpoints import DrafterFiles, TargetFiles, open_drafter, open_target
from driftscope.inspect.checks.result import CheckResult, warning
from driftscope.inspect.drafter_classes import Family
from driftscope.inspect.files import Opening
from driftscope.inspect.inspection import NOT_RUN, Inspection
from driftscope.inspect.trial.result import STOPPED, T, TrialAcceptance, TrialListener, Tried

if TYPE_CHECKING:  # imports torch
    from driftscope.inspect.trial.target import Teacher
    from driftscope.inspect.trial.trial import Bench

EXTRA = "inspect"
_WEIGHTS = ".safetensors", ".bin"
"""Ends of the names of files with weights."""
_RUNNABLE = "a target that transformers loads, and a drafter that the reference code runs"


class TrialProgress(TrialListener):
    """Listener that prints to stderr."""

    def measured(self, as_is: TrialAcceptance, repairs: int) -> None:
        """Print the acceptance length as it is, and that it is kept from here on."""
        follow = f"; {repairs} repairs follow (Ctrl-C keeps what is measured)" if repairs else ""
        typer.echo(f"accepts {as_is.mean_length:.2f} tokens a round as it is{follow}", err=True)

    def each(self, items: Iterable[T], what: str, total: int) -> Iterable[T]:
        """Return `items` with a bar on a terminal."""
        return steps(items, what, total=total)


def opening_of(*, allow_pickle: bool, download: bool) -> Opening:
    """Return the permissions. Raises MissingExtraError if pickles are to be loaded without
    torch."""
    if not allow_pickle:
        return Opening(download=download)
    from driftscope.inspect.pickles import read_pickle

    with needs(EXTRA):
        import torch  # noqa: F401
    return Opening(read_pickle=cache(read_pickle), download=download)


def load_bench(target: TargetFiles, prompts: str, most: int) -> Bench:
    """Load the target, and let it encode the first `most` of a set or file of prompts; a line on
    stderr says what is loaded.

    Raises DriftscopeError for prompts that cannot be read, or a target that cannot be loaded.
    """
    from driftscope.inspect.trial.trial import Bench
    from driftscope.workloads.suites.prompts import prompts_of

    chosen = prompts_of(prompts)[:most]

    def encoded(teacher: Teacher) -> dict[str, list[int]]:
        return {prompt.key: teacher.encode(prompt.messages, prompt.text) for prompt in chosen}

    typer.echo(loading_line(target.folder), err=True)
    conversations = {prompt.key: prompt.messages for prompt in chosen if prompt.text is None}
    return Bench(target, encoded, conversations)


def loading_line(folder: Path) -> str:
    """Return how much there is to load: minutes pass before a large target answers."""
    size = sum(file.stat().st_size for end in _WEIGHTS for file in folder.glob(f"*{end}"))
    words = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
    return f"loading the target: {words} in {shown(str(folder))}"


def with_trial(
    inspection: Inspection,
    target: str,
    prompts: str,
    most: int,
    *,
    k: int,
    expected_length: float | None,
    config_file: Path | None,
    opening: Opening,
) -> Inspection:
    """Run the drafter on at most so many prompts, write the repaired config if a file is given, and
    return the inspection with the results; with a note on the reason if it cannot be run or Ctrl-C
    comes too early.

    Raises DriftscopeError for prompts that cannot be read, and if a config is to be written and no
    repair changes it.
    """
    try:
        with needs(EXTRA):
            from driftscope.inspect.trial.trial import run_trial

            opened, files = open_target(target, opening), open_drafter(inspection.drafter, opening)
            if config_file and files.format.family is Family.MTP:
                raise UsageError(
                    "--write-config does not write a target, and MTP heads are part of one; leave "
                    "it out"
                )
            trial = run_trial(
                files,
                opened.layers,
                lambda: load_bench(opened, prompts, most),
                k,
                listener=TrialProgress(),
                expected_length=expected_length,
            )
    except (CheckpointError, NoDataError, MissingExtraError) as error:
        if config_file:
            raise
        return inspection.with_results([_not_run(str(error), _RUNNABLE)])
    except KeyboardInterrupt:
        note = _not_run(f"{STOPPED} before the drafter was measured", "a trial without Ctrl-C")
        return inspection.with_results([note], stopped=True)
    from driftscope.inspect.trial.verdict import best_repair, verdict

    if config_file and trial.stopped:
        typer.echo("no config is written: Ctrl-C stopped the trial", err=True)
    elif config_file:
        _write(files, best_repair(trial), config_file)
    found = tuple(verdict(trial, inspection.results))
    return inspection.with_results(found, trial, stopped=trial.stopped)


def _not_run(reason: str, expected: str) -> CheckResult:
    """Return that the drafter was not run, although it was asked for."""
    return warning(
        id=NOT_RUN,
        title="the drafter was not run, and no repair was tried",
        expected=expected,
        rule="driftscope.inspect.reference",
        found=reason,
    )


def _write(files: DrafterFiles, best: Tried | None, path: Path) -> None:
    from driftscope.inspect.trial.repairs import write_config

    if best is None:
        raise NoDataError(f"{files.folder}: no repair helps, so there is nothing to write")
    if best.change.weights:
        raise UsageError(f"the repair ({best.change.change}) changes weights, not the config alone")
    write_config(files, best.change, path)
