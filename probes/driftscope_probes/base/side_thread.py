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

from driftscope_probes.base.cpu_cores import free_cpu_cores

JOIN_S = 5.0
"""Longest time that an engine's step waits for a job. One takes milliseconds; a thread that stopped
must cost its own rows, never the engine's next step."""


class Job:
    """Work that was posted; `synchronize` waits for it as a CUDA event's does."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self.failed = False
        """Whether there is nothing to take: it raised, never started, or was given up."""
        self.given_up = False
        """Whether nobody waits any more while it may still run, and write where it was told to."""
        self.spent_s = 0.0
        """Time of a core. Both are known once it is over."""

    def synchronize(self) -> None:
        """Wait until it is over, JOIN_S at most; then it is given up and has failed."""
        if not self._over.wait(JOIN_S):
            self.failed = self.given_up = True

    def refuse(self) -> None:
        """End it without having done anything: it has failed."""
        self.failed = True
        self._over.set()

    def run(self, action: Callable[[], bool]) -> None:
        """Do it; `action` says whether it succeeded, and raises nothing."""
        begun, failed = time.thread_time(), True
        try:
            failed = not action()
        finally:
            self.spent_s = time.thread_time() - begun
            self.failed = failed or self.given_up
            self._over.set()

    @property
    def over(self) -> bool:
        """Whether nobody has to wait any more."""
        return self._over.is_set()


class SideThread:
    """One job at a time, on a thread that starts with the first one.

    =====================  =====================================================================
    `post(job, action)`    start it and go on
    `join()`               wait for what was posted: before anything it reads is written again
    =====================  =====================================================================

    A thread that cannot be started (no processes left) or that does not come back within JOIN_S
    takes no more jobs: they are refused, which costs their rows and nothing else.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Job, Callable[[], bool]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Job | None = None
        self._stopped = False
        self.busy = False
        """Whether `join` might have to wait."""

    def post(self, job: Job, action: Callable[[], bool]) -> None:
        """Have `action` run, see `Job.run`. Raises RuntimeError, once, where no thread can be
        started."""
        if self._stopped:
            job.refuse()
            return
        if self._thread is None:
            try:
                self._thread = self._started()
            except RuntimeError:
                self._stopped = True
                job.refuse()
                raise
        self._last, self.busy = job, True
        self._jobs.put((job, action))

    def join(self) -> None:
        """Wait for the last job. Raises TimeoutError, once, for one that does not come back."""
        if self._last is None:
            return
        job, self._last, self.busy = self._last, None, False
        job.synchronize()
        if job.given_up:
            self._stopped = True
            raise TimeoutError(f"what runs beside the engine did not come back in {JOIN_S:g} s")

    def _started(self) -> threading.Thread:
        thread = threading.Thread(
            target=self._work, args=(free_cpu_cores(),), name="driftscope-beside", daemon=True
        )
        thread.start()
        return thread

    def _work(self, cores: frozenset[int]) -> None:
        if cores:
            with contextlib.suppress(OSError):  # they may have been taken away since
                os.sched_setaffinity(0, cores)  # of this thread
        while True:
            job, action = self._jobs.get()
            job.run(action)
            del job, action  # or they, and what they hold, last until the next
