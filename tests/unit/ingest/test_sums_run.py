"""A run from a file of sums shows what the sums support, and claims nothing that needs rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from driftscope.analysis.replays import NO_INTERVAL
from driftscope.cli.app import app
from driftscope.errors import DamagedTraceError, NoDataError, UsageError
from driftscope.ingest.base import SINCE_START, Figures
from driftscope.ingest.catalogue import ingest
from driftscope.ingest.ingested_run import NO_ROWS, WHOLE, Written, write_run
from driftscope.pipeline import Inputs, measure
from driftscope.trace.manifest import MANIFEST
from driftscope.trace.runs import entry_of

SAMPLES = Path(__file__).parent / "samples"
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


def _run(name: str, folder: Path) -> tuple[Path, tuple[Figures, ...]]:
    reader, found = ingest(SAMPLES / name)
    run = folder / "run"
    written = write_run(run, SAMPLES / name, reader, found)
    assert written == Written(requests=0, sums=len(found))
    return run, found


def _cli(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def _report(run: Path) -> dict[str, Any]:
    done = _cli("analyze", run, "--format", "json", "-o", "-", "-q")
    assert done.exit_code == 0, (done.output, done.exception)
    (replay,) = json.loads(done.stdout)["replays"]
    return dict(replay)


@pytest.mark.parametrize("name", SUMS)
def test_it_has_the_figures_of_the_file_and_no_others(name: str, tmp_path: Path) -> None:
    run, found = _run(name, tmp_path)
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
    replay = _report(_run("sglang-bench.jsonl", tmp_path)[0])
    (cell,) = replay["cells"]
    assert replay["planned"] is None and replay["ended"] == {}
    assert cell["mean_length"] == 2.9 and cell["totals"]["period"] == SINCE_START
    absent = ("rounds", "answered", "mean_length_interval", "e2e_s", "length_ratio")
    assert [cell[name] for name in absent] == [None] * len(absent)
    assert [cell["totals"][name] for name in ("k", "drafted", "marginal")] == [None] * 3


def test_the_report_says_that_there_is_no_interval(tmp_path: Path) -> None:
    run, _ = _run("vllm-bench.json", tmp_path)
    page = tmp_path / "page.html"
    done = _cli("analyze", run, "-o", page)
    assert done.exit_code == 0, (done.output, done.exception)
    assert f"2.50 tokens per round, 7.5 ms per token in {WHOLE} ({NO_INTERVAL})" in done.output
    text = page.read_text()
    assert f"2.50 ({NO_INTERVAL})" in text and "0.75 0.50 0.25" in text
    assert "answered 0 of" not in text and "0 answers" not in text


def test_a_log_of_requests_keeps_its_interval(tmp_path: Path) -> None:
    run, (figures,) = _run("server-log-llamacpp.log", tmp_path)
    assert figures.length_interval is not None
    done = _cli("analyze", run, "-o", tmp_path / "page.html")
    assert NO_INTERVAL not in done.output and "2.55 [2.09, 3.01]" in done.output


@pytest.mark.parametrize(
    "rule",
    ["high", "not_answered", "conditions_cost", "cells[0].mean_length < 2.0"],
)
def test_a_rule_that_needs_rows_is_undecided(rule: str, tmp_path: Path) -> None:
    run, _ = _run("vllm-bench.json", tmp_path)
    done = _cli("check", run, "--fail-on", rule)
    assert done.exit_code == 4
    assert done.stdout.startswith("undecided: ")
    assert "cannot tell: no per-request rows, sums only" in done.stdout


def test_a_rule_about_a_count_is_decided(tmp_path: Path) -> None:
    run, _ = _run("vllm-bench.json", tmp_path)
    assert _cli("check", run, "--fail-on", "cells[0].rounds < 200").exit_code == 0
    assert _cli("check", run, "--fail-on", "cells[0].rounds < 201").exit_code == 3


def test_two_runs_of_sums_are_not_compared(tmp_path: Path) -> None:
    run, _ = _run("vllm-bench.json", tmp_path)
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
    run, _ = _run("vllm-bench.json", tmp_path)
    content = json.loads((run / MANIFEST).read_text())
    content["workload"]["ingested"]["totals"] = sums
    (run / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(DamagedTraceError, match="sums that no driftscope writes"):
        measure(Inputs(sources=[run], labels=["it"]))
