"""vLLM calls `register` in every process: it must cost nothing where the probe is off."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from driftscope_probes.vllm.configuration.hook_points import HOOKS
from driftscope_probes.vllm.plugin import SEAMS, register

pytestmark = pytest.mark.process

REGISTER = "import os, sys; from driftscope_probes.vllm.plugin import register; register(); "


def _python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DRIFTSCOPE_")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", REGISTER + code],
        env={**clean, "PYTHONPATH": os.pathsep.join(sys.path), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "environ", [{}, {"DRIFTSCOPE_TRACE": "/runs/a", "DRIFTSCOPE_DISABLE": "1"}]
)
def test_off_it_imports_nothing_and_hooks_nothing(environ: dict[str, str]) -> None:
    code = (
        "heavy = {'torch', 'vllm', 'wrapt', 'numpy', 'pyarrow', 'pandas'} & set(sys.modules); "
        "print(sorted(heavy), os.environ.get('DRIFTSCOPE_TRACE'))"
    )
    done = _python(code, **environ)
    assert done.stderr == ""
    assert done.stdout == f"[] {environ.get('DRIFTSCOPE_TRACE')}\n"


def test_on_it_waits_for_vllms_modules_and_fixes_the_directory() -> None:
    code = (
        "print(sorted({'torch', 'vllm', 'pyarrow'} & set(sys.modules)), 'wrapt' in sys.modules, "
        "os.environ['DRIFTSCOPE_TRACE'])"
    )
    done = _python(code, DRIFTSCOPE_TRACE="/runs/{time}")
    assert done.stderr == ""
    assert re.fullmatch(r"\[\] True /runs/\d{8}-\d{6}\n", done.stdout)


def test_a_bad_setting_stops_the_start() -> None:
    done = _python("print('started')", DRIFTSCOPE_TRACE="/runs/a", DRIFTSCOPE_EVERY="often")
    assert done.returncode != 0
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("driftscope.errors.ProbeError: DRIFTSCOPE_EVERY='often': give")


def test_a_vllm_that_is_laid_out_differently_stops_the_start(tmp_path: Path) -> None:
    module, *_ = SEAMS[-1]
    path = tmp_path.joinpath(*module.split("."))
    path.parent.mkdir(parents=True)
    for package in path.relative_to(tmp_path).parents[:-1]:
        (tmp_path / package / "__init__.py").touch()
    path.with_suffix(".py").write_text("class Scheduler: pass\n")
    path_first = os.pathsep.join([str(tmp_path), *sys.path])
    done = _python(f"import {module}", DRIFTSCOPE_TRACE="/a", PYTHONPATH=path_first)
    last = done.stderr.splitlines()[-1]
    assert f"ProbeError: {module} of this vLLM is not laid out as driftscope knows it" in last
    assert "DRIFTSCOPE_DISABLE=1" in last


def test_vllm_finds_it_by_its_entry_point() -> None:
    (found,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="driftscope")
    assert found.load() is register


READ = {
    "vllm.model_executor.models.interfaces",
    "vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils",
}
"""Modules that the probe reads captured layers from, and hooks nothing in."""


def test_the_doctor_looks_at_every_module_that_is_hooked() -> None:
    looked_at = {hook.module for hooks in HOOKS.values() for hook in hooks}
    assert looked_at - READ == {module for module, _, _ in SEAMS}
