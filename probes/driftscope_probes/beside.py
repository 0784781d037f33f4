"""A CPU's side stream: work that runs beside the engine's thread, and is waited for like an event.

Only what leaves the interpreter alone gains by it. The engine goes on with its next forward, whose
Python needs the interpreter all the time.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable

from driftscope_probes.cores import beside_this_thread


class Job:
    """Something that was posted. `synchronize` as of a CUDA event."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self.failed = False
        self.spent_s = 0.0
        """Of a core. Both are known once it is over."""

    def synchronize(self) -> None:
        """Wait until it is over."""
        self._over.wait()

    def run(self, action: Callable[[], bool]) -> None:
        """Do it; `action` says whether it succeeded, and raises nothing."""
        begun, self.failed = time.thread_time(), True
        try:
            self.failed = not action()
        finally:
            self.spent_s = time.thread_time() - begun
            self._over.set()

    @property
    def over(self) -> bool:
        """Whether nobody has to wait any more."""
        return self._over.is_set()


class Beside:
    """One job at a time, on a thread that starts with the first one.

    =====================  =====================================================================
    `post(job, action)`    start it and go on
    `join()`               wait for what was posted: before anything it reads is written again
    =====================  =====================================================================
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Job, Callable[[], bool]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Job | None = None
        self.busy = False
        """Whether `join` might have to wait."""

    def post(self, job: Job, action: Callable[[], bool]) -> None:
        """See Job.run."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, args=(beside_this_thread(),), name="driftscope-beside",
                daemon=True,
            )  # fmt: skip
            self._thread.start()
        self._last, self.busy = job, True
        self._jobs.put((job, action))

    def join(self) -> None:
        """Most often it is over by then."""
        if self._last is not None:
            self._last.synchronize()
            self._last, self.busy = None, False

    def _work(self, cores: frozenset[int]) -> None:
        if cores:
            with contextlib.suppress(OSError):  # they may have been taken away since
                os.sched_setaffinity(0, cores)  # of this thread
        while True:
            job, action = self._jobs.get()
            job.run(action)
            del job, action  # or they, and what they hold, last until the next
