"""The border between the probe and its host: whatever a hook raises stays here and is counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from driftscope.trace.write.writer import TraceWriter

T = TypeVar("T")


class Account(Protocol):
    """What keeps the time that hooks took, such as a TraceWriter."""

    probe_s: float


class _Core:
    probe_s = 0.0


CORE: Account = _Core()
"""Of the engine core's hooks, where it shares this process with a worker."""


class InjectedError(Exception):
    """Raised inside every hook under DRIFTSCOPE_TEST_RAISE."""


class Guard:
    """Runs hooks: times them, swallows and counts what they raise.

    What others read and set at every step is plain attributes.
    """

    def __init__(
        self, writer: TraceWriter, *, test_raise: str = "", adds_to: tuple[Account, ...] = ()
    ) -> None:
        """`adds_to`: what else keeps the time."""
        self._writer, self._test_raise, self._adds_to = writer, test_raise, adds_to
        self.taken_s = 0.0
        """All the time that hooks took, on the thread that runs them."""
        self.failed = False
        """A hook raised since this was last set: what was captured is not whole."""

    def succeeds(self, hook: str, action: Callable[..., None], *args: Any) -> bool:
        """Run it; False when it raised."""
        self.failed = False
        self.run(hook, action, *args)
        return not self.failed

    def run(self, hook: str, action: Callable[..., T], *args: Any) -> T | None:
        """The value of `action(*args)`, or None when it raised."""
        start = time.perf_counter()
        try:
            return self._tested(hook, action, args) if self._test_raise else action(*args)
        except Exception as error:  # the serving path never raises
            self.failed = True
            self._writer.count_error(hook, error)
            return None
        finally:
            taken = time.perf_counter() - start
            self.taken_s += taken
            for account in self._adds_to:
                account.probe_s += taken

    def _tested(self, hook: str, action: Callable[..., T], args: tuple[Any, ...]) -> T:
        if self._test_raise == "before":
            raise InjectedError(hook)
        action(*args)
        raise InjectedError(hook)
