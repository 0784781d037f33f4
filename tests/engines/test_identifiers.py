"""A live engine of several processes, recorded without identifiers, has records that still join."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.engine_process.job import Job, run_job

from driftscope.trace.read.reader import read_trace
from driftscope_probes.recording.manifest_notes import IDENTIFIERS_OFF

pytestmark = pytest.mark.vllm
REQUESTS = 4


def test_records_of_all_processes_join_by_the_same_hashes(tmp_path: Path) -> None:
    job = Job(
        drafter="eagle3",
        processes=True,
        requests=REQUESTS,
        probe={"EVERY": "1", "IDENTIFIERS": "off"},
        llm={"distributed_executor_backend": "mp"},
    )
    trace = read_trace(run_job(job, tmp_path).run)
    by_record = {
        record: set(getattr(trace, record).column("request").to_pylist())
        for record in ("draft", "verify", "request")
    }
    assert len({status.source.rpartition("-")[2] for status in trace.statuses}) == 2, "processes"
    assert len(by_record["request"]) == REQUESTS
    assert by_record["draft"] == by_record["verify"] == by_record["request"]
    assert all(re.fullmatch("[0-9a-f]{16}", name) for name in by_record["request"])
    assert not [error for status in trace.statuses for error in status.errors]
    assert IDENTIFIERS_OFF in trace.manifest.notes
