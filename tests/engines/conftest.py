"""Fixtures with every engine that these tests need, run once per session, two in parallel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.engine_process.job import Outcome, run_jobs
from verification.harmless import JOBS as HARMLESS_JOBS
from verification.truth import JOBS as TRUTH_JOBS
from verification.versions import older_job, runners, version

_GIVEN = os.environ.get("DRIFTSCOPE_TEST_OLDER_VLLM", "")
OLDER = [Path(folder) for folder in _GIVEN.split(os.pathsep) if folder]
"""Folders with unpacked older vLLMs (see the Makefile's `test` target)."""


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Outcome by name: TRUTH_JOBS, HARMLESS_JOBS and, if there is one, an older vLLM."""
    jobs = {**TRUTH_JOBS, **HARMLESS_JOBS}
    for older in OLDER:
        jobs[version(older)] = older_job(older, runners(older)[-1], "eagle3")
    folder: Path = tmp_path_factory.mktemp("engines")
    return run_jobs(jobs, folder)
