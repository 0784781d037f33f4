"""`driftscope probe` reaches a run by its directory, or says why not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.command import Driftscope, assert_fails, probe_answer
from support.runs import Spec, manifest

from driftscope.trace.control import CONTROL, read_control
from driftscope.trace.writer import TraceWriter
from driftscope.trace.writer_files import create_run
from driftscope_probes.control import Control
from driftscope_probes.sampler import RequestSelection, Sampler

pytestmark = pytest.mark.process


class Worker(SimpleNamespace):
    """A process that records into a run directory and follows its control file."""

    def __init__(self, run: Path) -> None:
        create_run(run, manifest(Spec()))
        super().__init__(run=run, sampler=Sampler(every=1), selection=RequestSelection())
        self.writer = TraceWriter(run, source="worker0-1")
        self.control = Control(run, self.writer, self.selection, self)  # type: ignore[arg-type]
        self.control.watch()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = Worker(tmp_path / "live")
    yield made
    made.writer.close()


def _process(*arguments: object) -> dict[str, Any]:
    (process,) = probe_answer(*map(str, arguments))["processes"]
    return dict(process)


def test_status_as_json_and_as_a_table(driftscope: Driftscope, worker: Worker) -> None:
    worker.writer.set_gauges(overhead=0.012)
    worker.writer.count_dropped("ring_full", 7)
    worker.writer.count_error("attention", ValueError("no\nkeys"))
    worker.writer.close()
    process = _process("status", worker.run)
    assert (process["source"], process["rate"], process["overhead"]) == ("worker0-1", 1.0, 0.012)
    assert process["control"]["every"] == 1
    done = driftscope("probe", "status", worker.run)
    head, row, cost = done.stdout.splitlines()
    assert "budgeted" in head and cost.startswith("probe cost: ")
    for word in ("worker0-1", "closed", "every 1", "100 %", "1.2 %", "7"):
        assert word in row
    assert done.stderr.endswith("caught errors; first: attention: ValueError: no keys\n")


def test_a_change_is_back_when_the_process_does_it(driftscope: Driftscope, worker: Worker) -> None:
    process = _process("stop", worker.run)
    assert (process["recording"], process["rate"], process["answered"]) == (False, 0.0, True)
    assert not worker.sampler.recording
    done = driftscope("probe", "set", worker.run, "--every", "4", "--label", "a", "--label", "b")
    for words in ("stopped", "every 4", "a, b"):
        assert words in done.stdout
    assert worker.sampler.every == 4
    _process("start", worker.run)
    _process("set", worker.run, "--budget", "2%", "--all-labels")
    assert worker.sampler.recording
    assert (worker.sampler.every, worker.sampler.budget) == (None, 0.02)
    assert worker.selection.labels == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "nothing to change"),
        (["--budget", "1%", "--every", "2"], "give one of the two"),
        (["--budget", "0"], "--budget '0': give a share such as 1% or 0.01"),
        (["--every", "1000001"], "--every: give a whole number"),
        (["--label", ""], "--labels: give"),
        (["--label", "a", "--all-labels"], "--label, --all-labels"),
    ],
)
def test_a_value_that_cannot_be_used_is_a_usage_error(
    driftscope: Driftscope, worker: Worker, options: list[str], words: str
) -> None:
    assert_fails(driftscope("probe", "set", worker.run, *options), 2, words)
    assert not (worker.run / CONTROL).exists()


def test_what_is_no_run(driftscope: Driftscope, tmp_path: Path) -> None:
    for action in (["status"], ["start"], ["stop"], ["set", "--every", "2"]):
        assert_fails(driftscope("probe", *action, "nowhere"), 1, "nowhere: no such directory")
    (tmp_path / "empty").mkdir()
    assert_fails(driftscope("probe", "stop", "empty"), 1, "not a driftscope run")
    assert not (tmp_path / "empty" / CONTROL).exists()


def test_a_run_that_has_ended(driftscope: Driftscope, worker: Worker) -> None:
    worker.writer.close()
    assert_fails(driftscope("probe", "stop", worker.run), 1, "this run has ended")
    assert read_control(worker.run).revision == 0


def test_a_server_without_a_drafter_has_labels_to_change_and_no_draft_steps(
    driftscope: Driftscope, tmp_path: Path
) -> None:
    run = tmp_path / "plain"
    create_run(run, replace(manifest(Spec()), drafter=None, method="", k=0))
    idle = TraceWriter(run, source="worker0-1")
    engine = TraceWriter(run, source="engine0-1")
    selection = RequestSelection()
    Control(run, engine, selection, None).watch()
    every = driftscope("probe", "set", run, "--every", "1")
    labels = driftscope("probe", "set", run, "--label", "a")
    for writer in (idle, engine):
        writer.close()
    assert_fails(every, 1, "this server has no drafter", "--label")
    assert labels.returncode == 0 and labels.stderr == ""
    assert read_control(run).change.labels == ("a",)


def test_a_run_whose_processes_were_killed(driftscope: Driftscope, tmp_path: Path) -> None:
    run = tmp_path / "killed"
    create_run(run, manifest(Spec()))
    (run / "status-worker0-1.json").write_text(
        '{"source": "worker0-1", "closed": false, "flushed_s": 1.0}'
    )
    assert_fails(driftscope("probe", "stop", run), 1, "no process applied the change within 5 s")
