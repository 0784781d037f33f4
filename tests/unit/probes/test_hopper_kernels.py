"""The Triton kernels compile for a Hopper GPU at real shapes, and a recorded round launches few.

`hopper_kernels` compiles them, in a process of its own: here the interpreter may be in force.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("hopper_kernels.py")
SHARED_BYTES = 227 << 10
"""Shared memory that a program may have on Hopper."""

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="Triton is not installed"
    ),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Launches of each chain."""
    cache = tmp_path_factory.mktemp("triton")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DRIFTSCOPE_", "TRITON_"))}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**clean, "PYTHONPATH": os.pathsep.join(sys.path), "TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_kernel_becomes_machine_code_that_fits(runs: list[dict[str, Any]]) -> None:
    launches = [launch for run in runs for launch in run["launches"]]
    assert {launch["kernel"] for launch in launches} == {
        "clear_chain",
        "enter_forward",
        "measure_state",
        "leave_forward",
        "_partial",
        "_combine",
    }
    assert all(launch["machine_code_bytes"] > 0 for launch in launches)
    assert max(launch["shared_bytes"] for launch in launches) <= SHARED_BYTES


PER_DEPTH = {"eager": 2, "compiled": 3, "captured": 5}
"""Launches of a depth, from the second on: those of the host, or nodes of a graph."""


def test_a_depth_takes_few_launches(runs: list[dict[str, Any]]) -> None:
    for run in runs:
        of_part = Counter(launch["part"] for launch in run["launches"])
        depths = [of_part[f"depth {depth}"] for depth in range(2, 5)]
        assert depths == [PER_DEPTH[run["how"]]] * 3, run["how"]
        # At the first depth of all, the taps do not know yet that logits follow.
        assert of_part["depth 1"] == depths[0] + (run["how"] != "captured")
        assert of_part["before"] == 3
        assert of_part["masses"] == 2
