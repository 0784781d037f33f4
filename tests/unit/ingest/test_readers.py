"""Other tools' and engines' figures as runs: formats, figures and refusals."""

from __future__ import annotations

import errno
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.command import assert_fails, run_command
from support.engine_logs import response, write

from driftscope.analysis.replays import BOUNDS, NO_INTERVAL, FileTotals, summarise_replay, versus
from driftscope.boundary.json_document import INGESTED
from driftscope.errors import (
    EXIT_ERROR,
    EXIT_NO_DATA,
    EXIT_USAGE,
    DamagedTraceError,
    UnknownKindError,
    UsageError,
)
from driftscope.ingest.base import LAST_INTERVAL, SINCE_START, Figures
from driftscope.ingest.catalogue import READERS, ingest
from driftscope.ingest.prometheus import SINCE_RESTART, ingest_window, two_scrapes
from driftscope.ingest.run_directory import NO_ROWS, UNTIMED, WHOLE, write_run
from driftscope.json_schema import schema_of
from driftscope.pipeline import Inputs, measure
from driftscope.trace.manifest import MANIFEST
from driftscope.trace.reader import read_trace
from driftscope.trace.segments import StreamFile

SAMPLES = Path(__file__).parent / "samples"
INPUTS = Path(__file__).parents[2] / "verification" / "cases" / "inputs"
ROUNDS = 60  # 10 each
ACCEPTED = 20 + 18 + 20 + 12 + 21 + 14
MARGINAL = (50 / 60, 35 / 60, 20 / 60)


def _one(name: str, reader: str) -> Figures:
    found_reader, found = ingest(SAMPLES / name)
    assert found_reader.name == reader
    (only,) = found
    assert not only.contradictions
    return only


WITH_ROUNDS = {
    "vllm-requests.jsonl": "vllm-requests",
    "sglang-requests.jsonl": "sglang-requests",
    "trtllm-requests.jsonl": "trtllm-requests",
    "aiperf-records.jsonl": "aiperf-records",
    "guidellm.json": "guidellm",
    "spec-bench.jsonl": "spec-bench",
}
"""Samples that tell the rounds of each request -> their reader."""


@pytest.mark.parametrize(("name", "reader"), WITH_ROUNDS.items())
def test_requests_with_a_histogram_each(name: str, reader: str) -> None:
    found = _one(name, reader)
    assert (found.rounds, found.accepted) == (ROUNDS, ACCEPTED)
    length, interval = 1 + ACCEPTED / ROUNDS, found.mean_length_interval
    assert (found.mean_length, found.mean_length_by_request) == pytest.approx((length, length))
    assert found.marginal == pytest.approx(MARGINAL)
    assert interval is not None and interval.low < length < interval.high


@pytest.mark.parametrize(
    ("name", "reader", "rounds", "length", "marginal"),
    [
        ("vllm-bench.json", "vllm-bench", 200, 2.5, (0.75, 0.5, 0.25)),  # 1 + 300 / 200
        ("prometheus-vllm.txt", "prometheus", 200, 2.5, (0.75, 0.5, 0.25)),
        # Increases 120 + 50 (after a restart) + 30 rounds, 180 + 75 + 45 tokens.
        ("prometheus-range.json", "prometheus-range", 200, 2.5, (0.75, 0.5, 0.25)),
        # 1 + (3 + 5) / (2 + 2)
        ("trtllm-iterations.json", "trtllm-iterations", 4, 3.0, None),
        # 40 requests of 250 tokens, of which 150 are accepted drafts, in 100 iterations.
        ("trtllm-bench.json", "trtllm-bench", 4000, 2.5, None),
        ("aiperf-summary.json", "aiperf-summary", 200, 2.5, (0.75, 0.5, 0.25)),
        # (50 + 2 * 50 + 4 * 100) / 200. Length 3 did not occur: as many rounds reach depth 2 as 3.
        ("speed-bench.json", "speed-bench", 200, 2.75, (0.75, 0.5, 0.5)),
        ("speculation-profile.json", "speculation-profile", None, 2.5, (0.75, 0.5, 0.25)),
        # Rounds of the lines: 150 / 1.5 = 100, 100 / 1.0 = 100.
        ("server-log-vllm.log", "server-log", 200, 2.25, None),
        # 155 tokens in 5 * 20 rounds.
        ("server-log-llamacpp.log", "server-log", 100, 2.55, None),
        ("mlx-vlm-responses.jsonl", "llamacpp-responses", 100, 2.55, None),
        # 100 rounds yield 5 * 25 + 25 + 35 + 30 + 20 + 25 tokens.
        ("eagle-answers.jsonl", "eagle-answers", 100, 2.6, None),
        # An idle line of SGLang is no measurement.
        ("server-log-sglang.log", "server-log", None, 2.75, None),
    ],
)
def test_sums(
    name: str, reader: str, rounds: int | None, length: float, marginal: tuple[float, ...] | None
) -> None:
    found = _one(name, reader)
    assert found.rounds == rounds and found.mean_length == pytest.approx(length)
    assert marginal is None or found.marginal == pytest.approx(marginal)


