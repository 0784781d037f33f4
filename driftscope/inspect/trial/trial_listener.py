"""The listener to a trial's progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from driftscope.inspect.trial.acceptance import Acceptance
from driftscope.inspect.trial.duration import Duration

T = TypeVar("T")


class TrialListener:
    """Base of listeners, which ignores everything."""

    def expected(self, estimate: Callable[[], Duration]) -> None:
        """Hear that a trial begins; `estimate` measures how long it will take."""

    def measured(self, as_is: Acceptance, repairs: int) -> None:
        """Hear what is accepted as it is, and how many repairs are tried next."""

    def each(self, items: Iterable[T], _what: str, _total: int) -> Iterable[T]:
        """Return `items`, of which there are `_total`, to be taken one by one."""
        return items
