"""Values that are made in another thread, or when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")


class Later(Generic[T]):
    """A value that `make` returns, or waits for, when it is first asked for. What `make` raises is
    raised then, and each time. `begin` starts work that can go on beside other work."""

    def __init__(self, make: Callable[[], T], begin: Callable[[], object] | None = None) -> None:
        self._make, self._begin = make, begin

    @cached_property
    def value(self) -> T:
        """The value itself."""
        return self._make()

    def begin(self) -> None:
        """Start to make the value, if that can go on beside other work; `value` waits for it."""
        if self._begin is not None:
            self._begin()

    def wait(self) -> None:
        """Wait until the value is there."""
        _ = self.value

    def then(self, change: Callable[[T], S]) -> Later[S]:
        """Return what `change` makes of the value, later, too."""
        return Later(lambda: change(self.value), self.begin)
