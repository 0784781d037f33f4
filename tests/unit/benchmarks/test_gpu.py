"""The GPU benchmark: criteria of its stages, and its one command."""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import long, overhead, real, truth
from benchmarks.gpu.__main__ import SECONDS
from benchmarks.results_file import REPO
from driftscope.trace.manifest import AGREES

CHECKED: dict[str, Any] = {
    "tokens_sha256": "a",
    "accepted": 9,
    "accepted_by_vllm": 9,
    "chains": 5,
    "drafted_equal": 5,
    "verified": 4,
    "accepted_equal": 4,
    "mass_error": 5e-4,
    "problems": [],
    "errors": 0,
    "witness": AGREES,
}


def test_what_was_measured_on_a_gpu_is_the_truth() -> None:
    results = REPO / "benchmarks" / "results" / "cuda-truth.json"
    engines = json.loads(results.read_text())["engines"]
    assert set(engines) <= set(truth.CUDA_JOBS)
    assert truth.judge(engines) == (True, "12 engines, largest mass error 3.9e-03")
    paired = [name for name in engines if truth.same_tokens(name, engines) is not None]
    assert len([name for name in paired if not name.endswith("off")]) == 7


def test_what_was_wrong_on_a_gpu_was_the_witness_alone() -> None:
    results = REPO / "benchmarks" / "results" / "gpu-truth.json"
    engines = json.loads(results.read_text())["engines"]
    assert len({found["tokens_sha256"] for found in engines.values()}) == 1
    wrong = {name: why for name in engines if (why := truth.faults(name, engines[name]))}
    assert set(wrong) == {"bf16 v2 eager lse", "fp32 v2 graphs"}
    assert all(words.startswith("the witness says layer") for (words,) in wrong.values())


@pytest.mark.parametrize(
    ("engine", "changed", "words"),
    [
        ("fp32 v1 eager", {}, []),
        ("fp32 v1 eager", {"mass_error": 2e-3}, ["mass error 2.0e-03"]),
        ("fp32 v1 eager", {"mass_error": math.nan}, ["mass error nan"]),
        ("fp32 v1 eager", {"accepted": 8}, ["8 accepted, vLLM says 9"]),
        ("fp32 v1 eager", {"drafted_equal": 4}, ["1 chains drafted otherwise"]),
        ("fp32 v1 eager", {"accepted_equal": 3}, ["1 counts differ"]),
        ("fp32 v1 eager", {"problems": ["lost"]}, ["lost"]),
        ("fp32 v1 eager", {"chains": 0, "drafted_equal": 0}, ["nothing recorded"]),
        ("fp32 v1 eager", {"witness": "in_rms is off"}, ["the witness says in_rms is off"]),
        (
            "bf16 v2 graphs default",
            {"errors": 2, "first_errors": ["masses: no"]},
            ["2 errors: masses: no"],
        ),
        ("bf16 v2 graphs lse", {"drafted_equal": 4, "mass_error": 9e-3}, []),
        ("bf16 v2 graphs lse", {"mass_error": 2e-2}, ["mass error 2.0e-02"]),
        ("bf16 v2 graphs raising", {"errors": 0}, ["no hook failed"]),
    ],
)
def test_each_deviation_from_the_truth_is_named(
    engine: str, changed: dict[str, Any], words: list[str]
) -> None:
    found = {**CHECKED, **changed}
    assert truth.faults(engine, found) == words
    assert truth.judge({engine: found})[0] is not bool(words)


def test_output_is_compared_with_the_engine_without_the_probe() -> None:
    off = {"tokens_sha256": "a", "accepted_by_vllm": 9}
    results = {"fp32 v2 graphs": CHECKED, "fp32 v2 graphs off": off}
    assert truth.judge(results)[0]
    ok, words = truth.judge({**results, "fp32 v2 graphs off": {**off, "tokens_sha256": "b"}})
    assert not ok and "fp32 v2 graphs: other tokens than without" in words
    ok, words = truth.judge({**results, "fp32 v2 eager": {"error": "no"}})
    assert not ok and "fp32 v2 eager: did not run" in words


