"""Engines whose output must not depend on the probe: off, on, sampled, failing in every hook."""

from __future__ import annotations

from support.sglang_process.job import Job

SAMPLED_EVERY = 3
_SAME = {"drafter": "eagle31", "sizes": (8, 1), "requests": 8}
OFF = "off"
JOBS = {
    OFF: Job(**_SAME),  # type: ignore[arg-type]
    "every round": Job(**_SAME, probe={"EVERY": "1"}),  # type: ignore[arg-type]
    "sampled": Job(**_SAME, probe={"EVERY": str(SAMPLED_EVERY)}),  # type: ignore[arg-type]
    "budget": Job(**_SAME, probe={"BUDGET": "0.01"}),  # type: ignore[arg-type]
    "raising before": Job(**_SAME, probe={"TEST_RAISE": "before", "EVERY": "1"}),  # type: ignore[arg-type]
    "raising after": Job(**_SAME, probe={"TEST_RAISE": "after", "EVERY": "1"}),  # type: ignore[arg-type]
    "directory in use": Job(**_SAME, probe={"TRACE": "/dev/null/run"}),  # type: ignore[arg-type]
    "disabled": Job(**_SAME, probe={"EVERY": "1", "DISABLE": "1"}),  # type: ignore[arg-type]
}
