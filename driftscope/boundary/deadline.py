"""One time limit for work with several parts, whether or not a part has a limit of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Deadline:
    """A moment in time, and the time left until it."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def left_s(self) -> float:
        """Return the seconds left; raise TimeoutError if the deadline has passed."""
        left_s = self._at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


def within(deadline: Deadline, work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises; raise TimeoutError at the deadline.

    The work runs in a thread of its own, because no single limit covers looking up a name,
    connecting to each of its addresses, and reading by another library. Work that has not ended by
    the deadline goes on in the background; where it can, it checks the deadline itself.
    """
    returned: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            returned.append(work())
        except BaseException as error:  # re-raised in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=run, name="driftscope-deadline", daemon=True)
    thread.start()
    thread.join(deadline.left_s())
    if failed:
        raise failed[0]
    if not returned:
        raise TimeoutError
    return returned[0]
