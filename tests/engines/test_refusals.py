"""With DRIFTSCOPE_STRICT=1 an engine whose drafts cannot be recorded stops with one clear line."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.engine_process.job import CORES, Job, run_job

pytestmark = pytest.mark.vllm
ON = {"EVERY": "1", "STRICT": "1"}
CASES = {
    "a setting that is no number": (
        Job(drafter="eagle31", probe={"EVERY": "often", "STRICT": "1"}),
        "DRIFTSCOPE_EVERY='often': give a whole number from 1",
    ),
    "a directory that holds a run": (Job(drafter="eagle31", probe=ON), "already holds a run"),
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Output of each engine; two start at a time."""
    root = tmp_path_factory.mktemp("refusals")
    taken = root / "a directory that holds a run" / "run"
    taken.mkdir(parents=True)
    (taken / "manifest.json").write_text("{}")

    def start(item: tuple[int, str]) -> str:
        return _fail(CASES[item[1]][0], root / item[1], CORES[item[0] % len(CORES)])

    with ThreadPoolExecutor(len(CORES)) as pool:
        return dict(zip(CASES, pool.map(start, enumerate(CASES)), strict=True))


def _fail(job: Job, folder: Path, core: str) -> str:
    with pytest.raises(RuntimeError, match="engine ended with 1"):
        run_job(job, folder, core)
    return (folder / "log.txt").read_text(errors="replace")


@pytest.mark.parametrize("case", CASES)
def test_the_engine_does_not_start_and_says_why(logs: dict[str, str], case: str) -> None:
    assert CASES[case][1] in logs[case]
