"""A failing disk or a hanging receiver costs rows, which is reported; the output is unchanged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.engine_process.job import Outcome, run_job
from verification.disk_faults import FAULTS, JOB, lost, with_fault, with_silent_receiver

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def off(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_job(replace(JOB, probe={}), tmp_path_factory.mktemp("off"))


@pytest.mark.parametrize("fault", ["full", "removed"])
def test_a_disk_that_fails(fault: str, off: Outcome, tmp_path: Path) -> None:
    fared = with_fault(FAULTS[fault], tmp_path)
    for batch in range(len(JOB.sizes)):
        assert fared.outcome.tokens(batch) == off.tokens(batch)
    assert "rows are being lost (disk_error); serving goes on" in fared.outcome.log
    if fault == "full":
        assert lost(fared) > 0, "the status file has kept room for itself"
    if fault == "removed":
        assert fared.statuses == ()


def test_a_receiver_that_hangs(off: Outcome, tmp_path: Path) -> None:
    fared = with_silent_receiver(tmp_path)
    for batch in range(len(JOB.sizes)):
        assert fared.outcome.tokens(batch) == off.tokens(batch)
    assert lost(fared) == 0
    assert all(status.closed for status in fared.statuses)
