"""Fixtures with real SGLang engines, each of which is started once, when a test first needs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.sglang_process.job import Outcome, installed, run_job
from verification.sglang import JOBS

Outcomes = Callable[[str], Outcome]


@pytest.fixture(scope="session")
def sglang_outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Function that returns the outcome of a job by its name."""
    if not installed():
        pytest.skip("SGLang's environment is not there: `make sglang` builds it")
    folder: Path = tmp_path_factory.mktemp("sglang")
    known: dict[str, Outcome] = {}

    def outcome(name: str) -> Outcome:
        if name not in known:
            known[name] = run_job(JOBS[name], folder / name)
        return known[name]

    return outcome
