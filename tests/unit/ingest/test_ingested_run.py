"""A run from another tool's file is read by the analysis, with what the file holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from driftscope.cli.app import app
from driftscope.errors import TraceError
from driftscope.ingest.base import Figures
from driftscope.ingest.catalogue import ingest
from driftscope.ingest.ingested_run import UNTIMED, WHOLE, Written, write_run
from driftscope.pipeline import Inputs, measure
from driftscope.trace.reader import read_trace

SAMPLES = Path(__file__).parent / "samples"
WITH_ROUNDS = (
    "vllm-requests.jsonl",
    "sglang-requests.jsonl",
    "trtllm-requests.jsonl",
    "aiperf-records.jsonl",
    "guidellm.json",
    "spec-bench.jsonl",
)


def _run(name: str, folder: Path) -> tuple[Path, Figures]:
    reader, found = ingest(SAMPLES / name)
    run = folder / name
    assert write_run(run, SAMPLES / name, reader, found) == Written(requests=6, sums=0)
    return run, found[0]


@pytest.mark.parametrize("name", WITH_ROUNDS)
def test_its_summary_has_the_figures_of_the_file(name: str, tmp_path: Path) -> None:
    run, figures = _run(name, tmp_path)
    (replay,) = measure(Inputs(sources=[run], labels=["it"])).replays
    (cell,) = replay.cells
    assert cell.condition == WHOLE and cell.load == "not recorded"
    assert (cell.requests, cell.answered, cell.rounds) == (6, 6, figures.rounds)
    assert cell.mean_length == pytest.approx(figures.length)
    assert cell.mean_length_interval == figures.length_interval
    assert cell.throughput is None and cell.e2e_s is None
    if name in ("aiperf-records.jsonl", "guidellm.json"):
        assert cell.ttft_s == pytest.approx(figures.ttft_s)
        assert cell.tpot_s == pytest.approx(figures.tpot_s)
    else:
        assert cell.ttft_s is None and cell.tpot_s is None
    assert UNTIMED in replay.manifest.notes


def test_rounds_are_those_of_the_histogram(tmp_path: Path) -> None:
    run, _ = _run("vllm-requests.jsonl", tmp_path)
    first = read_trace(run).client.to_pylist()[0]
    assert first["accepted"] == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    assert first["drafted"] == [3] * 10


@pytest.mark.parametrize("name", ["vllm-requests.jsonl", "spec-bench.jsonl"])
def test_commands_take_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    done = CliRunner().invoke(app, ["ingest", str(SAMPLES / name), "-o", str(run)])
    assert done.exit_code == 0 and f"next: driftscope analyze {run}" in done.output
    for words in (["analyze", str(run)], ["analyze", str(run), "-o", str(tmp_path / "r.html")]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, (done.output, done.exception)
    done = CliRunner().invoke(app, ["analyze", str(run), "--format", "json", "-o", "-"])
    assert done.exit_code == 0, (done.output, done.exception)


def test_questions_are_paired_where_the_file_names_them(tmp_path: Path) -> None:
    text = (SAMPLES / "spec-bench.jsonl").read_text()
    other = tmp_path / "other.jsonl"
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        choice = line["choices"][0]
        choice["accept_lengths"] = [max(n - 1, 1) for n in choice["accept_lengths"]]
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    runs = []
    for number, path in enumerate((SAMPLES / "spec-bench.jsonl", other)):
        reader, found = ingest(path)
        runs.append(tmp_path / f"run{number}")
        write_run(runs[-1], path, reader, found)
    done = CliRunner().invoke(
        app, ["analyze", *map(str, runs), "-o", str(tmp_path / "report.html")]
    )
    assert done.exit_code == 0, (done.output, done.exception)
    from driftscope.analysis.replays import summarise_replay, versus

    first, second = (summarise_replay(read_trace(run), run.name) for run in runs)
    (comparison,) = versus(first, second)
    assert comparison.length_ratio is not None and comparison.length_ratio.value < 1
    unpaired = _run("vllm-requests.jsonl", tmp_path)[0]
    alone = summarise_replay(read_trace(unpaired), "vllm")
    assert versus(first, alone) == ()


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    _run("guidellm.json", tmp_path)
    reader, found = ingest(SAMPLES / "guidellm.json")
    with pytest.raises(TraceError, match="already holds a run"):
        write_run(tmp_path / "guidellm.json", SAMPLES / "guidellm.json", reader, found)
