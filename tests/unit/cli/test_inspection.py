"""An inspection as a baseline of a run, and the line before a target is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.inspections import inspection_document
from support.simulate import Truth, simulate

from driftscope.cli.inspection_baseline import LAST_ROUNDS, runs_like
from driftscope.cli.trial_run import loading_line
from driftscope.inspect.compare_run import InspectedAcceptance, read_inspection
from driftscope.pipeline import Inputs, analyze
from driftscope.trace.reader import read_trace

K = 4
TRUTH = Truth(k=K, requests=40, rounds=20)


@pytest.fixture
def inspected(tmp_path: Path) -> InspectedAcceptance:
    return read_inspection(inspection_document(tmp_path, (0.7, 0.6, 0.5, 0.4)))


def test_the_last_rounds_of_answers_are_left_out(
    tmp_path: Path, inspected: InspectedAcceptance
) -> None:
    path = simulate(tmp_path / "run", TRUTH)
    inputs = Inputs(sources=[path], labels=["run"])
    (run,), notes = runs_like(inspected, inputs)
    trace = read_trace(path)
    ends = {
        row["request"]: row["prompt_tokens"] + row["output_tokens"]
        for row in trace.request.to_pylist()
    }
    within = [
        row
        for row in trace.verify.to_pylist()
        if row["request"] in ends and row["position"] + 1 + K < ends[row["request"]]
    ]
    assert notes == ()
    assert 0 < run.rounds == len(within) < analyze(inputs).runs[0].rounds


def test_where_the_ends_are_not_known_all_rounds_count_and_a_note_says_so(
    tmp_path: Path, inspected: InspectedAcceptance
) -> None:
    path = simulate(tmp_path / "run", TRUTH)
    for file in path.glob("request-*"):
        file.unlink()
    inputs = Inputs(sources=[path], labels=["run"])
    (run,), notes = runs_like(inspected, inputs)
    assert notes == (LAST_ROUNDS,)
    assert run.rounds == analyze(inputs).runs[0].rounds > 0


@pytest.mark.parametrize(("size", "words"), [(7_100_000, "7.1 MB"), (2_500_000_000, "2.5 GB")])
def test_it_tells_how_much_is_loaded(tmp_path: Path, size: int, words: str) -> None:
    for name in ("model-1.safetensors", "model-2.safetensors"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size // 2)  # a hole: no disk is used
    (tmp_path / "config.json").write_text("{}")
    assert loading_line(tmp_path) == f"loading the target: {words} in {tmp_path}"
