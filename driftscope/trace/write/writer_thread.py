"""The one thread of a process on which its trace writers work.

Whatever this thread does, it does while the serving thread waits for the interpreter: the writers
take their turns right after each other, seldom, and while what they share is at hand.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

Work = Callable[[], bool]
"""One turn of a writer; True when it was the last."""


class WriterThread:
    """Calls each work once in a period, and when it is hurried, until that says that it is over."""

    def __init__(self, period_s: float, cpus: frozenset[int] | None) -> None:
        self._period_s, self._cpus = period_s, cpus
        self._works: list[Work] = []
        self._hurry, self._lock = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, work: Work) -> threading.Thread:
        """Have `work` called from now on; returns the thread that does."""
        with self._lock:
            self._works.append(work)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="driftscope-writer", daemon=True
                )
                self._thread.start()
            thread = self._thread
        self._hurry.set()
        return thread

    def wake(self) -> None:
        """Have the next turns taken now."""
        self._hurry.set()

    def _run(self) -> None:
        if self._cpus:
            with contextlib.suppress(OSError):  # they may have been taken away since
                os.sched_setaffinity(0, self._cpus)  # of this thread
        while self._turns():
            self._hurry.wait(self._period_s)
            self._hurry.clear()

    def _turns(self) -> bool:
        """One of each; False when nothing is left to do."""
        over = [work for work in tuple(self._works) if work()]
        with self._lock:
            self._works = [work for work in self._works if work not in over]
            if not self._works:
                self._thread = None
            return bool(self._works)


_scribes: dict[tuple[float, frozenset[int] | None], WriterThread] = {}
os.register_at_fork(after_in_child=_scribes.clear)  # a forked process has none of these threads


def writer_thread_of(period_s: float, cpus: frozenset[int] | None) -> WriterThread:
    """This process's, for writers that take as long a rest.

    `cpus`: where its thread runs; None: where the one that first needs it does.
    """
    return _scribes.setdefault((period_s, cpus), WriterThread(period_s, cpus))
