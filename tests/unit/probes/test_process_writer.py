"""The writer of a process of vLLM is named after its role."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.runs import verify

from driftscope.trace.status import read_statuses
from driftscope_probes.process_writer import open_writer, sample
from driftscope_probes.settings import Settings

GROW = """
import os
from driftscope_probes.process_writer import sample
(before,) = sample("worker0-1")
held = bytearray(os.urandom(1 << 20) * 64)
(after,) = sample("worker0-1")
print((after.process_bytes - before.process_bytes) / len(held))
"""


@pytest.mark.process
def test_a_sample_follows_the_process() -> None:
    """One of its own: this one frees memory when it likes."""
    done = subprocess.run([sys.executable, "-c", GROW], capture_output=True, text=True, check=True)
    assert 0.8 < float(done.stdout) < 1.5
    (after,) = sample("worker0-1")
    assert 0 < after.host_available_bytes < 1 << 50
    assert after.gpu_used_bytes is None
    assert after.source == "worker0-1"


def test_an_idle_process_is_named_after_its_role_and_records_nothing(tmp_path: Path) -> None:
    writer = open_writer(Settings(trace=tmp_path / "run"), "worker0")
    time.sleep(0.5)
    writer.close()
    assert not list((tmp_path / "run").glob("resource-*"))
    (status,) = read_statuses(tmp_path / "run")
    assert status.source == f"worker0-{os.getpid()}"


def test_samples_come_with_traffic_and_at_most_one_a_second(tmp_path: Path) -> None:
    writer = open_writer(Settings(trace=tmp_path / "run"), "worker0")
    begin = time.monotonic()
    for i in range(8):
        writer.put(verify(0, i, time.time(), i, 8, 1))
        time.sleep(0.2)
    lasted = time.monotonic() - begin
    writer.close()
    (segment,) = (tmp_path / "run").glob("resource-*.parquet")
    assert 1 <= pq.read_table(segment).num_rows <= 1 + lasted
