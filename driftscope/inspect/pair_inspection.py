"""An inspection of two checkpoints of one target: the files of both, and their comparison."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.errors import EXIT_INTERRUPTED
from driftscope.inspect.inspection import Inspection
from driftscope.inspect.trial.paired_positions import PairTrial

NO_REPAIRS = "No repair was tried: inspect one drafter at a time for that."


@dataclass(frozen=True, slots=True, kw_only=True)
class PairInspection:
    """Results of the checks of two drafters' files, and of running both."""

    first: Inspection
    second: Inspection
    trial: PairTrial | None = None
    """Results of running both; None if they were not run."""
    stopped: bool = False
    """Whether Ctrl-C ended the run of both."""

    def exit_code(self, *, strict: bool) -> int:
        """Return 130 after Ctrl-C, otherwise the worse exit code of both inspections.

        A drafter that accepts less than the other is no error.
        """
        if self.stopped:
            return EXIT_INTERRUPTED
        return max(each.exit_code(strict=strict) for each in (self.first, self.second))