def _responses(path: Path, *rounds: list[tuple[int, int]], **more: Any) -> Path:
    """Write vLLM responses at K = 7: their rounds by tokens verified and accepted."""
    rows = []
    for pairs in rounds:
        accepted = [tokens for _, tokens in pairs]
        own = {name: value(pairs) for name, value in more.items()}
        histogram = [accepted.count(tokens) for tokens in range(8)]
        rows.append(json.dumps(response(histogram, sum(n for n, _ in pairs), **own)))
    return write(path, rows)


def _by_length(pairs: list[tuple[int, int]]) -> dict[str, list[int]]:
    lengths = {n for n, _ in pairs}
    return {str(n): [pairs.count((n, tokens)) for tokens in range(n + 1)] for n in lengths}


CUT = [(1, 1)] * 20 + [(2, 0)] * 10 + [(2, 2)] * 10
DETAILED = {
    "per_step_drafted": lambda pairs: [n for n, _ in pairs],
    "per_step_accepted": lambda pairs: [tokens for _, tokens in pairs],
}


@pytest.mark.parametrize(
    ("rounds", "more", "marginal", "words"),
    [
        ([(1, 1)] * 100, {}, [1.0], "1.0 of K = 7 draft tokens were verified"),
        ([(2, 2)] * 30 + [(2, 1)] * 10, {}, [1.0, 0.75], "depths 3 to 7 never"),
        (CUT, {}, [0.75], "in which rounds is not in the file: no rate beyond depth 1"),
        (CUT, {"acceptance_histogram_by_draft_length": _by_length}, [0.75, 0.75], "3 to 7 never"),
        (CUT, DETAILED, [0.75, 0.75], "rates are over the rounds that verified the depth"),
        ([(7, 1)] * 40, {}, [1.0, *[0.0] * 6], ""),
    ],
)
def test_a_depth_that_was_not_verified_was_not_rejected(
    rounds: list[tuple[int, int]],
    more: dict[str, Any],
    marginal: list[float],
    words: str,
    tmp_path: Path,
) -> None:
    file = _responses(tmp_path / "cut.jsonl", rounds, rounds, **more)
    (figures,) = ingest(file)[1]
    assert figures.marginal == (*marginal, *[None] * (7 - len(marginal)))
    assert words in "; ".join(figures.assumptions) and figures.contradictions == ()
    observed = "; ".join(figures.observations)
    assert ("nothing is accepted beyond" in observed) is (0.0 in marginal)
    counted = 1 + sum(tokens for _, tokens in rounds) / len(rounds)
    assert figures.mean_length == pytest.approx(counted), "as served"


def test_rounds_by_length_that_are_not_the_rounds_are_said(tmp_path: Path) -> None:
    wrong = {"acceptance_histogram_by_draft_length": lambda pairs: {"2": [len(pairs) - 1, 0, 1]}}
    (figures,) = ingest(_responses(tmp_path / "cut.jsonl", CUT, **wrong))[1]
    assert "whose rounds by draft length are not their rounds" in figures.contradictions[0]
    assert figures.marginal == (0.75, *[None] * 6)


def test_counters_of_a_server_that_cut_drafts_give_no_rate_beyond_depth_1(tmp_path: Path) -> None:
    page = (SAMPLES / "prometheus-vllm.txt").read_text()
    whole = ingest(SAMPLES / "prometheus-vllm.txt")[1][0]
    assert whole.marginal is not None and whole.rounds and whole.k
    name = 'vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"}'
    for tokens, rates in (
        (whole.k * whole.rounds, whole.marginal),
        (whole.k * whole.rounds - 50, (whole.marginal[0], *[None] * (whole.k - 1))),
    ):
        (tmp_path / "page.txt").write_text(f"{page}\n{name} {tokens}.0\n")
        (figures,) = ingest(tmp_path / "page.txt")[1]
        assert (figures.verified, figures.marginal) == (tokens, rates)


