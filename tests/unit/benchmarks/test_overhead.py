"""The benchmarks: settings and states that take turns, their JSON, and the stages on a GPU."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engines import measure, median_interval
from benchmarks.gpu import long, overhead, real, truth
from benchmarks.gpu.__main__ import SECONDS
from benchmarks.results_file import REPO, ResultsFile
from benchmarks.turns import (
    AGAIN,
    BUDGET,
    COUNTED,
    EVERY,
    STATES,
    STOPPED,
    UNCOUNTED,
    Drawn,
    Round,
    Turns,
    losses,
    ratios,
    share,
)
from driftscope.trace.manifest import AGREES

SETTINGS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "off": ("probe", {"stop": True}),
    "every": ("probe", {"every": 1}),
    "eager": ("eager", {"every": 1}),
}


class Spoken:
    """An engine that is a list of what it was asked."""

    def __init__(self, name: str, asked: list[tuple[str, str]]) -> None:
        self.name, self._asked = name, asked
        self._state = ""

    def ask(self, **question: Any) -> dict[str, Any]:
        if "set" in question:
            self._state = str(question["set"])
            return {"rate": 1.0}
        self._asked.append((self.name, self._state if question["tokens"] > 8 else "prefill"))
        return {"tpot_s": 0.5 * len(self._asked), "tokens_per_s": 1.0}


def test_each_repeat_starts_with_another_setting() -> None:
    asked: list[tuple[str, str]] = []
    engines: Any = {name: Spoken(name, asked) for name in ("absent", "probe", "eager")}
    found = measure(engines, (4, 1000), 4, 17, [[1, 2]], SETTINGS, time.time() + 99)
    assert asked[:3] == [(name, "prefill") for name in engines]
    turns = [asked[3 + 4 * i : 7 + 4 * i] for i in range(4)]
    assert [turn[0][0] for turn in turns] == ["absent", "probe", "probe", "eager"]
    off = ("probe", str({"stop": True}))
    assert all(turn.count(off) == 1 for turn in turns)
    assert (found["concurrency"], found["context"]) == (4, 1000)
    assert {len(values) for values in found["tpot_s"].values()} == {4}
    assert set(found["tokens_per_s"]) == {"absent", *SETTINGS}
    assert found["sampler"] == {"rate": 1.0}


@pytest.mark.parametrize(("n", "ranks"), [(5, (0, 4)), (7, (0, 6)), (11, (1, 9))])
def test_the_medians_interval_goes_by_rank(n: int, ranks: tuple[int, int]) -> None:
    assert median_interval(list(range(n))) == ranks


STEP_S, LOST_S, EACH = 0.02, 0.003, 40
"""A flush falls into each fortieth step."""


def _serve(steps: int, *, noise: float, seed: int = 1) -> tuple[list[tuple[float, float]], ...]:
    """Steps right after each other, and flushes of 2 ms in the middle of some."""
    generator, now = random.Random(seed), 100.0
    served, flushes = [], []
    for number in range(steps):
        took = STEP_S + noise * generator.expovariate(1.0)
        took *= 1 + number / steps  # the machine gets slower
        if number % EACH == EACH // 2:
            flushes.append((now + 0.01, now + 0.012))
            took += LOST_S
        served.append((now, now + took))
        now += took
    return served, flushes


def test_what_is_lost_is_found_beside_noise_and_a_drift() -> None:
    steps, flushes = _serve(20_000, noise=0.002)
    found = losses(steps, flushes)
    assert len(found["hit"]) == len(flushes)
    assert found["seconds"] == pytest.approx(steps[-1][1] - steps[0][0])
    value, off = share(found)
    assert value == pytest.approx(len(flushes) * LOST_S / found["seconds"], rel=0.1)
    assert 0 < off < 0.2 * value


def test_its_interval_holds_what_is_lost_nineteen_times_in_twenty() -> None:
    inside = 0
    for seed in range(200):
        steps, flushes = _serve(1200, noise=0.002, seed=seed)
        value, off = share(losses(steps, flushes))
        truth = len(flushes) * LOST_S / (steps[-1][1] - steps[0][0])
        inside += abs(value - truth) <= off
    assert inside >= 180


def _order(turns: Turns, rounds: int) -> list[str]:
    """Return the states of the probe, step by step."""
    found = []
    while len(turns.rounds) < rounds:
        found.append(turns.state)
        while not turns.step(1.0, alike=True):
            pass
    return found


def test_each_round_has_every_state_and_begins_with_another() -> None:
    order = _order(Turns(), len(STATES))
    rounds = [order[i : i + len(STATES)] for i in range(0, len(order), len(STATES))]
    assert all(set(times) == set(STATES) for times in rounds)
    assert {times[0] for times in rounds} == set(STATES)


def test_the_first_steps_of_a_turn_and_those_of_another_sort_do_not_count() -> None:
    turns = Turns()
    for _ in STATES:
        for _ in range(UNCOUNTED):
            assert not turns.step(99.0, alike=True)
        assert not turns.step(50.0, alike=False)
        ended = [turns.step(float(i), alike=True) for i in range(COUNTED)]
        assert ended == [False] * (COUNTED - 1) + [True]
    (found,) = turns.rounds
    assert set(found.values()) == {((COUNTED - 1) / 2, (COUNTED - 1) / 2)}


def test_rare_recorded_steps_are_counted_and_add_what_they_take_above_the_others() -> None:
    turns = Turns()
    for _ in STATES:
        rest = 2 if turns.state == BUDGET else 0
        for _ in range(UNCOUNTED):
            turns.step(9.0, alike=True, recorded=rest > 0)
        while not turns.step(1.5 if rest else 1.0, alike=True, recorded=rest > 0):
            rest = max(0, rest - 1)
    drawn = turns.drawn[BUDGET]
    assert (drawn.steps, drawn.recorded) == (COUNTED + UNCOUNTED, UNCOUNTED + 2)
    assert drawn.above == [0.5, 0.5]
    assert drawn.adds(2.0) == 0.5 / 2.0 * drawn.recorded / drawn.steps
    assert turns.drawn[STOPPED] == Drawn(steps=COUNTED + UNCOUNTED)
    assert turns.drawn[STOPPED].adds(2.0) == 0.0


def _round(unit: float) -> Round:
    return dict.fromkeys(STATES, (unit, unit))


def test_a_ratio_is_to_the_steps_of_its_own_round() -> None:
    generator = random.Random(3)
    rounds = [
        {**_round(unit), STOPPED: (1.02 * unit, unit), EVERY: (1.1 * unit, unit)}
        for unit in (generator.uniform(0.5, 2.0) for _ in range(40))
    ]
    for state, wanted in ((STOPPED, 1.02), (EVERY, 1.1), (AGAIN, 1.0)):
        assert ratios(rounds, state) == pytest.approx([wanted] * 40), "whatever the machine does"


def test_it_is_taken_up_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "stage.json"
    ResultsFile(path, "cpu").write(records=[1])
    assert ResultsFile(path, "cpu").facts["records"] == [1]
    assert ResultsFile(path, "cpu", again=True).facts == {}
    assert list(path.parent.iterdir()) == [path]


def test_it_says_where_it_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "stage.json"
    ResultsFile(path, "cpu").write(complete=True, ok=False, verdict="no")
    facts = json.loads(path.read_text())
    assert {"command", "date", "gpu", "python", "versions", "commit"} <= set(facts)
    assert (facts["complete"], facts["ok"], facts["verdict"]) == (True, False, "no")


def test_devices_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "stage.json"
    ResultsFile(path, "cpu").write()
    with pytest.raises(SystemExit, match="is of device cpu"):
        ResultsFile(path, "cuda")


CHECKED: dict[str, Any] = {
    "tokens_sha256": "a",
    "accepted": 9,
    "accepted_by_vllm": 9,
    "chains": 5,
    "drafted_equal": 5,
    "verified": 4,
    "accepted_equal": 4,
    "mass_error": 5e-4,
    "rank_error": 0.0,
    "closeness_error": 1e-5,
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
        ("fp32 v1 eager", {"closeness_error": 0.2}, ["rejected tokens off by 2.0e-01"]),
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


def test_the_probes_kernels_are_summed_by_round() -> None:
    rows = [
        {"name": "target", "count": 3, "device_s": 150e-6},
        {"name": "enter_forward", "count": 6, "device_s": 15e-6},
        {"name": "_partial", "count": 3, "device_s": 12e-6},
    ]
    assert overhead.kernels(rows) == {
        "rounds": 3,
        "us_per_round": {
            "enter_forward": {"launches": 2.0, "us": 5.0},
            "_partial": {"launches": 1.0, "us": 4.0},
        },
    }
    assert overhead.kernels(rows[:1]) == {"rounds": 0, "us_per_round": {}}


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


def test_a_real_pair_is_asked_by_the_command_that_users_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMOLLM2", "/models/target")
    monkeypatch.setenv("DRAFTERS", "a=/models/a,b=/models/b")
    words = real.command("cuda", tmp_path)[3:]
    assert words[:4] == ["pays", "/models/target", "--drafter", "a=/models/a"]
    assert words[4:6] == ["--drafter", "b=/models/b"]
    answer = {"topic": "pays", "answer": "yes", "statement": "It pays."}
    other = {"topic": "acceptance", "answer": "no", "statement": "It drops."}
    assert real.answers({"findings": [other, answer], "answers": [answer]}) == "It pays."
