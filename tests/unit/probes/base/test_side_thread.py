"""Jobs on the side thread finish before the data that they read is overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from driftscope_probes import settings
from driftscope_probes.cpu_kernels import Job, SideThread


def test_a_job_runs_on_another_thread_and_join_waits_for_it() -> None:
    beside, go, seen = SideThread(), threading.Event(), list[int]()

    def work() -> bool:
        go.wait(10)
        seen.append(threading.get_ident())
        return True

    job = Job()
    beside.post(job, work)
    assert (seen, beside.busy, job.over) == ([], True, False)
    go.set()
    beside.join()
    assert seen and seen[0] != threading.get_ident()
    assert (beside.busy, job.over, job.failed) == (False, True, False)
    beside.join()


def test_jobs_run_in_order_and_say_whether_they_failed() -> None:
    beside, order = SideThread(), list[int]()
    jobs = [Job() for _ in range(3)]
    for number, job in enumerate(jobs):

        def work(number: int = number) -> bool:
            order.append(number)
            return number != 1

        beside.post(job, work)
    beside.join()
    assert order == [0, 1, 2]
    assert [job.failed for job in jobs] == [False, True, False]
    assert all(job.spent_s >= 0 for job in jobs)


def test_what_ends_its_thread_has_failed_and_keeps_nobody_waiting() -> None:
    job = Job()

    def ends() -> bool:
        raise SystemExit

    with pytest.raises(SystemExit):
        job.run(ends)
    assert (job.over, job.failed) == (True, True)


def test_a_thread_that_cannot_start_refuses_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the one raised when the container's limit of processes is reached."""

    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_more)
    beside, jobs = SideThread(), [Job(), Job()]
    with pytest.raises(RuntimeError, match="start new thread"):
        beside.post(jobs[0], lambda: True)
    beside.post(jobs[1], lambda: True)
    beside.join()
    for job in jobs:
        job.synchronize()
        assert (job.over, job.failed) == (True, True)


def test_a_job_that_does_not_come_back_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftscope_probes.cpu_kernels.JOIN_S", 0.05)
    beside, go, over = SideThread(), threading.Event(), threading.Event()

    def work() -> bool:
        go.wait(10)
        over.set()
        return True

    job, later = Job(), Job()
    beside.post(job, work)
    with pytest.raises(TimeoutError, match="did not finish"):
        beside.join()
    beside.post(later, lambda: True)
    assert (job.failed, job.given_up, later.failed) == (True, True, True)
    beside.join()
    go.set()
    assert over.wait(10)
    assert job.failed, "what it did after it was given up does not count"


def test_the_thread_keeps_off_the_cores_that_the_engine_is_bound_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "engine_cores", lambda: frozenset({0, 1, 2}))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    assert settings.free_cpu_cores() == {0, 2}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert settings.free_cpu_cores() == {0, 1, 2}, "bound to none"


@pytest.mark.process
def test_the_first_process_says_what_cores_there_are() -> None:
    """A worker may find itself bound to some of them before it has any say."""
    script = (
        "import os; from driftscope_probes import settings as cores; "
        "print(sorted(cores.engine_cores()), os.environ[cores.CORES])"
    )
    mine = min(os.sched_getaffinity(0))

    def child(**more: str) -> str:
        plain = {name: value for name, value in os.environ.items() if name != settings.CORES}
        return subprocess.run(
            [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{mine}}}); {script}"],
            env={**plain, **more},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    assert child() == f"[{mine}] {mine}"
    said = f"{mine},{mine + 7}"
    assert child(**{settings.CORES: said}) == f"[{mine}, {mine + 7}] {said}"
