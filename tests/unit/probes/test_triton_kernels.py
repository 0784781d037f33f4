"""The Triton kernels agree with their twins, in Triton's interpreter.

`triton_twins` holds the cases. They run in a process of their own: the interpreter has to be chosen
before Triton is imported.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

TWINS = Path(__file__).with_name("triton_twins.py")
TESTS = TWINS.parents[2]
SHIM = TESTS / "support" / "engine_process" / "triton_on_cpu"
CASES = [
    node.name
    for node in ast.parse(TWINS.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
]

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="Triton is not installed"
    ),
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Failures of each case, none where it passed."""
    report = tmp_path_factory.mktemp("twins") / "report.xml"
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DRIFTSCOPE_", "VLLM_"))}
    done = subprocess.run(
        # The interpreter warns of numbers that a kernel masks.
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            str(TWINS),
            f"--junitxml={report}",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore::RuntimeWarning",
        ],
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
    assert report.exists(), done.stdout[-4000:] + done.stderr[-4000:]
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        failed = [f"{case.get('name')}\n{bad.text}" for bad in case if bad.tag != "system-out"]
        found.setdefault(str(case.get("name")).partition("[")[0], []).extend(failed)
    return found


@pytest.mark.parametrize("case", CASES)
def test_twins_agree(outcomes: dict[str, list[str]], case: str) -> None:
    assert case in outcomes, "the case did not run"
    assert outcomes[case] == [], "\n".join(outcomes[case])
