"""Implementation of `driftscope compare` where a report takes the place of a run."""

from __future__ import annotations

from pathlib import Path

from driftscope.analysis.compare.run_comparison import Comparison, compare_sides
from driftscope.cli.shared.run_choice import RunChoice
from driftscope.errors import MixedTraceError


def compare_with_report(
    paths: tuple[Path, Path], labels: tuple[str, str], *, engine: str, cluster: str | None
) -> Comparison:
    """Return the comparison of two runs, of which reports give the rounds that are inside them.

    Raises MixedTraceError unless each path gives one run that speculates.
    """
    choice = RunChoice(paths=paths, labels=labels, engine=engine, cluster=cluster)
    runs = choice.measured().runs
    if len(runs) != len(paths):
        raise _unfit(paths)
    first, second = runs
    if first.side is None or second.side is None:
        raise _unfit(paths)
    return compare_sides((first.side, second.side), (first.manifest, second.manifest), labels)


def _unfit(paths: tuple[Path, Path]) -> MixedTraceError:
    return MixedTraceError(
        f"{paths[0]}, {paths[1]}: with a report, compares two runs that speculate, one in each "
        "report; give run directories, or give both to `driftscope analyze`"
    )
