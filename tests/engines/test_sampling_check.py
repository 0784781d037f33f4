"""The probe knows whether vLLM verifies sampled requests at their own temperature."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engine_process.job import Job, run_jobs

from driftscope.trace.manifest import read_manifest

pytestmark = pytest.mark.vllm
COLD = 1e-4
"""Temperature at which sampling picks the likeliest token, if the sampler divides by it."""
REQUESTS = 4


def _job(temperature: float, runner: str) -> Job:
    return Job(
        drafter="eagle31",
        runner=runner,
        probe={"EVERY": "1"},
        requests=REQUESTS,
        sizes=(REQUESTS,),
        llm={"max_num_seqs": REQUESTS},
        sampling={"temperature": temperature, "max_tokens": 16},
    )


def test_the_manifest_says_so_where_cold_answers_are_not_the_greedy_ones(tmp_path: Path) -> None:
    jobs = {
        f"{runner} {name}": _job(temperature, runner)
        for runner in ("v1", "v2")
        for name, temperature in (("greedy", 0.0), ("cold", COLD))
    }
    found = run_jobs(jobs, tmp_path)
    for runner in ("v1", "v2"):
        greedy, cold = found[f"{runner} greedy"], found[f"{runner} cold"]
        differ = greedy.tokens() != cold.tokens()
        assert [read_manifest(each.run).samples_wrongly for each in (greedy, cold)] == [differ] * 2
