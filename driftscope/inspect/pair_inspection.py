"""An inspection of two checkpoints of one target: the files of both, and their comparison."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.inspect.inspection import Inspection
from driftscope.inspect.trial.paired_positions import PairTrial


@dataclass(frozen=True, slots=True, kw_only=True)
class PairInspection:
    """Results of the checks of two drafters' files, and of running both."""

    first: Inspection
    second: Inspection
    trial: PairTrial | None = None
    """Results of running both; None if they were not run."""

    def exit_code(self, *, strict: bool) -> int:
        """Return the worse exit code of both inspections. A drafter that accepts less than the
        other is no error."""
        return max(each.exit_code(strict=strict) for each in (self.first, self.second))
