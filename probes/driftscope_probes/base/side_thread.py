"""A side stream for a CPU: jobs that run parallel to the engine's thread, awaited like CUDA events.

Only jobs that do not need the interpreter benefit, because the engine continues with its next
forward, whose Python code occupies the interpreter all the time.
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
"""Longest time that an engine's step waits for a job, in seconds. A job takes milliseconds; a
thread that hangs may lose its own rows but must never block the engine's next step."""


class Job:
    """A posted unit of work; `synchronize` waits for it, as it does for a CUDA event."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self.failed = False
        """Whether there is nothing to take: the job raised, never started, or was given up."""
        self.given_up = False
        """Whether nobody waits any more although the job may still run and write to its target."""
        self.spent_s = 0.0
        """CPU time of the job, in seconds. This and `failed` are valid once the job is over."""

    def synchronize(self) -> None:
        """Wait until the job is over, JOIN_S at most; then it is given up and has failed."""
        if not self._over.wait(JOIN_S):
            self.failed = self.given_up = True

    def refuse(self) -> None:
        """Finish the job without running it; it counts as failed."""
        self.failed = True
        self._over.set()

    def run(self, action: Callable[[], bool]) -> None:
        """Run `action`, which returns whether it succeeded and raises nothing."""
        begun, failed = time.thread_time(), True
        try:
            failed = not action()
        finally:
            self.spent_s = time.thread_time() - begun
            self.failed = failed or self.given_up
            self._over.set()

    @property
    def over(self) -> bool:
        """Whether waiting for the job would return at once."""
        return self._over.is_set()


class SideThread:
    """Runs one job at a time, on a thread that starts with the first job.

    =====================  =====================================================================
    `post(job, action)`    start a job and return at once
    `join()`               wait for the posted job, before any of its inputs is overwritten
    =====================  =====================================================================

    A thread that cannot be started (no processes left) or that does not finish within JOIN_S takes
    no more jobs: they are refused, which loses their rows and nothing else.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Job, Callable[[], bool]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Job | None = None
        self._stopped = False
        self.busy = False
        """Whether `join` might have to wait."""

    def post(self, job: Job, action: Callable[[], bool]) -> None:
        """Run `action`, see `Job.run`. Raises RuntimeError, once, if no thread can start."""
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
        """Wait for the last job. Raises TimeoutError, once, if it does not finish."""
        if self._last is None:
            return
        job, self._last, self.busy = self._last, None, False
        job.synchronize()
        if job.given_up:
            self._stopped = True
            raise TimeoutError(f"the side thread's job did not finish in {JOIN_S:g} s")

    def _started(self) -> threading.Thread:
        thread = threading.Thread(
            target=self._work, args=(free_cpu_cores(),), name="driftscope-masses", daemon=True
        )
        thread.start()
        return thread

    def _work(self, cores: frozenset[int]) -> None:
        if cores:
            with contextlib.suppress(OSError):  # cores may have been removed since
                os.sched_setaffinity(0, cores)  # for this thread
        while True:
            job, action = self._jobs.get()
            job.run(action)
            del job, action  # otherwise they, and what they refer to, live until the next job
