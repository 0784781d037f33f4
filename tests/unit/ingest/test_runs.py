"""A run from another tool's file is read by the analysis, with what the file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from driftscope.analysis.replays import NO_INTERVAL, summarise_replay, versus
from driftscope.cli.app import app
from driftscope.errors import DamagedTraceError, NoDataError, TraceError, UsageError
from driftscope.ingest.base import SINCE_START, Figures
from driftscope.ingest.catalogue import ingest
from driftscope.ingest.run_directory import NO_ROWS, UNTIMED, WHOLE, Written, write_run
from driftscope.pipeline import Inputs, measure
from driftscope.trace.manifest import MANIFEST
from driftscope.trace.reader import read_trace
from driftscope.trace.runs import entry_of

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


def _cli(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def _report(run: Path) -> dict[str, Any]:
    done = _cli("analyze", run, "--format", "json", "-o", "-", "-q")
    assert done.exit_code == 0, (done.output, done.exception)
    (replay,) = json.loads(done.stdout)["replays"]
    return dict(replay)


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


def test_commands_take_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = _cli("ingest", SAMPLES / "vllm-requests.jsonl", "-o", run)
    assert done.exit_code == 0 and f"next: driftscope analyze {run}" in done.output
    done = _cli("analyze", run, "-o", tmp_path / "r.html")
    assert done.exit_code == 0, (done.output, done.exception)
    assert _report(run)["cells"]


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
    done = _cli("analyze", *runs, "-o", tmp_path / "report.html")
    assert done.exit_code == 0, (done.output, done.exception)
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


SUMS = (
    "vllm-bench.json",
    "prometheus-vllm.txt",
    "prometheus-sglang.txt",
    "prometheus-range.json",
    "sglang-bench.jsonl",
    "trtllm-iterations.json",
    "server-log-vllm.log",
    "server-log-sglang.log",
    "server-log-llamacpp.log",
    "aiperf-summary.json",
    "eagle-answers.jsonl",
    "specforge.json",
    "speed-bench.json",
    "speculation-profile.json",
    "llamacpp-responses.jsonl",
    "mlx-vlm-responses.jsonl",
)


def _sums_run(name: str, folder: Path) -> tuple[Path, tuple[Figures, ...]]:
    reader, found = ingest(SAMPLES / name)
    run = folder / "run"
    written = write_run(run, SAMPLES / name, reader, found)
    assert written == Written(requests=0, sums=len(found))
    return run, found


@pytest.mark.parametrize("name", SUMS)
def test_it_has_the_figures_of_the_file_and_no_others(name: str, tmp_path: Path) -> None:
    run, found = _sums_run(name, tmp_path)
    (replay,) = measure(Inputs(sources=[run], labels=["it"])).replays
    assert (replay.planned, replay.rows, replay.has_rows) == (None, (), False)
    assert any(NO_ROWS in note for note in replay.manifest.notes)
    for cell, figures in zip(replay.cells, found, strict=True):
        assert cell.condition == (figures.part or WHOLE) and cell.load == "not recorded"
        assert (cell.requests, cell.rounds) == (figures.requests, figures.rounds)
        assert cell.mean_length == figures.length
        assert cell.mean_length_interval == figures.length_interval
        assert (cell.ttft_s, cell.tpot_s) == (figures.ttft_s, figures.tpot_s)
        assert cell.throughput == figures.output_per_s
        assert (cell.answered, cell.e2e_s, cell.length_ratio, cell.tpot_ratio) == (None,) * 4
        assert cell.totals is not None and cell.totals.marginal == figures.marginal
        assert (cell.totals.k, cell.totals.drafted) == (figures.k, figures.drafted)


def test_what_is_not_in_the_file_is_null_and_never_0(tmp_path: Path) -> None:
    replay = _report(_sums_run("sglang-bench.jsonl", tmp_path)[0])
    (cell,) = replay["cells"]
    assert replay["planned"] is None and replay["ended"] == {}
    assert cell["mean_length"] == 2.9 and cell["totals"]["period"] == SINCE_START
    absent = ("rounds", "answered", "mean_length_interval", "e2e_s", "length_ratio")
    assert [cell[name] for name in absent] == [None] * len(absent)
    assert [cell["totals"][name] for name in ("k", "drafted", "marginal")] == [None] * 3


def test_the_report_says_that_there_is_no_interval(tmp_path: Path) -> None:
    run, _ = _sums_run("vllm-bench.json", tmp_path)
    page = tmp_path / "page.html"
    done = _cli("analyze", run, "-o", page)
    assert done.exit_code == 0, (done.output, done.exception)
    assert f"2.50 tokens per round, 7.5 ms per token in {WHOLE} ({NO_INTERVAL})" in done.output
    text = page.read_text()
    assert f"2.50 ({NO_INTERVAL})" in text and "0.75 0.50 0.25" in text
    assert "answered 0 of" not in text and "0 answers" not in text


def test_a_log_of_requests_keeps_its_interval(tmp_path: Path) -> None:
    run, (figures,) = _sums_run("server-log-llamacpp.log", tmp_path)
    assert figures.length_interval is not None
    done = _cli("analyze", run, "-o", tmp_path / "page.html")
    assert NO_INTERVAL not in done.output and "2.55 [2.09, 3.01]" in done.output


@pytest.mark.parametrize(
    "rule",
    ["high", "not_answered", "conditions_cost", "cells[0].mean_length < 2.0"],
)
def test_a_rule_that_needs_rows_is_undecided(rule: str, tmp_path: Path) -> None:
    run, _ = _sums_run("vllm-bench.json", tmp_path)
    done = _cli("check", run, "--fail-on", rule)
    assert done.exit_code == 4
    assert done.stdout.startswith("undecided: ")
    assert "cannot tell: no per-request rows, sums only" in done.stdout


def test_a_rule_about_a_count_is_decided(tmp_path: Path) -> None:
    run, _ = _sums_run("vllm-bench.json", tmp_path)
    assert _cli("check", run, "--fail-on", "cells[0].rounds < 200").exit_code == 0
    assert _cli("check", run, "--fail-on", "cells[0].rounds < 201").exit_code == 3


def test_two_runs_of_sums_are_not_compared(tmp_path: Path) -> None:
    run, _ = _sums_run("vllm-bench.json", tmp_path)
    done = _cli("compare", run, run)
    assert isinstance(done.exception, NoDataError)
    assert "cannot tell how the runs compare: no per-request rows" in str(done.exception)


def test_the_command_names_what_it_wrote(tmp_path: Path) -> None:
    done = _cli("ingest", SAMPLES / "specforge.json", "-o", tmp_path / "run")
    assert done.exit_code == 0
    assert f"written: {tmp_path / 'run'}, sums of 2 parts ({NO_INTERVAL})" in done.output
    assert entry_of(tmp_path / "run").requests is None


def test_a_count_that_no_run_can_hold_is_one_error(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    text = (SAMPLES / "vllm-bench.json").read_text()
    file.write_text(text.replace('draft_tokens": 600', f'draft_tokens": {2**60}'))
    reader, found = ingest(file)
    assert found[0].drafted == 2**60
    with pytest.raises(UsageError, match="drafted is 1152921504606846976"):
        write_run(tmp_path / "run", file, reader, found)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "sums", [[{"condition": 3}], "many", [{"condition": "a", "period": "b"}, 1]]
)
def test_a_damaged_manifest_is_one_error(sums: object, tmp_path: Path) -> None:
    run, _ = _sums_run("vllm-bench.json", tmp_path)
    content = json.loads((run / MANIFEST).read_text())
    content["workload"]["ingested"]["totals"] = sums
    (run / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(DamagedTraceError, match="sums that no driftscope writes"):
        measure(Inputs(sources=[run], labels=["it"]))
