"""The part of `driftscope inspect` that runs the drafter beside its target."""

from __future__ import annotations

import typer

from driftscope.cli.inspection.loaded_bench import EXTRA, TrialOptions, load_bench
from driftscope.cli.inspection.trial_progress import TrialProgress
from driftscope.cli.shared.extras import MissingExtraError, needs
from driftscope.errors import CheckpointError, NoDataError, UsageError
from driftscope.inspect.checks.check_result import CheckResult, Level
from driftscope.inspect.files.checkpoint_format import Family
from driftscope.inspect.files.drafter_files import open_drafter
from driftscope.inspect.files.target_files import open_target
from driftscope.inspect.inspection import Inspection
from driftscope.inspect.trial.trial_result import STOPPED, Trial, Tried

RUNNABLE = "a target that transformers loads, and a drafter that the reference code runs"
STOPPED_EARLY = f"{STOPPED} before the drafter was measured", "a trial without Ctrl-C"


def with_trial(inspection: Inspection, target: str, options: TrialOptions) -> Inspection:
    """Run the drafter on prompts, write the repaired files that are asked for, and return the
    inspection with the results; with a note on the reason if it cannot be run or Ctrl-C comes too
    early.

    Raises DriftscopeError for prompts that cannot be read, and if a repair is to be written and
    there is none.
    """
    try:
        with needs(EXTRA):
            trial = _run(inspection.drafter, target, options)
    except (CheckpointError, NoDataError, MissingExtraError) as error:
        if options.writes:
            raise
        return inspection.with_results([not_run(str(error))])
    except KeyboardInterrupt:
        return inspection.with_results([not_run(*STOPPED_EARLY)], stopped=True)
    from driftscope.inspect.trial.verdict import best_repair, verdict

    if options.writes and trial.stopped:
        typer.echo("no repair is written: Ctrl-C stopped the trial", err=True)
    elif options.writes:
        _write(inspection.drafter, best_repair(trial), options)
    return inspection.with_results(tuple(verdict(trial)), trial, stopped=trial.stopped)


def not_run(reason: str, expected: str = RUNNABLE) -> CheckResult:
    """Return the note that the drafter was not run."""
    return CheckResult(
        id="not_run",
        level=Level.NOTE,
        title="the drafter was not run, and no repair was tried",
        expected=expected,
        rule="driftscope.inspect.reference",
        there=reason,
    )


def _run(drafter: str, target: str, options: TrialOptions) -> Trial:
    from driftscope.inspect.trial.trial import run_trial

    opened, files = open_target(target, options.opening), open_drafter(drafter, options.opening)
    if options.writes and files.format.family is Family.MTP:
        raise UsageError(
            "--write-config and --write-weights do not write a target, and MTP heads are part of "
            "one; leave them out"
        )
    return run_trial(
        files,
        opened.layers,
        lambda: load_bench(opened, options),
        options.k,
        listener=TrialProgress(),
    )


def _write(drafter: str, best: Tried | None, options: TrialOptions) -> None:
    from driftscope.inspect.trial.written_repair import write_config, write_weights

    files = open_drafter(drafter, options.opening)
    if best is None:
        raise NoDataError(f"{drafter}: no repair helps, so there is nothing to write")
    if options.config_file:
        if best.repair.weights:
            raise UsageError(
                f"the repair ({best.repair.change}) changes weights; use --write-weights"
            )
        write_config(files, best.repair, options.config_file)
    if options.weights_folder:
        write_weights(files, best, options.weights_folder)
