"""Two runs that differ only in the seed of their sampling. `make seeds` prints the comparison.

`seeds.py FOLDER` keeps them there; tests/unit/analysis/compare/data/seeds was made with it.

They use the V2 runner: without Triton, which its interpreter replaces here, vLLM cannot sample on a
CPU.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from support.engine_process.job import Job, run_jobs
from typer.testing import CliRunner

from driftscope.cli.app import app

REQUESTS = 32
SEEDS = (1, 2)
JOBS = {
    f"seed {seed}": Job(
        drafter="eagle31",
        runner="v2",
        requests=REQUESTS,
        probe={"EVERY": "1"},
        sampling={"temperature": 0.8, "seed": seed},
    )
    for seed in SEEDS
}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="driftscope-seeds-") as folder:
        outcomes = run_jobs(JOBS, Path(sys.argv[1] if sys.argv[1:] else folder))
        runs = [str(outcomes[name].run) for name in JOBS]
        labels = [word for name in JOBS for word in ("--label", name)]
        sys.stdout.write(CliRunner().invoke(app, ["compare", *runs, *labels]).output)


if __name__ == "__main__":
    main()