def test_counters_of_what_was_drafted_at_each_position_give_every_rate(tmp_path: Path) -> None:
    page = (SAMPLES / "prometheus-vllm.txt").read_text()
    (whole,) = ingest(SAMPLES / "prometheus-vllm.txt")[1]
    assert whole.marginal is not None and whole.rounds and whole.k
    drafted = [whole.rounds, *[whole.rounds * 0.9] * (whole.k - 1)]
    name = "vllm:spec_decode_num_draft_tokens"
    lines = [
        f'{name}_per_pos_total{{engine="0",model_name="m",position="{at}"}} {n}'
        for at, n in enumerate(drafted)
    ]
    lines.append(f'{name}_total{{engine="0",model_name="m"}} {sum(drafted)}')
    (tmp_path / "page.txt").write_text("\n".join([page, *lines, ""]))
    (figures,) = ingest(tmp_path / "page.txt")[1]
    wanted = [whole.marginal[0], *[rate / 0.9 for rate in whole.marginal[1:] if rate is not None]]
    assert figures.marginal == pytest.approx(wanted)
    assert "rates are over the rounds that verified the depth" in "; ".join(figures.assumptions)


def test_a_rule_of_verification_that_is_not_exact_is_said(tmp_path: Path) -> None:
    fields = json.loads((SAMPLES / "sglang-bench.jsonl").read_text().splitlines()[0])
    for threshold, said in ((1.0, False), (0.9, True)):
        fields["server_info"] = {"speculative_accept_threshold_single": threshold}
        (tmp_path / "bench.jsonl").write_text(json.dumps(fields))
        (figures,) = ingest(tmp_path / "bench.jsonl")[1]
        words = "; ".join(figures.assumptions)
        assert ("another rule than the exact one: relaxed (thresholds 0.9 and 1)" in words) is said


def test_times_are_in_seconds() -> None:
    found = _one("vllm-bench.json", "vllm-bench")
    assert (found.ttft_s, found.tpot_s, found.output_tokens_per_s) == (0.04, 0.0075, 130.0)
    assert found.token_rate == pytest.approx(0.5) and found.k == 3
    records = _one("aiperf-records.jsonl", "aiperf-records")
    assert records.ttft_s == pytest.approx(0.0425) and records.tpot_s == pytest.approx(0.008)
    guide = _one("guidellm.json", "guidellm")
    assert guide.ttft_s == pytest.approx(0.05) and guide.tpot_s == pytest.approx(0.01)
    # 500 ms / 50 tokens and 800 ms / 40 tokens.
    llama = _one("llamacpp-responses.jsonl", "llamacpp-responses")
    assert llama.tpot_s == pytest.approx((0.010 + 0.020) / 2)


def test_every_format_has_a_sample() -> None:
    read = {ingest(path)[0].name for path in SAMPLES.iterdir()}
    assert read == READERS.keys()
    assert len(READERS) >= 12


def _bench_with(folder: Path, old: str, new: str) -> Path:
    return write(folder / "a.json", (SAMPLES / "vllm-bench.json").read_text().replace(old, new))


def test_figures_that_use_the_other_definition_are_noticed(tmp_path: Path) -> None:
    """A length without the target's own token, beside counts that include it."""
    file = _bench_with(tmp_path, 'acceptance_length": 2.5', 'acceptance_length": 1.5')
    (found,) = ingest(file)[1]
    assert found.mean_length == pytest.approx(2.5)
    assert "does not count the target's own token" in found.contradictions[0]


