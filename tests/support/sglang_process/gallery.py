"""Record the gallery's run of SGLang: `python -m support.sglang_process.gallery` from the folder
tests, in the environment that `make sglang` builds.

Unlike the gallery's other runs it is a measurement: the shipped models in a real SGLang, on a CPU.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from support.gallery import TRACES
from support.sglang_process.job import Job, run_job

from driftscope_lab.trio import CONDITIONS, trio_path

REQUESTS = 48
DRAFTER = "eagle3"
RUN = TRACES / "sglang"


def job() -> Job:
    """Return the job, whose models have names and no paths of this machine."""
    own = tuple(
        {"custom_params": {"driftscope_label": CONDITIONS[at % len(CONDITIONS)]}}
        for at in range(REQUESTS)
    )
    return Job(
        drafter=DRAFTER,
        probe={"EVERY": "1", "DISTANCE_EVERY": "2"},
        sizes=(4,),
        requests=REQUESTS,
        engine={
            "model_path": "target",
            "speculative_draft_model_path": DRAFTER,
            "skip_tokenizer_init": False,
        },
        own=own,
    )


def main() -> None:
    """Record the run and put it in the place of the one that is there."""
    with tempfile.TemporaryDirectory(prefix="driftscope-gallery-") as name:
        folder = Path(name)
        shutil.copytree(trio_path() / "target", folder / "target")
        os.chdir(folder)
        outcome = run_job(job(), folder)
        shutil.rmtree(RUN, ignore_errors=True)
        shutil.copytree(outcome.run, RUN)


if __name__ == "__main__":
    main()
