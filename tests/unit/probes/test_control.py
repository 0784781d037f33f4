"""Changes requested of a running probe take effect; invalid ones are counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import until

from driftscope.trace.control import CONTROL, ControlValueError, ProbeChange, ask, read_control
from driftscope.trace.status import Status, read_statuses
from driftscope.trace.writer import TraceWriter
from driftscope_probes.control import Control
from driftscope_probes.sampler import RequestSelection, Sampler


class Parts:
    """A recorder's parts that can be changed, without its drafter."""

    def __init__(self, run: Path, *, every: int | None = 1) -> None:
        self.run, self.writer = run, TraceWriter(run, source="worker0-1")
        self.sampler, self.selection = Sampler(every=every), RequestSelection()
        self.control = Control(run, self.writer, self.selection, self)  # type: ignore[arg-type]

    def status(self) -> Status:
        (status,) = read_statuses(self.run)
        return status


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path)
    made.control.watch()
    yield made
    made.writer.close()


def test_the_file_is_followed_and_the_status_says_so_on_an_idle_engine(parts: Parts) -> None:
    asked = ask(parts.run, ProbeChange(recording=False, every=8, labels=("a", "a", "b")))
    until(lambda: parts.status().control.get("revision") == asked.revision)
    assert (parts.sampler.recording, parts.sampler.every) == (False, 8)
    assert parts.selection.labels == ("a", "b")
    status = parts.status()
    assert (status.recording, status.rate, status.control["every"]) == (False, 0.0, 8)
    parts.control.apply(ProbeChange(recording=True))
    assert parts.sampler.recording and parts.selection.labels == ("a", "b")


def test_a_file_that_is_wrong_is_counted_once_and_shown(parts: Parts) -> None:
    texts = ["{", "[]", '{"every": 0}', '{"new": 1}', " " * 70_000, '"\udcff']
    for number, text in enumerate(texts, start=1):
        whole = parts.run / "whole"
        whole.write_bytes(text.encode("utf-8", "surrogateescape"))
        whole.rename(parts.run / CONTROL)  # in one step: half a file would be a second one
        until(lambda n=number: parts.status().errors == {"control": n})
    time.sleep(1.2)  # two more looks
    status = parts.status()
    assert status.errors == {"control": len(texts)}
    assert CONTROL in (status.first_error or "")
    assert (parts.sampler.every, parts.sampler.recording) == (1, True)
    ask(parts.run, ProbeChange(every=3))
    until(lambda: parts.sampler.every == 3)


def test_a_change_reaches_all_processes_of_the_run(parts: Parts) -> None:
    core = TraceWriter(parts.run, source="engine0-2")
    selection = RequestSelection()
    Control(parts.run, core, selection).watch()
    ask(parts.run, ProbeChange(every=3))
    until(lambda: parts.sampler.every == 3)
    ask(parts.run, ProbeChange(labels=("a",)))
    until(lambda: selection.labels == ("a",) == parts.selection.labels)
    assert read_control(parts.run).change == ProbeChange(every=3, labels=("a",))
    core.close()
    assert [s.recording for s in read_statuses(parts.run)] == [None, True]


def test_a_budget_that_cannot_be_kept_changes_nothing(parts: Parts) -> None:
    rank = Control(parts.run, parts.writer, parts.selection, None, governed=False)
    with pytest.raises(ControlValueError, match="not available with tensor parallelism"):
        rank.apply(ProbeChange(budget=0.01, labels=("a",)))
    assert parts.selection.labels == ()


def test_the_file_holds_all_that_was_asked_for(tmp_path: Path) -> None:
    for change in (
        ProbeChange(every=2),
        ProbeChange(labels=("a",)),
        ProbeChange(budget=0.1),
        ProbeChange(labels=()),
    ):
        asked = ask(tmp_path, change)
    assert asked.revision == 4
    assert read_control(tmp_path).change == ProbeChange(budget=0.1, labels=())
    assert [path.name for path in tmp_path.iterdir()] == [CONTROL]