def test_conditional_rates_are_not_taken_for_marginal_ones(tmp_path: Path) -> None:
    (found,) = ingest(_bench_with(tmp_path, "0.25", "0.9"))[1]
    assert any("rise with depth" in contradiction for contradiction in found.contradictions)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"measured": false, "num_speculative_tokens": 3}', "a stub"),
        ('{"benchmarks": []}', "holds no figure"),
        ('{"mean_ttft_ms": "x", "total_input_tokens": 1}', "mean_ttft_ms is 'x', not a number"),
        ('{"mean_ttft_ms": -1, "total_input_tokens": 1}', "outside 0 to"),
        ("vllm:spec_decode_num_drafts_total NaN", "not a finite number"),
        (
            '{"iter": 1, "iterLatencyMS": 2,"attentionDpRank": [1], "specDecodingStats": {"a": 0}}',
            "attentionDpRank is '.1.', not a number",
        ),
    ],
)
def test_a_file_that_no_tool_writes_is_one_error(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ingest(write(tmp_path / "file", content))


def test_what_a_reader_does_not_foresee_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> Iterator[Figures]:
        raise OverflowError("too large")
        yield

    monkeypatch.setitem(READERS, "vllm-bench", replace(READERS["vllm-bench"], read=fail))
    with pytest.raises(
        UsageError, match=r"is not what vLLM .* writes \(OverflowError: too large\)"
    ):
        ingest(SAMPLES / "vllm-bench.json")


def test_a_histogram_that_is_none_is_passed_over(tmp_path: Path) -> None:
    text = "Finish: obj=A, out={'spec_verify_ct': 3, 'completion_tokens': 9, "
    text += "'spec_correct_drafts_histogram': [1,, 2]}"
    _, (figures,) = ingest(write(tmp_path / "server.log", text))
    assert (figures.rounds, figures.accepted, figures.marginal) == (3, 5, None)


def test_a_missing_file_and_an_unknown_format_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not readable"):
        ingest(tmp_path / "none")
    with pytest.raises(UsageError, match=r"no such format; there are .*vllm-requests"):
        ingest(SAMPLES / "vllm-bench.json", "excel")


FILES = sorted(SAMPLES.iterdir())


def _read(content: bytes, name: str | None) -> tuple[Figures, ...]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        try:
            return ingest(Path(file.name), name)[1]
        except (UnknownKindError, UsageError):
            return ()


def _possible(figures: Figures) -> bool:
    lengths = (figures.mean_length, figures.mean_length_by_request)
    return all(length is None or length >= 1.0 or figures.accepted is None for length in lengths)


@settings(max_examples=400)
@given(
    st.sampled_from(FILES),
    st.floats(0, 1),
    st.integers(0, 40),
    st.binary(max_size=6),
    st.booleans(),
)
def test_damaged_samples(path: Path, at: float, more: int, put: bytes, cut: bool) -> None:
    content = path.read_bytes()
    place = int(at * len(content))
    damaged = content[:place] if cut else content[:place] + put + content[place + more :]
    assert all(_possible(item) for item in _read(damaged, None))


@settings(max_examples=150)
@given(st.sampled_from(FILES), st.sampled_from(sorted(READERS)))
def test_a_file_under_the_name_of_another_format(path: Path, name: str) -> None:
    _read(path.read_bytes(), name)


def test_lengths_of_different_numbers_of_draft_tokens_are_shown_to_one_depth(
    tmp_path: Path,
) -> None:
    lengths = {"short": [4, 2, 1, 4], "long": [7, 2, 1, 4], "again": [3, 1, 4, 4]}
    for name, accepted in lengths.items():
        answer = {"choices": [{"accept_lengths": accepted, "turns": [""]}], "question_id": 1}
        (tmp_path / name).write_text(json.dumps(answer) + "\n")

    short, long, again = (tmp_path / name for name in lengths)
    assert "to depth 3 they are short 2.75, long 2.75" in _cli("ingest", short, long)
    assert "do not compare" not in _cli("ingest", short, again)


def test_the_document_follows_its_schema() -> None:
    document = json.loads(_cli("ingest", *FILES, "--json"))
    jsonschema.validate(document, schema_of(INGESTED))
    assert len(document["files"]) == len(FILES)


def test_the_formats_are_listed_and_a_file_is_needed() -> None:
    listed = _cli("ingest", "--list")
    assert all(name in listed for name in READERS)
    assert "--list" in _cli("ingest", code=EXIT_USAGE)


def test_a_pipe_is_read_and_a_url_is_given_back_as_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (SAMPLES / "server-log-vllm.log").open() as log:
        monkeypatch.setattr("sys.stdin", log)
        piped = _cli("ingest", "-", "--json")
    (file,) = json.loads(piped)["files"]
    named = json.loads(_cli("ingest", SAMPLES / "server-log-vllm.log", "--json"))["files"][0]
    assert file["figures"] == named["figures"]
    url = "http://localhost:8000/metrics"
    assert f"`driftscope watch {url}`" in _cli("ingest", url, code=EXIT_USAGE)
    assert f"`driftscope watch {url}`" in _cli("analyze", url, code=1)
    assert "`driftscope watch localhost:8000`" in _cli("analyze", "localhost:8000", code=1)


def _run(name: str, folder: Path) -> tuple[Path, Figures]:
    reader, found = ingest(SAMPLES / name)
    assert write_run(folder / name, SAMPLES / name, reader, found) == (6, 0)
    return folder / name, found[0]


def _cli(*words: object, code: int = 0) -> str:
    """Return what a command prints, and check its exit code."""
    done = run_command(*words, COLUMNS="200")
    assert done.returncode == code, done.stderr
    return " ".join(f"{done.stdout} {done.stderr}".split())


def _report(run: Path) -> dict[str, Any]:
    (replay,) = json.loads(_cli("analyze", run, "--format", "json", "-o", "-", "-q"))["replays"]
    return dict(replay)


@pytest.mark.parametrize("name", WITH_ROUNDS)
def test_its_summary_has_the_figures_of_the_file(name: str, tmp_path: Path) -> None:
    run, figures = _run(name, tmp_path)
    (replay,) = measure(Inputs(sources=[run], labels=["it"])).replays
    (cell,) = replay.cells
    assert cell.condition == WHOLE and cell.load == "not recorded"
    assert (cell.requests, cell.answered, cell.rounds) == (6, 6, figures.rounds)
    assert cell.mean_length == pytest.approx(figures.mean_length)
    assert cell.mean_length_interval == figures.mean_length_interval
    assert cell.throughput is None and cell.e2e_s is None
    timed = name in ("aiperf-records.jsonl", "guidellm.json")
    times = (figures.ttft_s, figures.tpot_s) if timed else (None, None)
    assert (cell.ttft_s, cell.tpot_s) == pytest.approx(times)
    assert UNTIMED in replay.manifest.notes


def test_questions_are_paired_where_the_file_names_them(tmp_path: Path) -> None:
    text = (SAMPLES / "spec-bench.jsonl").read_text()
    answers = [json.loads(line) for line in text.splitlines()]
    for answer in answers:
        choice = answer["choices"][0]
        choice["accept_lengths"] = [max(n - 1, 1) for n in choice["accept_lengths"]]
    other = write(tmp_path / "other.jsonl", [json.dumps(answer) for answer in answers])
    runs = []
    for number, path in enumerate((SAMPLES / "spec-bench.jsonl", other)):
        runs.append(tmp_path / f"run{number}")
        write_run(runs[-1], path, *ingest(path))
    _cli("analyze", *runs, "-o", tmp_path / "report.html")
    first, second = (summarise_replay(read_trace(run), run.name) for run in runs)
    (comparison,) = versus(first, second)
    assert comparison.length_ratio is not None and comparison.length_ratio.value < 1
    unpaired = _run("vllm-requests.jsonl", tmp_path)[0]
    alone = summarise_replay(read_trace(unpaired), "vllm")
    assert versus(first, alone) == ()


SUMS = [path.name for path in FILES if path.name not in WITH_ROUNDS]


def _sums_run(name: str, folder: Path) -> tuple[Path, tuple[Figures, ...]]:
    reader, found = ingest(SAMPLES / name)
    assert write_run(folder / "run", SAMPLES / name, reader, found) == (0, len(found))
    return folder / "run", found


@pytest.mark.parametrize("name", SUMS)
def test_it_has_the_figures_of_the_file_and_no_others(name: str, tmp_path: Path) -> None:
    run, found = _sums_run(name, tmp_path)
    (replay,) = measure(Inputs(sources=[run], labels=["it"])).replays
    assert (replay.planned, replay.rows, replay.has_rows) == (None, (), False)
    assert any(NO_ROWS in note for note in replay.manifest.notes)
    for cell, figures in zip(replay.cells, found, strict=True):
        assert cell.condition == (figures.part or WHOLE) and cell.load == "not recorded"
        assert (cell.requests, cell.rounds) == (figures.requests, figures.rounds)
        assert cell.mean_length == figures.mean_length
        assert cell.totals is not None
        bounds = cell.totals.length_bounds
        assert cell.mean_length_interval == (figures.mean_length_interval or bounds)
        assert (bounds is None) is (not (figures.rounds and (figures.k or figures.verified)))
        assert (cell.ttft_s, cell.tpot_s) == (figures.ttft_s, figures.tpot_s)
        assert cell.throughput == figures.output_tokens_per_s
        assert (cell.answered, cell.e2e_s, cell.length_ratio, cell.tpot_ratio) == (None,) * 4
        assert cell.totals.marginal == figures.marginal
        assert (cell.totals.k, cell.totals.verified) == (figures.k, figures.verified)


def test_what_is_not_in_the_file_is_null_and_never_0(tmp_path: Path) -> None:
    replay = _report(_sums_run("sglang-bench.jsonl", tmp_path)[0])
    (cell,) = replay["cells"]
    assert replay["planned"] is None and replay["ended"] == {}
    assert cell["mean_length"] == 2.9 and cell["totals"]["period"] == SINCE_START
    absent = ("rounds", "answered", "mean_length_interval", "e2e_s", "length_ratio")
    assert [cell[name] for name in absent] == [None] * len(absent)
    assert [cell["totals"][name] for name in ("k", "verified", "marginal")] == [None] * 3


@pytest.mark.parametrize(
    ("name", "words"),
    [("vllm-bench.json", f"1.04 to 3.96, {BOUNDS}"), ("speculation-profile.json", NO_INTERVAL)],
)
def test_the_report_says_what_interval_sums_have(name: str, words: str, tmp_path: Path) -> None:
    run, _ = _sums_run(name, tmp_path)
    page = tmp_path / "page.html"
    assert f" tokens per round ({words})" in _cli("analyze", run, "-o", page)
    text = page.read_text()
    assert (BOUNDS if BOUNDS in words else f"({words})") in text and "0.75 0.50 0.25" in text
    assert "answered 0 of" not in text and "0 answers" not in text


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("high", "no per-request rows, sums only"),
        ("not_answered", "it needs rows of requests"),
        ("falls_in_log", "it needs a log with 4 lines"),
        ("sink_lost", "it is about a run recorded by a probe"),
        ("cells[0].mean_length < 2.0", "no per-request rows, sums only"),
    ],
)
def test_a_rule_that_needs_rows_is_undecided(rule: str, words: str, tmp_path: Path) -> None:
    run, _ = _sums_run("vllm-bench.json", tmp_path)
    said = _cli("check", run, "--fail-on", rule, code=EXIT_NO_DATA)
    assert said.startswith("undecided: ")
    assert words in said


