"""The Triton kernels agree with their twins, in Triton's interpreter.

`triton_twins` holds the cases. They run in a process of their own: the interpreter has to be chosen
before Triton is imported.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

TWINS = Path(__file__).with_name("triton_twins.py")
TESTS = TWINS.parents[2]
SHIM = TESTS / "support" / "engine_process" / "triton_on_cpu"


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_twins_agree() -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DRIFTSCOPE_", "VLLM_"))}
    # The interpreter warns of numbers that a kernel masks.
    options = ("-q", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(TWINS), *options],
        env={
            **clean,
            "PYTHONPATH": os.pathsep.join([str(SHIM), *sys.path]),
            "TRITON_INTERPRET": "1",
            "DRIFTSCOPE_TEST_TRITON_ON_CPU": "1",
        },
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
