"""Compare other versions of vLLM than the installed one with the reference, as a table.

`python -m verification.versions FOLDER...` (`make versions`); each folder holds an unpacked
vLLM that precedes the installed one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from support.engine_process.job import Job, run_jobs

from verification.truth import RECORD, print_table

V1_ONLY = ("0.27",)
"""Versions whose V2 runner was never tried."""
V2_IGNORES_K = ("0.31",)
"""Versions whose V2 runner drafts the configured K whatever the scheduler asks for: K by batch size
changes nothing there, or with asynchronous scheduling only how many tokens are verified."""


def version(folder: Path) -> str:
    """Return the version of the vLLM in a folder, of its CPU build or of its Python alone."""
    (found,) = folder.glob("vllm*.dist-info")
    return found.name.partition("-")[2].removesuffix(".dist-info")


def runners(folder: Path) -> tuple[str, ...]:
    """Return the runners of the folder's version that are checked."""
    return ("v1",) if version(folder).startswith(V1_ONLY) else ("v1", "v2")


def follows_k(job: Job) -> bool:
    """Return whether the drafter drafts as many tokens as the scheduler asks for."""
    if job.runner != "v2" or job.vllm_path is None:
        return True
    return not version(Path(job.vllm_path)).startswith(V2_IGNORES_K)


def older_job(folder: Path, runner: str, drafter: str) -> Job:
    """Return a job with separate caches: otherwise each version discards the other's."""
    return Job(
        drafter=drafter,
        runner=runner,
        probe=RECORD,
        vllm_path=str(folder),
        env={"VLLM_CACHE_ROOT": f"{folder}-cache"},
    )


def older_jobs(folders: list[Path]) -> dict[str, Job]:
    """Return jobs for both drafters on each runner, by version, runner and drafter."""
    return {
        f"{version(folder)} {runner} {drafter}": older_job(folder, runner, drafter)
        for folder in folders
        for runner in runners(folder)
        for drafter in ("eagle3", "eagle31")
    }


def main() -> None:
    jobs = older_jobs([Path(name).resolve() for name in sys.argv[1:]])
    with tempfile.TemporaryDirectory(prefix="driftscope-versions-") as folder:
        print_table(run_jobs(jobs, Path(folder)))


if __name__ == "__main__":
    main()