def _bench(folder: Path, accepted: int, rounds: int = 21_000) -> Path:
    """Write a run of vLLM's benchmark at K = 8, whose tokens are all at depth 1, if they fit."""
    fields = json.loads((INPUTS / "46-dead.json").read_text())
    rates = [min(accepted / rounds, 1.0) / (1 + depth) for depth in range(8)]
    counts = {"num_drafts": rounds, "draft_tokens": 8 * rounds, "accepted_tokens": accepted}
    fields |= {f"spec_decode_{name}": value for name, value in counts.items()}
    fields |= {
        "spec_decode_acceptance_length": 1 + accepted / rounds,
        "spec_decode_per_position_acceptance_rates": rates,
    }
    path = write(folder / f"{accepted}-of-{rounds}.json", json.dumps(fields))
    write_run(folder / path.stem, path, *ingest(path))
    return folder / path.stem


@pytest.mark.parametrize(
    ("accepted", "rounds", "badge", "nothing", "length"),
    [
        (9, 21_000, "[ACT] Nothing is accepted", 3, 3),
        (9, 200, "[TOO LITTLE DATA]", 4, 4),
        (60_000, 21_000, "[NOTHING FOUND]", 0, 0),
    ],
)
def test_sums_conclude_as_far_as_their_bounds_do(
    accepted: int, rounds: int, badge: str, nothing: int, length: int, tmp_path: Path
) -> None:
    run = _bench(tmp_path, accepted, rounds)
    assert badge in _cli("analyze", run, "-o", tmp_path / "a.html")
    _cli("check", run, "--fail-on", "nothing_accepted", code=nothing)
    _cli("check", run, "--require", "cells[0].mean_length > 1.5", code=length)