def record(context: int, added_s: float, concurrency: int = 1) -> dict[str, Any]:
    """Repeats that jitter by 10 us about 10 ms, and settings that add to them."""
    absent = [0.010 + 1e-5 * (i % 3) for i in range(7)]
    probe = [a + added_s + 1e-6 * i for i, a in enumerate(absent)]
    tpot = {"absent": absent, "off": absent, "default": absent, "every round": probe}
    return {
        "concurrency": concurrency,
        "context": context,
        "tpot_s": tpot,
        "tokens_per_s": {name: [1 / t for t in values] for name, values in tpot.items()},
    }


@pytest.mark.parametrize(
    ("least_s", "most_s", "growth"),
    [(5e-4, 5e-4, "flat"), (1e-4, 5e-4, "grows"), (5e-4, 1e-4, "falls")],
)
def test_cost_by_context(least_s: float, most_s: float, growth: str) -> None:
    records = [record(8000, most_s), record(4000, 9.0), record(1000, least_s)]
    rows = {row["setting"]: row for row in overhead.by_context(records)}
    assert rows["every round"]["growth"] == growth
    assert rows["every round"]["contexts"] == (1000, 8000)
    assert rows["off"]["growth"] == "flat"
    assert any(f"every round  {growth}" in line for line in overhead.context_lines(records))
    assert list(overhead.by_context(records[:1])) == [], "one context says nothing of growth"


def test_a_point_misses_the_goal_only_with_its_whole_interval() -> None:
    assert overhead.over_goal([record(1000, 2e-4)]) == ["every round at 1 x 1000"]
    assert overhead.over_goal([record(1000, 5e-5)]) == []
    many = [record(1000, 2e-4, concurrency=overhead.MANY)]
    assert overhead.over_goal(many) == [], "at many requests every round may cost more"
    tpot, tokens = overhead.point_lines([record(1000, 1e-3)])
    assert "every round 1.1" in tpot
    assert "every round 0.9" in tokens


def test_the_probes_kernels_are_summed_by_round(tmp_path: Path) -> None:
    """Three recorded rounds; each enters twice, and the target's kernel lies in between."""

    def event(name: str, at: float, took: float, cat: str = "kernel") -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "ts": at, "dur": took}

    events = [event("cudaLaunchKernel", 1.0, 5.0, "cuda_runtime")]
    for first in (0.0, 100.0, 200.0):
        events += [
            event("target", first + 1, 50.0),
            event("enter_forward", first + 60, 2.0),
            event("enter_forward", first + 70, 3.0),
            event("_partial", first + 80, 4.0),
        ]
    path = tmp_path / "timeline.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": [*reversed(events), {"ph": "i", "name": "enter_forward"}]}, file)
    found = overhead.summary(overhead.device_events(path))
    assert found["us_per_round"] == {
        "enter_forward": {"launches": 2.0, "us": 5.0},
        "_partial": {"launches": 1.0, "us": 4.0},
    }
    assert found["one_round"][:4] == [
        ["target", 0.0, 50.0],
        ["enter_forward", 59.0, 2.0],
        ["enter_forward", 69.0, 3.0],
        ["_partial", 79.0, 4.0],
    ]


TIMES = [float(t) for t in range(200)]
RNG = random.Random(0)
NOISE = [RNG.gauss(0, 100_000) for _ in TIMES]
TRACE = {"rows": {"draft": 10}, "dropped": {}, "errors": {}}


@pytest.mark.parametrize(
    ("level", "grows"),
    [
        (lambda t: 1e9 + 0 * t, False),
        (lambda t: 1e9 + 50_000 * t, True),
        (lambda t: 1e9 - 50_000 * t, False),
        # Half a megabyte in all: within what an allocator comes and goes by.
        (lambda t: 1e9 + 2500 * t, False),
        # One step up and back.
        (lambda t: 1e9 + 3e7 * (80 < t < 120), False),
    ],
    ids=["level", "leak", "falls", "small", "bump"],
)
def test_growth_of_memory(level: Callable[[float], float], grows: bool) -> None:
    fit = long.growth(TIMES, [level(t) + noise for t, noise in zip(TIMES, NOISE, strict=True)])
    assert fit is not None
    assert fit["grows"] is grows
    low, high = fit["interval"]
    assert low <= fit["bytes_per_s"] <= high


