"""A process that records nothing leaves the reason in the run directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.runs import write_run

from driftscope.errors import NotATraceError
from driftscope.trace.manifest import read_manifest
from driftscope.trace.reader import read_trace
from driftscope.trace.runs import found
from driftscope.trace.status import StartFault, leave_fault, read_faults, remove_faults
from driftscope_probes.control import reach

FAULT = StartFault(
    kind="drafter", reason="no such drafter", source="worker0-7", start="abc", time_s=1.0
)


def test_it_is_read_as_it_was_left(tmp_path: Path) -> None:
    leave_fault(tmp_path / "run", FAULT)
    (fault,) = read_faults(tmp_path / "run")
    assert (fault.kind, fault.reason, fault.source) == (FAULT.kind, FAULT.reason, FAULT.source)
    assert fault.time_s > FAULT.time_s
    remove_faults(tmp_path / "run")
    assert read_faults(tmp_path / "run") == ()
    assert read_faults(tmp_path / "nothing") == ()


def test_who_reads_the_run_is_told(tmp_path: Path) -> None:
    run = tmp_path / "run"
    leave_fault(run, FAULT)
    for read in (read_manifest, found):
        with pytest.raises(NotATraceError, match="the server recorded nothing: no such drafter"):
            read(run)
    (process,) = reach(str(run)).status()
    assert process["down"] is True
    assert process["reason"] == "nothing is recorded: no such drafter"


def test_one_process_of_a_run_that_others_record(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    leave_fault(run, FAULT)
    assert "worker0-7 recorded nothing: no such drafter" in read_trace(run).problems


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"kind": "no", "reason": "", "source": "", "start": ""}', '{"kind": 1}'],
)
def test_a_file_that_is_none_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "fault-worker0-1.json").write_text(text)
    assert read_faults(tmp_path) == ()
