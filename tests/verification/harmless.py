"""Compare greedy output, token for token, with an engine without the probe; `make harmless`.

The probe records every round, samples, or fails in each of its hooks.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from support.engine_process.job import Job, Outcome, run_jobs

from driftscope.trace.reader import read_trace
from verification.truth import JOBS as TRUTH_JOBS
from verification.truth import V2, WITHOUT_AOT

SAMPLED_EVERY = 3
BOTH_SIZES = {"drafter": "eagle31", "sizes": (8, 1)}
PLAIN = {"drafter": "", "requests": 4, "llm": {"speculative_config": None}}
"""A server without a drafter."""
JOBS = {
    "v1 off": Job(**BOTH_SIZES),
    "v1 sampled": Job(**BOTH_SIZES, probe={"EVERY": str(SAMPLED_EVERY)}),
    "v1 raising": Job(**BOTH_SIZES, probe={"TEST_RAISE": "after", "EVERY": "1"}),
    "v1 compiled off": Job(drafter="eagle31", compiled=True, env=WITHOUT_AOT),
    "v2 off": Job(drafter="eagle31", **V2),
    "v2 raising": Job(drafter="eagle31", **V2, probe={"TEST_RAISE": "before", "EVERY": "1"}),
    "v1 plain": Job(**PLAIN, probe={"EVERY": "1"}),
    "v1 plain off": Job(**PLAIN),
    "v2 plain": Job(**PLAIN, runner="v2", probe={"EVERY": "1"}),
    "v2 plain off": Job(**PLAIN, runner="v2"),
}
AT_NIGHT = ("v1-processes raising", "v1-processes plain")
"""Jobs that `make test` leaves to `make nightly`."""
JOBS |= {name: replace(JOBS[name.replace("-processes", "")], processes=True) for name in AT_NIGHT}
WITHOUT = {
    "v1-eager eagle31": "v1 off",
    "v1 sampled": "v1 off",
    "v1 raising": "v1 off",
    "v1-processes raising": "v1 off",
    "v1-compiled eagle31": "v1 compiled off",
    "v2 eagle31": "v2 off",
    "v2 raising": "v2 off",
    "v1 plain": "v1 plain off",
    "v1-processes plain": "v1 plain off",
    "v2 plain": "v2 plain off",
}
"""Engine with the probe -> the equivalent one without it."""


def same_outputs(on: Outcome, off: Outcome, batch: int) -> tuple[int, int]:
    """Return the number of requests of one batch with equal tokens, and of all."""
    pairs = list(zip(on.tokens(batch), off.tokens(batch), strict=True))
    return sum(a == b for a, b in pairs), len(pairs)


def main() -> None:
    jobs = {**TRUTH_JOBS, **JOBS}
    wanted = {name: jobs[name] for pair in WITHOUT.items() for name in pair}
    with tempfile.TemporaryDirectory(prefix="driftscope-harmless-") as folder:
        outcomes = run_jobs(wanted, Path(folder))
        print(
            f"{'engine with the probe':24} {'batch':>5} {'same output':>12} {'rounds':>7} "
            f"{'chains':>7} {'errors':>7}"
        )
        for name, without in WITHOUT.items():
            on, off = outcomes[name], outcomes[without]
            trace = read_trace(on.run)
            errors = sum(sum(status.errors.values()) for status in trace.statuses)
            for batch, size in enumerate(on.job.sizes):
                same, every = same_outputs(on, off, batch)
                print(
                    f"{name:24} {size:5} {same:6}/{every:<5} {trace.verify.num_rows:7} "
                    f"{trace.draft.num_rows:7} {errors:7}"
                )


if __name__ == "__main__":
    main()
