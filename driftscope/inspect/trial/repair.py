"""One change of a drafter that may fix it, and the drafter after it."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.inspect.trial.trial_result import Change
from driftscope.inspect.trial.variant import Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(Change):
    """A change with the drafter after it, ready to run."""

    variant: Variant
