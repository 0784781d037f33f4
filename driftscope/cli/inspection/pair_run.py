"""The part of `driftscope inspect` that runs two drafters beside one target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from driftscope.cli.inspection.loaded_bench import EXTRA, TrialOptions, load_bench
from driftscope.cli.inspection.trial_run import not_run
from driftscope.cli.shared.extras import MissingExtraError, needs
from driftscope.cli.shared.progress_bar import steps
from driftscope.cli.shared.run_labels import labels_of
from driftscope.errors import CheckpointError, NoDataError
from driftscope.inspect.files.drafter_files import open_drafter
from driftscope.inspect.files.target_files import open_target
from driftscope.inspect.pair_inspection import PairInspection

if TYPE_CHECKING:
    from driftscope.inspect.trial.paired_positions import PairTrial


def with_pair_trial(pair: PairInspection, target: str, options: TrialOptions) -> PairInspection:
    """Run both drafters on prompts, and return the inspection with their comparison; with a note on
    the reason if one of them cannot be run.

    Raises DriftscopeError for prompts that cannot be read.
    """
    try:
        with needs(EXTRA):
            trial = _run((pair.first.drafter, pair.second.drafter), target, options)
    except (CheckpointError, NoDataError, MissingExtraError) as error:
        note = [not_run(str(error))]
        return replace(
            pair, first=pair.first.with_results(note), second=pair.second.with_results(note)
        )
    return replace(pair, trial=trial)


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
        progress=lambda variants: steps(variants, "Running both drafters"),
    )
