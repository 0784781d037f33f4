"""The Triton kernels agree with their twins, compile for a Hopper GPU, and are launched rarely.

`triton_twins` holds the cases and runs in Triton's interpreter, which has to be chosen before
Triton is imported; `hopper_kernels` compiles at real shapes. Each has a process of its own.
"""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.command import run_python

SHIM = Path(__file__).parents[2] / "support" / "engine_process" / "triton_on_cpu"
SHARED_BYTES = 227 << 10
"""Shared memory that a program may have on Hopper."""
PER_DEPTH = {"eager": 2, "compiled": 3, "captured": 3}
"""Launches of a depth, from the second on: those of the host, or nodes of a graph."""

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="Triton is not installed"
    ),
]


def _printed(*arguments: str, path: Sequence[Path] = (), **environ: str) -> str:
    done = run_python(*arguments, path=path, timeout_s=800, **environ)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    return done.stdout


def test_twins_agree() -> None:
    # The interpreter warns of numbers that a kernel masks.
    options = ("-q", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning")
    twins = str(Path(__file__).with_name("triton_twins.py"))
    environ = {"TRITON_INTERPRET": "1", "DRIFTSCOPE_TEST_TRITON_ON_CPU": "1"}
    _printed("-m", "pytest", twins, *options, path=(SHIM,), **environ)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Launches of each chain, compiled for Hopper."""
    cache = str(tmp_path_factory.mktemp("triton"))
    out = _printed(str(Path(__file__).with_name("hopper_kernels.py")), TRITON_CACHE_DIR=cache)
    found: list[dict[str, Any]] = json.loads(out.splitlines()[-1])
    return found


def test_every_kernel_becomes_machine_code_that_fits(runs: list[dict[str, Any]]) -> None:
    launches = [launch for run in runs for launch in run["launches"]]
    taps = {"clear_chain", "enter_forward", "measure_state", "leave_forward"}
    assert {launch["kernel"] for launch in launches} == {*taps, "_partial", "_combine"}
    assert all(launch["machine_code_bytes"] > 0 for launch in launches)
    assert max(launch["shared_bytes"] for launch in launches) <= SHARED_BYTES


def test_a_depth_takes_few_launches(runs: list[dict[str, Any]]) -> None:
    for run in runs:
        of_part = Counter(launch["part"] for launch in run["launches"])
        depths = [of_part[f"depth {depth}"] for depth in range(2, 5)]
        assert depths == [PER_DEPTH[run["how"]]] * 3, run["how"]
        # At the first depth of all, the taps do not know yet that logits follow.
        assert of_part["depth 1"] == depths[0] + (run["how"] != "captured")
        assert of_part["before"] == 3
        assert of_part["masses"] == 2