def test_two_files_differ_where_their_bounds_are_apart(tmp_path: Path) -> None:
    dead, well, alike = (_bench(tmp_path, accepted) for accepted in (9, 60_000, 61_000))
    assert f"{well.name} accepts more than {dead.name}" in _cli("compare", dead, well)
    _cli("compare", well, alike, code=EXIT_NO_DATA)


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ((0.8, 0.6, 0.45, 0.33, 0.25, 0.19, 0.14), ""),
        ((0.5, 0.2, 0.05, 0.01, 0.0, 0.0, 0.0), "accepts less than K3: 1.75 .* at most 3 drafted"),
    ],
    ids=["one drafter", "a worse one"],
)
def test_sums_of_two_k_are_compared_at_the_smaller(
    rates: tuple[float, ...], words: str, tmp_path: Path
) -> None:
    runs, rounds = list[Path](), 20_000
    for of_run in ((0.8, 0.6, 0.45), rates):
        accepted = round(rounds * sum(of_run))
        printed = [
            *(f"Drafts: {rounds}", f"Draft tokens: {rounds * len(of_run)}"),
            *(f"Accepted tokens: {accepted}", f"Acceptance length: {1 + accepted / rounds}"),
            *(f"Position {at}: {100 * rate}" for at, rate in enumerate(of_run)),
        ]
        path = write(tmp_path / f"K{len(of_run)}.txt", printed)
        runs.append(tmp_path / path.stem)
        write_run(runs[-1], path, *ingest(path))
    assert re.search(words, _cli("compare", *runs, code=0 if words else EXIT_NO_DATA))


