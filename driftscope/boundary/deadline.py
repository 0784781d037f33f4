"""One limit of time for work that has several parts, each with a limit of its own or with none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Deadline:
    """A moment, and the time left until it."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def left_s(self) -> float:
        """Raise TimeoutError when it has passed."""
        left_s = self._at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


def within(deadline: Deadline, work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises; raises TimeoutError at the deadline.

    The work has a thread of its own, because looking up a name, connecting to each of its addresses
    and another library's reading take no limit for all together. Work that has not ended by then
    goes on unseen: where it can, it looks at the deadline itself.
    """
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # raised again in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=run, name="driftscope-deadline", daemon=True)
    thread.start()
    thread.join(deadline.left_s())
    if failed:
        raise failed[0]
    if not found:
        raise TimeoutError
    return found[0]
