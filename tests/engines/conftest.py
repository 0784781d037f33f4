"""Fixtures with every engine that these tests need, run once per session, two in parallel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.engine_process.job import Outcome, run_jobs
from verification.truth import AT_NIGHT, JOBS, WITHOUT, older_job, runners, version

_GIVEN = os.environ.get("DRIFTSCOPE_TEST_OLDER_VLLM", "")
OLDER = [Path(folder) for folder in _GIVEN.split(os.pathsep) if folder]
"""Folders with unpacked older vLLMs (see the Makefile's `test` target)."""


@pytest.fixture(scope="session")
def at_night(request: pytest.FixtureRequest) -> bool:
    """Whether a nightly test is selected, so that the engines of nightly tests are needed."""
    return any(item.get_closest_marker("nightly") for item in request.session.items)


@pytest.fixture(scope="session")
def outcomes(at_night: bool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Outcome by name: jobs of `truth` and, if there is one, an older vLLM.

    All answer the same prompts greedily in float32, so that one engine without the probe stands for
    all; `make harmless` compares each with its own.
    """
    left_out = {*WITHOUT.values(), *(() if at_night else AT_NIGHT)} - {"v1 off"}
    jobs = {name: job for name, job in JOBS.items() if name not in left_out}
    for older in OLDER:
        jobs[version(older)] = older_job(older, runners(older)[-1], "eagle3")
    return run_jobs(jobs, tmp_path_factory.mktemp("engines"))