@pytest.mark.parametrize("spread", [0.1, 1.0, 8.0], ids=["all or nothing", "uneven", "even"])
def test_the_bounds_of_sums_cover_the_truth(spread: float) -> None:
    """Requests of 5 to 150 rounds, each with a rate of its own around 0.3, at K = 4."""
    source, outside = np.random.default_rng(1), 0
    for _ in range(200):
        rounds = source.integers(5, 150, 300)
        rates = source.beta(0.3 * spread, 0.7 * spread, 300)
        tokens = int(source.binomial(4 * rounds, rates).sum())
        n = int(rounds.sum())
        counts = {"k": 4, "rounds": n, "accepted": tokens, "mean_length": 1 + tokens / n}
        sums = FileTotals(condition="", period="", **counts)
        assert sums.length_bounds is not None
        outside += not sums.length_bounds.low <= 2.2 <= sums.length_bounds.high
    assert outside <= 10


def test_two_runs_of_sums_are_not_compared(tmp_path: Path) -> None:
    run, _ = _sums_run("vllm-bench.json", tmp_path)
    said = _cli("compare", run, run, code=EXIT_NO_DATA)
    assert "cannot tell how the runs compare: no per-request rows" in said


def test_requests_that_the_disk_has_no_room_for_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(StreamFile, "append", full)
    done = run_command("ingest", SAMPLES / "vllm-requests.jsonl", "-o", tmp_path / "run")
    assert_fails(done, EXIT_ERROR, "6 of 6 requests could not be written", "No space left")
    assert not (tmp_path / "run").exists()


