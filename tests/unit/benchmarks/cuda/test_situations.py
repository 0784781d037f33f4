"""Criteria of the stage of situations, and which engines it runs where."""

from __future__ import annotations

import math
from typing import Any

import pytest
from verification.situations import SITUATION_JOBS

from benchmarks.cuda.situations import CPU_ENGINES, faults, jobs_on, judge

RIGHT: dict[str, Any] = {
    "situation": "preempted",
    "right": 9,
    "drafted_equal": 9,
    "judged": 8,
    "accepted_equal": 8,
    "mass_error": 4e-4,
    "wrong": 2,
    "flagged": 2,
}
GOOD: dict[str, Any] = {"situations": [RIGHT], "requests": 6, "answered_alike": 6}


def test_engines_that_record_the_truth_pass() -> None:
    engines = {"tight v1 off": {"seconds": 9.0}, "tight v1": GOOD}
    assert judge(engines) == (True, "2 engines, 1 situations, largest mass error 4.0e-04")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"mass_error": math.nan}, "preempted: mass error nan"),
        ({"mass_error": 2e-3}, "preempted: mass error 2.0e-03"),
        ({"drafted_equal": 8}, "preempted: 1 chains drafted otherwise"),
        ({"accepted_equal": 7}, "preempted: 1 counts differ"),
        ({"flagged": 1}, "preempted: 1 doubtful chains are not flagged"),
    ],
)
def test_a_deviation_is_named(changed: dict[str, Any], words: str) -> None:
    found = {**GOOD, "situations": [{**RIGHT, **changed}]}
    assert faults(found) == [words]
    assert judge({"tight v1": found})[0] is False


def test_other_answers_and_an_engine_that_ends_are_faults() -> None:
    assert faults({**GOOD, "answered_alike": 5}) == ["5 of 6 answers as without the probe"]
    assert faults({"error": "RuntimeError"}) == ["did not run"]


def test_a_gpu_runs_every_engine_with_options_that_its_vllm_knows() -> None:
    pytest.importorskip("vllm")
    jobs = jobs_on("cuda")
    assert jobs.keys() == SITUATION_JOBS.keys()
    for name, job in jobs.items():
        assert job.device == "cuda" and job.compiled
        assert job.llm["attention_backend"] == "TRITON_ATTN"
        assert job.probe == SITUATION_JOBS[name].probe
    assert tuple(jobs_on("cpu")) == CPU_ENGINES
