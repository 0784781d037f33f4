"""What runs beside the engine's thread is waited for before what it reads is written again."""

from __future__ import annotations

import os
import threading

import pytest

from driftscope_probes import cores
from driftscope_probes.beside import Beside, Job


def test_a_job_runs_on_another_thread_and_join_waits_for_it() -> None:
    beside, go, seen = Beside(), threading.Event(), list[int]()

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
    beside, order = Beside(), list[int]()
    jobs = [Job() for _ in range(3)]
    for number, job in enumerate(jobs):

        def work(number: int = number) -> bool:
            order.append(number)
            return number != 1

        beside.post(job, work)
    beside.join()
    assert order == [0, 1, 2]
    assert [job.failed for job in jobs] == [False, True, False]


def test_the_thread_keeps_off_the_cores_that_the_engine_is_bound_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = os.sched_getaffinity(0)
    assert cores.beside_this_thread() == cores.CORES, "bound to none"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {max(mine)})
    monkeypatch.setattr(cores, "CORES", frozenset({0, max(mine) or 1}))
    assert cores.beside_this_thread() == {0, max(mine) or 1} - {max(mine)}
