"""Criteria of the truth stage; the committed results pass them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cuda.truth import CPU_JOBS, CUDA_JOBS, faults, judge, same_tokens

RESULTS = Path(__file__).parents[4] / "benchmarks" / "results" / "cuda-truth.json"
GOOD: dict[str, Any] = {
    "tokens_sha256": "a",
    "accepted": 9,
    "accepted_by_vllm": 9,
    "chains": 5,
    "drafted_equal": 5,
    "verified": 4,
    "accepted_equal": 4,
    "mass_error": 5e-4,
    "problems": [],
}


def test_what_was_measured_on_a_gpu_is_the_truth() -> None:
    engines = json.loads(RESULTS.read_text())["engines"]
    assert set(engines) <= set(CUDA_JOBS)
    assert judge(engines) == (True, "12 engines, largest mass error 3.9e-03")
    paired = [name for name in engines if same_tokens(name, engines) is not None]
    assert len([name for name in paired if not name.endswith("off")]) == 7


def test_a_hook_that_never_failed_fails_the_stage() -> None:
    raising = {"tokens_sha256": "a", "accepted_by_vllm": 9, "errors": 3}
    assert faults("bf16 v2 graphs raising", raising) == []
    assert faults("bf16 v2 graphs raising", {**raising, "errors": 0}) == ["no hook failed"]


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"mass_error": 2e-3}, "mass error 2.0e-03"),
        ({"mass_error": math.nan}, "mass error nan"),
        ({"accepted": 8}, "8 accepted, vLLM says 9"),
        ({"drafted_equal": 4}, "1 chains drafted otherwise"),
        ({"accepted_equal": 3}, "1 counts differ"),
        ({"problems": ["lost"]}, "lost"),
        ({"chains": 0, "drafted_equal": 0}, "nothing recorded"),
    ],
)
def test_each_fault_is_named(changed: dict[str, Any], word: str) -> None:
    assert faults("fp32 v1 eager", GOOD) == []
    assert word in faults("fp32 v1 eager", {**GOOD, **changed})


def test_bf16_may_draft_otherwise_and_be_less_exact() -> None:
    assert faults("bf16 v2 graphs lse", {**GOOD, "drafted_equal": 4, "mass_error": 9e-3}) == []
    assert faults("bf16 v2 graphs lse", {**GOOD, "mass_error": 2e-2}) != []


def test_an_engine_that_did_not_run_fails_the_stage() -> None:
    ok, words = judge({"fp32 v1 eager": GOOD, "fp32 v2 eager": {"error": "no"}})
    assert not ok
    assert "fp32 v2 eager: did not run" in words


def test_output_is_held_against_the_engine_without_the_probe() -> None:
    off = {"tokens_sha256": "a", "accepted_by_vllm": 9}
    results = {"fp32 v2 graphs": GOOD, "fp32 v2 graphs off": off}
    assert same_tokens("fp32 v2 graphs", results) is True
    assert judge(results)[0]
    other = {**results, "fp32 v2 graphs off": {**off, "tokens_sha256": "b"}}
    assert not judge(other)[0]
    assert same_tokens("fp32 v1 eager", {"fp32 v1 eager": GOOD}) is None


def test_on_a_cpu_both_runners_serve() -> None:
    assert {job.runner for job in CPU_JOBS.values()} == {"v1", "v2"}
    assert all(job.device == "cpu" and job.probe for job in CPU_JOBS.values())
