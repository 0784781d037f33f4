"""Hooks never raise into the engine: what they raise is counted, what they take is timed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from driftscope.trace.status import read_statuses
from driftscope.trace.writer import TraceWriter
from driftscope_probes.guard import CORE, Guard


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[TraceWriter]:
    made = TraceWriter(tmp_path, source="worker0-1")
    yield made
    made.close()


def test_a_hook_that_works_is_transparent(writer: TraceWriter) -> None:
    guard = Guard(writer)
    assert guard.run("verify", lambda: 7) == 7
    assert not guard.failed


def test_what_a_hook_raises_is_swallowed_and_counted(writer: TraceWriter, tmp_path: Path) -> None:
    guard, seen = Guard(writer), {}
    assert guard.run("verify", lambda: seen["missing"]) is None
    assert guard.failed
    assert guard.run("attention", lambda: 1 / 0) is None
    assert guard.run("verify", lambda: seen["gone"]) is None
    writer.close()
    (status,) = read_statuses(tmp_path)
    assert status.errors == {"verify": 2, "attention": 1}
    assert status.first_error == "verify: KeyError: 'missing'"


def test_an_interrupt_is_not_swallowed(writer: TraceWriter) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guard(writer).run("verify", interrupted)


def test_time_is_taken_whether_or_not_the_hook_works(writer: TraceWriter, tmp_path: Path) -> None:
    guard = Guard(writer, adds_to=(writer,))

    def slow() -> None:
        time.sleep(0.02)
        raise ValueError

    guard.run("verify", slow)
    guard.run("verify", lambda: time.sleep(0.02))
    assert 0.04 <= guard.taken_s < 1.0
    writer.close()
    assert read_statuses(tmp_path)[0].probe_s == pytest.approx(guard.taken_s, abs=1e-6)


@pytest.mark.parametrize(("when", "ran"), [("before", 0), ("after", 1)])
def test_the_test_switch_raises_in_every_hook(
    writer: TraceWriter, tmp_path: Path, when: str, ran: int
) -> None:
    guard, calls = Guard(writer, test_raise=when), []
    assert guard.run("verify", lambda: calls.append(1)) is None
    assert len(calls) == ran
    writer.close()
    (status,) = read_statuses(tmp_path)
    assert status.first_error == "verify: InjectedError: verify"


def test_the_time_of_the_core_is_kept_for_the_workers_of_its_process(writer: TraceWriter) -> None:
    before, core, worker = CORE.probe_s, Guard(writer, adds_to=(writer, CORE)), Guard(writer)
    for _ in range(2):
        core.run("verify", lambda: time.sleep(0.01))
    worker.run("step_ended", lambda: time.sleep(0.01))
    assert 0.02 <= core.taken_s < 1.0
    assert CORE.probe_s - before == pytest.approx(core.taken_s, rel=1e-9)
    assert writer.probe_s == core.taken_s, "and that of a thread beside the engine by nobody"
