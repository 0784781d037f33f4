"""The writer of a process of vLLM is named after its role."""

from __future__ import annotations

import os
from pathlib import Path

from driftscope.trace.status import read_statuses
from driftscope_probes.process_writer import open_writer
from driftscope_probes.settings import Settings


def test_the_source_is_role_and_pid(tmp_path: Path) -> None:
    open_writer(Settings(trace=tmp_path / "run"), "worker0").close()
    (status,) = read_statuses(tmp_path / "run")
    assert status.source == f"worker0-{os.getpid()}"
