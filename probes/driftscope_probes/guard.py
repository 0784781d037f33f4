"""The border between the probe and its host: whatever a hook raises stays here and is counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from driftscope.trace.writer import TraceWriter

T = TypeVar("T")

_handed_over_s = 0.0
"""Time that the engine core's hooks took since a step's last did, where both share a process."""


class InjectedError(Exception):
    """Raised inside every hook under DRIFTSCOPE_TEST_RAISE."""


class Guard:
    """Runs hooks: times them, swallows and counts what they raise.

    `taken_s` is the time since the last `reset`, on the thread that runs the hooks.
    """

    def __init__(self, writer: TraceWriter, *, test_raise: str = "") -> None:
        self._writer, self._test_raise = writer, test_raise
        self.taken_s = 0.0
        self.failed = False
        """A hook raised since the last reset: what was captured is not whole."""

    def reset(self) -> float:
        """Start over; returns the time taken since the last reset."""
        taken, self.taken_s, self.failed = self.taken_s, 0.0, False
        self._writer.probe_s += taken
        return taken

    def hand_over(self) -> None:
        """Start over, and leave the time taken to whoever takes it over in this process."""
        global _handed_over_s
        taken, self.taken_s, self.failed = self.taken_s, 0.0, False
        self._writer.probe_s += taken
        _handed_over_s += taken

    def settle(self) -> tuple[float, float]:
        """What `reset` does and returns, and what was handed over since the last call, which is in
        its writer's sum already."""
        global _handed_over_s
        own, self.taken_s, self.failed = self.taken_s, 0.0, False
        self._writer.probe_s += own
        taken, _handed_over_s = _handed_over_s, 0.0
        return own, taken

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
            self.taken_s += time.perf_counter() - start

    def _tested(self, hook: str, action: Callable[..., T], args: tuple[Any, ...]) -> T:
        if self._test_raise == "before":
            raise InjectedError(hook)
        action(*args)
        raise InjectedError(hook)
