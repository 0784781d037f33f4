"""The one thread of a process on which its trace writers work.

While this thread works, the serving thread waits for the interpreter. The writers therefore take
their turns in direct succession, seldom, and while the code and data that they share are in the
caches.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

NAME = "driftscope-writer"
Work = Callable[[], bool]
"""One turn of a writer; returns True if it was the last."""


class WriterThread:
    """Calls each work function once per period, and when woken, until it reports its last turn."""

    def __init__(self, period_s: float, cpus: frozenset[int] | None) -> None:
        self._period_s, self._cpus = period_s, cpus
        self._works: list[Work] = []
        self._hurry, self._lock = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        """Process that has the thread: a forked one has none, and must not write for this one."""

    @property
    def is_another(self) -> bool:
        """Whether the thread runs, and is not the one that asks."""
        thread = self._thread
        return thread is not None and thread.is_alive() and thread is not threading.current_thread()

    def add(self, work: Work) -> None:
        """Call `work` from now on."""
        with self._lock:
            self._works.append(work)
            if self._thread is None:
                self._begin()
        self._hurry.set()

    def wake(self) -> bool:
        """Run the next turns now; return False if the thread had died, so that a new one was begun.

        It takes a lock only then, because serving threads call it, and never raises.
        """
        thread = self._thread
        died = thread is not None and not thread.is_alive() and os.getpid() == self._pid
        if died:
            with self._lock, contextlib.suppress(RuntimeError):  # no thread can be started now
                if self._thread is thread:
                    self._begin()
        self._hurry.set()
        return not died

    def _begin(self) -> None:
        thread = threading.Thread(target=self._run, name=NAME, daemon=True)
        thread.start()
        self._thread = thread

    def _run(self) -> None:
        if self._cpus:
            with contextlib.suppress(OSError):  # cores may have been removed since
                os.sched_setaffinity(0, self._cpus)  # for this thread
        while self._turns():
            self._hurry.wait(self._period_s)
            self._hurry.clear()

    def _turns(self) -> bool:
        """Run one turn of each work function; return False if nothing is left to do."""
        over = [work for work in tuple(self._works) if work()]
        with self._lock:
            self._works = [work for work in self._works if work not in over]
            if not self._works:
                self._thread = None
            return bool(self._works)


_scribes: dict[tuple[float, frozenset[int] | None], WriterThread] = {}
os.register_at_fork(after_in_child=_scribes.clear)  # a forked process has no such threads


def writer_thread_of(period_s: float, cpus: frozenset[int] | None) -> WriterThread:
    """Return this process's thread for writers with the same period and cores.

    `cpus`: cores of the thread; None: those of the thread that first needs it.
    """
    return _scribes.setdefault((period_s, cpus), WriterThread(period_s, cpus))