def test_a_file_of_times_without_the_time_of_sending_is_compared(tmp_path: Path) -> None:
    run_command("ingest", SAMPLES / "aiperf-records.jsonl", "-o", tmp_path / "run")
    done = run_command("compare", tmp_path / "run", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr


def test_a_count_that_no_run_can_hold_is_one_error(tmp_path: Path) -> None:
    file = _bench_with(tmp_path, 'draft_tokens": 600', f'draft_tokens": {2**60}')
    reader, found = ingest(file)
    assert found[0].verified == 2**60
    with pytest.raises(UsageError, match="verified is 1152921504606846976"):
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


DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED_TOTAL = "vllm:spec_decode_num_accepted_tokens_total"
AT = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
TTFT = "vllm:time_to_first_token_seconds"


def _page(
    folder: Path, name: str, drafts: int, at: tuple[int, int], started: float = 1.0, ttft: int = 0
) -> Path:
    page = [
        f"process_start_time_seconds {started}",
        f'{DRAFTS}{{engine="0"}} {drafts}',
        f'{ACCEPTED_TOTAL}{{engine="0"}} {sum(at)}',
        *(f'{AT}{{engine="0",position="{n}"}} {count}' for n, count in enumerate(at)),
        f'{TTFT}_sum{{engine="0"}} {0.5 * ttft}',
        f'{TTFT}_count{{engine="0"}} {ttft}',
    ]
    return write(folder / name, page)


def test_figures_are_the_increase(tmp_path: Path) -> None:
    before = _page(tmp_path, "a.prom", 1000, (900, 800), ttft=10)
    after = _page(tmp_path, "b.prom", 1100, (950, 825), ttft=14)
    _, (found,) = ingest_window(before, after)
    assert (found.rounds, found.accepted, found.k) == (100, 75, 2)
    assert found.mean_length == pytest.approx(1.75) and found.marginal == pytest.approx((0.5, 0.25))
    assert found.ttft_s == pytest.approx(0.5)
    assert found.period == "from a.prom to b.prom"
    assert not found.contradictions


@pytest.mark.parametrize(
    ("rounds", "at", "started"), [(1000, (10, 5), 99.0), (10, (5, 2), 1.0)], ids=["fell", "grew"]
)
def test_a_restart_is_noticed_where_a_counter_fell_and_where_all_grew(
    tmp_path: Path, rounds: int, at: tuple[int, int], started: float
) -> None:
    before = _page(tmp_path, "a.prom", rounds, at, started)
    after = _page(tmp_path, "b.prom", 100, (50, 25), 99.0)
    _, (found,) = ingest_window(before, after)
    assert (found.rounds, found.accepted) == (100, 75)
    assert found.mean_length == pytest.approx(1.75) and found.period == SINCE_RESTART
    assert any("the server restarted" in words for words in found.assumptions)


def test_a_gauge_has_no_window(tmp_path: Path) -> None:
    page = (SAMPLES / "prometheus-sglang.txt").read_text()
    after = write(tmp_path / "b.prom", page.replace("} 40", "} 90").replace("2.75", "3.25"))
    _, (found,) = ingest_window(SAMPLES / "prometheus-sglang.txt", after)
    assert (found.rounds, found.mean_length, found.period) == (50, 3.25, LAST_INTERVAL)


def test_files_that_are_no_window_are_one_error(tmp_path: Path) -> None:
    same = _page(tmp_path, "a.prom", 1000, (900, 800))
    with pytest.raises(UsageError, match="no round was verified between"):
        ingest_window(same, same)
    with pytest.raises(UsageError, match="pages of vLLM and of SGLang"):
        ingest_window(same, SAMPLES / "prometheus-sglang.txt")
    with pytest.raises(UsageError, match="no metrics page of an engine that speculates"):
        ingest_window(same, SAMPLES / "vllm-bench.json")
    with pytest.raises(UsageError, match="needs two scrapes, the earlier first, not 1"):
        two_scrapes([same])


def test_the_command_writes_the_window_as_a_run(tmp_path: Path) -> None:
    before = _page(tmp_path, "a.prom", 1000, (900, 800))
    after = _page(tmp_path, "b.prom", 1100, (950, 825))
    run = tmp_path / "run"
    done = run_command("ingest", "--window", before, after, "-o", run, "--json")
    (file,) = json.loads(done.stdout)["files"]
    assert (file["file"], file["figures"][0]["rounds"]) == ("b.prom", 100)
    (cell,) = _report(run)["cells"]
    assert cell["rounds"] == 100 and cell["totals"]["period"] == "from a.prom to b.prom"


def test_a_range_and_a_window_keep_replicas(tmp_path: Path) -> None:
    """Pods of one job, of which one accepts nothing within the time."""
    rows, pages = [], {0: "", 1: ""}
    for pod, accepted in (("a", 200), ("b", 205), ("c", 4)):
        for name, begin, grown in (("drafts", 1000, 100), ("accepted_tokens", 2000, accepted)):
            metric = {"__name__": f"vllm:spec_decode_num_{name}_total", "pod": pod}
            values = [[1764100800 + 60 * n, str(begin + n * grown)] for n in range(2)]
            rows.append({"metric": metric, "values": values})
            for n, (_, value) in enumerate(values):
                pages[n] += f'{metric["__name__"]}{{pod="{pod}"}} {value}\n'
    data = {"resultType": "matrix", "result": rows}
    file = write(tmp_path / "range.json", json.dumps({"status": "success", "data": data}))
    window = (write(tmp_path / f"{n}.prom", page) for n, page in pages.items())
    found = (ingest(file)[1], ingest_window(*window)[1])
    for parts in found:
        lengths = [(part.part, part.mean_length) for part in parts]
        assert [name for name, _ in lengths] == ["pod c", "pod a", "pod b", "all 3 replicas"]
        assert [length for _, length in lengths] == pytest.approx([1.04, 3.0, 3.05, 1 + 409 / 300])
        assert "its 2 siblings accept 3.00 to 3.05" in "; ".join(parts[0].observations)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"1120"', '"many"', "not a time and a number"),
        ('"1120"', '"NaN"', "outside the range of counters"),
        ("[1764100860, ", "[1764100800, ", "times that do not ascend"),
        ("spec_decode_num", "queries_num", "no series of an engine that speculates"),
    ],
)
def test_a_range_that_prometheus_does_not_answer(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    text = (SAMPLES / "prometheus-range.json").read_text().replace(old, new)
    file = write(tmp_path / "range.json", text)
    with pytest.raises(UsageError, match=words):
        ingest(file)
