"""The part of `driftscope inspect` that runs two drafters beside one target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from driftscope.cli.inspection.loaded_bench import EXTRA, TrialOptions, load_bench
from driftscope.cli.inspection.trial_progress import TrialProgress
from driftscope.cli.inspection.trial_run import STOPPED_EARLY, not_run
from driftscope.cli.shared.extras import MissingExtraError, needs
from driftscope.cli.shared.run_labels import labels_of
from driftscope.errors import CheckpointError, NoDataError
from driftscope.inspect.checks.check_result import CheckResult
from driftscope.inspect.files.drafter_files import open_drafter
from driftscope.inspect.files.target_files import open_target
from driftscope.inspect.pair_inspection import PairInspection

if TYPE_CHECKING:
    from driftscope.inspect.trial.paired_positions import PairTrial


def with_pair_trial(pair: PairInspection, target: str, options: TrialOptions) -> PairInspection:
    """Run both drafters on prompts, and return the inspection with their comparison; with a note on
    the reason if one of them cannot be run, or Ctrl-C comes too early.

    Raises DriftscopeError for prompts that cannot be read.
    """
    try:
        with needs(EXTRA):
            trial = _run((pair.first.drafter, pair.second.drafter), target, options)
    except (CheckpointError, NoDataError, MissingExtraError) as error:
        return _with_note(pair, not_run(str(error)))
    except KeyboardInterrupt:
        return replace(_with_note(pair, not_run(*STOPPED_EARLY)), stopped=True)
    return replace(pair, trial=trial, stopped=trial.stopped)


def _with_note(pair: PairInspection, note: CheckResult) -> PairInspection:
    first, second = (each.with_results([note]) for each in (pair.first, pair.second))
    return replace(pair, first=first, second=second)


def _run(drafters: tuple[str, str], target: str, options: TrialOptions) -> PairTrial:
    from driftscope.inspect.trial.pair import run_pair

    opened = open_target(target, options.opening)
    first, second = labels_of([Path(each) for each in drafters], None)
    return run_pair(
        (open_drafter(drafters[0], options.opening), open_drafter(drafters[1], options.opening)),
        (first, second),
        opened.layers,
        lambda: load_bench(opened, options),
        options.k,
        listener=TrialProgress(),
    )
