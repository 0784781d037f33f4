"""An inspection of a drafter checkpoint: everything that one command reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from driftscope.errors import EXIT_GATE_FAILED, EXIT_INTERRUPTED, EXIT_OK
from driftscope.inspect.checks.catalogue import checks_made, run_checks
from driftscope.inspect.checks.check_result import CheckResult, Inspected, Level
from driftscope.inspect.files.drafter_files import open_drafter
from driftscope.inspect.files.opening import CAREFUL, Opening
from driftscope.inspect.files.sizes import Sizes, sizes_of
from driftscope.inspect.files.target_files import open_target
from driftscope.inspect.trial.trial_result import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Results of the checks of a drafter's files."""

    drafter: str
    target: str | None
    format: str
    checked: bool
    """Whether the format is one whose config and weights are compared."""
    checks: int
    """Number of checks that were made."""
    results: Sequence[CheckResult]
    """Results of the checks, errors first."""
    sizes: Sizes
    trial: Trial | None = None
    """Results of running the drafter; None if it was not run."""
    stopped: bool = False
    """Whether Ctrl-C ended the run of the drafter."""

    def count(self, level: Level) -> int:
        """Return the number of results of a level."""
        return sum(result.level is level for result in self.results)

    @property
    def conclusion(self) -> str:
        """Sentence that nothing was found, with what was tried; "" if something was found, or if
        the format is not checked."""
        if not self.checked or self.count(Level.ERROR) or self.count(Level.WARNING):
            return ""
        if self.trial is None:
            more = "" if self.target else " Give --target TARGET to run the drafter, too."
            return f"No mistake in the files.{more}"
        so_far = " so far" if self.trial.stopped else ""
        return (
            f"No mistake found{so_far}: no check failed, and none of "
            f"{len(self.trial.tried)} repairs surely accepts more."
        )

    def exit_code(self, *, strict: bool) -> int:
        """Return 130 after Ctrl-C, 3 with an error, or with a warning if `strict`; otherwise 0."""
        if self.stopped:
            return EXIT_INTERRUPTED
        bad = self.count(Level.ERROR) + (self.count(Level.WARNING) if strict else 0)
        return EXIT_GATE_FAILED if bad else EXIT_OK

    def with_results(
        self, results: Sequence[CheckResult], trial: Trial | None = None, *, stopped: bool = False
    ) -> Inspection:
        """Return the inspection with further results, errors first, and the trial they are of."""
        order = tuple(Level)
        both = sorted([*results, *self.results], key=lambda each: order.index(each.level))
        return replace(self, results=tuple(both), trial=trial, stopped=stopped)


def inspect_files(
    drafter: str, target: str | None = None, opening: Opening = CAREFUL
) -> Inspection:
    """Check the files of a drafter, and those of its target that concern it.

    Raises CheckpointError for a checkpoint that is damaged or of no known kind.
    """
    opened = Inspected(
        drafter=open_drafter(drafter, opening),
        target=open_target(target, opening) if target else None,
    )
    return Inspection(
        drafter=drafter,
        target=target,
        format=opened.drafter.format.name,
        checked=opened.drafter.format.checked,
        checks=checks_made(opened),
        results=tuple(run_checks(opened)),
        sizes=sizes_of(opened.drafter, opened.target),
    )
