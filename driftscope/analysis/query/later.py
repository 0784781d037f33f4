"""Values that are made in another thread, or when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")


class Later(Generic[T]):
    """A value that `make` returns, or waits for, when it is first asked for. What `make` raises is
    raised then, and each time."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    @cached_property
    def value(self) -> T:
        """The value itself."""
        return self._make()

    def wait(self) -> None:
        """Wait until the value is there."""
        _ = self.value

    def then(self, change: Callable[[T], S]) -> Later[S]:
        """Return what `change` makes of the value, later, too."""
        return Later(lambda: change(self.value))