def test_a_run_is_judged_by_growth_drops_and_errors() -> None:
    still, grown = {"worker": {"grows": False}}, {"worker": {"grows": True}}
    assert long.judge(still, TRACE) == (True, "no growth; 10 chains, 0 dropped, 0 errors")
    assert long.judge(grown, TRACE)[0] is False
    assert not long.judge(still, {**TRACE, "dropped": {"queue_full": 1}})[0]
    assert not long.judge(still, {**TRACE, "errors": {"masses": 1}})[0]
    assert not long.judge(still, {**TRACE, "rows": {}})[0]
    assert long.growth(TIMES[: 2 * long.BLOCKS - 1], NOISE[: 2 * long.BLOCKS - 1]) is None
    assert not long.judge({}, TRACE)[0]
    assert long.judge({}, TRACE, smoke=True)[0], "a smoke need not"
    (ours,) = [n for name, n in long.rss_bytes(os.getpid()).items() if f"{os.getpid()}" in name]
    assert ours > 10_000_000


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def had(folder: Path, stage: str, **facts: object) -> None:
    base = {"device": "cpu", "complete": True, "ok": True, "verdict": "fine before"}
    (folder / f"{stage}.json").write_text(json.dumps({**base, **facts}))


@pytest.mark.process
@pytest.mark.slow
def test_stages_that_are_there_fail_or_cannot_run(tmp_path: Path) -> None:
    for stage in SECONDS:
        had(tmp_path, stage)
    done = run("--device", "cpu", "--out", tmp_path)
    assert done.returncode == 0
    assert done.stdout.count("fine before") == len(SECONDS)
    assert not list(tmp_path.glob("*.log"))
    had(tmp_path, "long", ok=False, verdict="growth: worker")
    had(tmp_path, "overhead", device="cuda")
    done = run("truth", "long", "overhead", "--device", "cpu", "--out", tmp_path)
    assert done.returncode == 1
    assert "MISSED" in done.stdout and "growth: worker" in done.stdout
    assert "is of device cuda" in done.stdout
    (tmp_path / "overhead.json").unlink()
    done = run("overhead", "--out", tmp_path)
    assert done.returncode == 1
    assert "CANNOT RUN" in done.stdout and "no CUDA GPU" in done.stdout
    done = run("speed", "--out", tmp_path)
    assert done.returncode == 2
    assert "no stage speed; there are truth, overhead, real, long" in done.stderr


@pytest.mark.process
@pytest.mark.slow
def test_a_stage_out_of_time_is_ended(tmp_path: Path) -> None:
    cut = run("overhead", "--device", "cpu", "--out", tmp_path, "--seconds", 0.2)
    assert cut.returncode == 1
    assert "OUT OF TIME" in cut.stdout


def test_what_a_drafter_gains_is_paired_by_repeat() -> None:
    point: dict[str, Any] = real._point(8, "code", dict.fromkeys(("none", "eagle31")))
    for slow in (1.0, 2.0):  # a machine that is half as fast in the second repeat
        real._add(
            point,
            {
                "none": {"ids": [[1, 2], [3]], "seconds": 2 * slow, "accepted": []},
                "eagle31": {"ids": [[1, 2], [4]], "seconds": slow, "accepted": [10, 8, 4]},
            },
        )
    assert real.line(point) == (
        "8 x code; none 1 tokens/s; eagle31 2.000 (2.000-2.000), accepted 0.80/0.40, "
        "2 of 4 answers equal"
    )
    later = real._point(32, "all", dict.fromkeys(("none", "eagle31")))
    assert real.pays([point, later]) == "eagle31 at 8: 2.000 (2.000-2.000)"
    assert real.line(later) == "32 x all; not measured"
