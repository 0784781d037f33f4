"""Logs over time, files that the tools themselves wrote here, and files that no reader knows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from support.command import assert_fails, run_command
from support.engine_logs import decode, lines, llamacpp, load, response, vllm, write
from support.waiting import no_hang

from driftscope.analysis.log_changes import FEWEST_LINES
from driftscope.errors import EXIT_OK, EXIT_UNKNOWN, EXIT_USAGE, UnknownKindError
from driftscope.ingest import base
from driftscope.ingest.base import Figures
from driftscope.ingest.catalogue import ingest
from driftscope.ingest.prometheus import ingest_window

SAMPLES = Path(__file__).parent / "samples"
INPUTS = Path(__file__).parents[2] / "verification" / "cases" / "inputs"


def told(figures: Figures) -> list[str]:
    """Return what a file shows beside its mean."""
    return [*figures.observations, *(change.statement for change in figures.changes)]


def _vllm(length: float, engine: int = 0) -> list[str]:
    """Return what vLLM logs of 1000 rounds at K = 3."""
    return [load(engine=engine), vllm(*[(length - 1) / 3] * 3, rounds=1000)]


def _several(prefix: str) -> list[str]:
    """Return several lines of each of two servers, the healthy one first, with prefixes that number
    them."""
    servers = ((1, _vllm(3.1)), (2, _vllm(1.02)))
    return [prefix.format(n=n) + row for n, own in servers for row in own for _ in range(3)]


def _falling(rows: int, last: float) -> list[str]:
    return [decode(length, at) for at, length in enumerate(np.linspace(3.3, last, rows))]


@pytest.mark.parametrize(
    "rows",
    [
        _falling(16, 3.25),
        _falling(FEWEST_LINES - 1, 1.5),
        [decode(2.0 + (at % 2), at) for at in range(20)],
    ],
    ids=["steady", "too few lines", "noise"],
)
def test_a_steady_log_shows_no_change(rows: list[str], tmp_path: Path) -> None:
    (found,) = ingest(write(tmp_path / "a.log", rows))[1]
    assert told(found) == []


@pytest.mark.parametrize(("fall", "least", "most"), [(0.0, 0, 6), (1.2, 48, 60)])
def test_a_wandering_length_is_no_change_and_a_fall_is(
    fall: float, least: int, most: int, tmp_path: Path
) -> None:
    """60 logs of 40 lines, of which neighbours correlate by 0.7."""
    source, said = np.random.default_rng(3), 0
    for _ in range(60):
        noise = [0.0]
        for step in source.normal(0, 0.25 * (1 - 0.7**2) ** 0.5, 39):
            noise.append(0.7 * noise[-1] + step)
        rows = [
            decode(max(1.01, 2.5 + wander - fall * (at > 20)), at)
            for at, wander in enumerate(noise)
        ]
        said += bool(ingest(write(tmp_path / "a.log", rows))[1][0].changes)
    assert least <= said <= most


def _lengths(*lengths: float, running: int = 8) -> list[str]:
    return [decode(length, at, running) for at, length in enumerate(lengths)]


STEADY = (3.1, 2.9, 3.2, 3.0, 2.8, 3.1, 3.0, 2.9)


@pytest.mark.parametrize(
    ("rows", "words", "code"),
    [
        (_lengths(3.1, 2.9, 3.2, 3.0, 1.2, 1.1, 1.3, 1.2), "the first 4 lines to the last 4", 3),
        (_lengths(3.1, 3.0, 2.9, 3.1, 3.2, 3.0, 1.1, 1.2), "the first 6 lines to the last 2", 3),
        (_lengths(*np.linspace(3.1, 1.5, 8)), "the first 4 lines to the last 4", 3),
        (_lengths(3.1, 3.0, 1.0, 1.0, 1.0, 3.0, 2.9, 3.1), "3 of 8 lines at 1.00", 3),
        (_lengths(3.1, 3.0, 2.9, 3.1, 1.2, 1.1, 1.3, 1.2, running=1), "to the last 4", 4),
        (_lengths(1.2, 1.1, 1.3, 1.2, 3.1, 2.9, 3.2, 3.0), "1.20 -> 3.05", 0),
        (_lengths(*STEADY), "", 0),
        (_lengths(3.1, 2.2, 3.4, 2.6, 2.1, 3.0, 2.0, 2.4), "", 0),
        (_lengths(3.1, 3.0, 1.2, 1.1), "the first 2 lines to the last 2", 3),
        (_lengths(3.1, 3.0, 1.2), "", 4),
    ],
    ids=["half", "end", "trend", "hole", "one-request", "rise", "steady", "noise", "four", "three"],
)
def test_a_fall_in_a_short_log_is_a_finding(
    rows: list[str], words: str, code: int, tmp_path: Path
) -> None:
    log, run = write(tmp_path / "a.log", rows), tmp_path / "run"
    done = run_command("ingest", log, "-o", run, COLUMNS="300")
    assert words in done.stdout
    assert run_command("check", run, "--fail-on", "falls_in_log").returncode == code
    analyzed = run_command("analyze", run, "-o", tmp_path / "a.html", COLUMNS="300")
    assert analyzed.stdout.startswith("[ACT]") is (code == 3)
    assert words in analyzed.stdout or code == 0


def _range(*lengths: float, gauge: bool = False) -> str:
    """Return what Prometheus stored of 100 rounds every 15 seconds, or of a gauge."""
    grown = np.cumsum([0.0, *(100 * (length - 1) for length in lengths)])
    rounds = 100.0 * np.arange(len(grown))
    series = {
        "vllm:spec_decode_num_drafts_total": rounds,
        "vllm:spec_decode_num_draft_tokens_total": 3 * rounds,
        "vllm:spec_decode_num_accepted_tokens_total": grown,
    }
    if gauge:
        series = {"sglang:spec_accept_length": np.array([lengths[0], *lengths])}
    held = [
        {
            "metric": {"__name__": name, "pod": pod},
            "values": [[1.7e9 + 15 * at, f"{value:.2f}"] for at, value in enumerate(values)],
        }
        for name, values in series.items()
        for pod in ("a", "b")
    ]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": held}})


PAGE = """\
vllm:spec_decode_num_drafts_total{engine="0"} 1000
vllm:spec_decode_num_draft_tokens_total{engine="0"} 3000
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 1500
"""
GAUGE = 'sglang:spec_accept_length{tp_rank="0"} 1.0\nsglang:num_running_reqs{tp_rank="0"} 4\n'


def test_each_engine_of_a_page_has_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.prom", PAGE + GAUGE)
    found = {figures.part: figures for figures in ingest(path)[1]}
    assert found["vLLM"].mean_length == 2.5 and found["SGLang"].mean_length == 1.0
    assert "nothing is accepted" in found["SGLang"].observations[0]


def test_a_url_and_an_empty_file_say_what_to_do(tmp_path: Path) -> None:
    path = write(tmp_path / "a.log", "\n")
    assert_fails(run_command("ingest", path), EXIT_USAGE, "is empty", "2>&1")
    url = "http://localhost:8000/metrics"
    assert_fails(run_command("ingest", url), EXIT_USAGE, "driftscope watch")


@pytest.mark.parametrize(
    ("second", "code"), [(PAGE, EXIT_OK), (PAGE.replace("1500", "20"), EXIT_USAGE)]
)
def test_two_pages_of_the_same_series_in_one_file_are_refused(
    second: str, code: int, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.prom", PAGE + second)
    done = run_command("ingest", path)
    assert done.returncode == code and ("two values for one series" in done.stderr) is bool(code)


def _iterations(*lengths: float) -> str:
    """Return what TensorRT-LLM says of 30 iterations for each length."""
    every = {"numDraftTokens": 120, "numRequestsWithDraftTokens": 40}
    rows = []
    for length in lengths:
        stats = {**every, "numAcceptedTokens": round(40 * (length - 1))}
        rows += [{"iterLatencyMS": 9.0, "specDecodingStats": stats}] * 30
    return lines([json.dumps({"iter": at, **row}) for at, row in enumerate(rows)])


def _responses(*lengths: float) -> str:
    """Return vLLM's responses, each of 40 rounds."""
    whole = [round(40 * (length - 1) / 3) for length in lengths]
    return lines([json.dumps(response([40 - rounds, 0, 0, rounds])) for rounds in whole])


HALF_DEAD = (*STEADY, *STEADY, *(16 * [1.0]))


@pytest.mark.parametrize(
    ("text", "words", "code"),
    [
        (_range(*HALF_DEAD), "16 of 32 intervals at 1.00", 3),
        (_range(*HALF_DEAD, *STEADY, gauge=True), "16 of 40 intervals at 1.00", 3),
        (_range(*STEADY, *STEADY), "", 0),
        (_range(*HALF_DEAD).replace("drafts_total", "drafts"), "16 of 32 intervals at 1.00", 3),
        (_iterations(*HALF_DEAD), "60 of 120 intervals at 1.00", 3),
        (_iterations(*STEADY, *STEADY), "", 0),
        (_responses(*STEADY, 1.0, 1.0, 1.0), "3 of 11 requests at 1.00: nothing was accepted", 3),
        (_responses(*STEADY * 3, 1.0, 1.0), "2 of 26 requests at 1.00: nothing was accepted", 4),
        (_responses(*STEADY), "", 4),
    ],
    ids=[
        "range",
        "gauge",
        "steady",
        "names",
        "iterations",
        "even",
        "requests",
        "few-requests",
        "all-well",
    ],
)
def test_what_accepts_nothing_is_not_hidden_by_the_mean_of_a_series(
    text: str, words: str, code: int, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.jsonl", text)
    done = run_command("ingest", path, "-o", run := tmp_path / "run", COLUMNS="300")
    assert re.search(words, done.stdout) and ("at 1.00" in done.stdout) is bool(words)
    assert run_command("check", run, "--fail-on", "falls_in_log").returncode == code
    analyzed = run_command("analyze", run, "-o", tmp_path / "a.html", COLUMNS="300")
    assert re.search(words, analyzed.stdout.splitlines()[0])


def test_a_line_of_few_tokens_that_accepts_none_is_chance(tmp_path: Path) -> None:
    quiet = vllm(0.0, 0.0, 0.0, rounds=7)
    rows = [row for n in range(12) for row in ([quiet] if n % 4 == 0 else _vllm(3.1))]
    (found,) = ingest(write(tmp_path / "a.log", rows))[1]
    assert told(found) == []


def test_a_dead_replica_is_named_beside_one_that_accepts(tmp_path: Path) -> None:
    pods = {"a": _vllm(3.1), "b": _vllm(1.0)}
    rows = [f"[pod/vllm-{pod}/server] {row}" for pod, own in pods.items() for row in own] * 8
    log, run = write(tmp_path / "a.log", rows), tmp_path / "run"
    assert run_command("ingest", log, "-o", run).returncode == 0
    analyzed = run_command("analyze", run, "-o", tmp_path / "a.html", COLUMNS="300").stdout
    assert analyzed.startswith("[ACT] Nothing is accepted in vllm-b/server: ")
    assert "vllm-a/server accepts: compare version, options and files of both" in analyzed


def test_a_response_that_only_some_objects_hold_is_found(tmp_path: Path) -> None:
    """SGLang's request log as JSON: events of requests that arrive, and of those that finish."""
    meta = {"spec_verify_ct": 4, "spec_correct_drafts_histogram": [1, 1, 2]}
    rows = [{"rid": "a"}, {"rid": "a", "out": {"meta_info": meta}}]
    reader, (found,) = ingest(write(tmp_path / "a.log", [json.dumps(row) for row in rows]))
    assert (reader.name, found.rounds, found.accepted) == ("sglang-requests", 4, 5)


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([*_vllm(3.1, engine=0), *_vllm(1.02, engine=1)], ["engine 1", "engine 0"]),
        ([decode(3.1, rank=" DP0 TP0"), decode(1.02, rank=" DP1 TP1")], ["DP1", "DP0"]),
        (
            _several("vllm-{n}/0.log:2026-11-02T10:00:00.1Z stderr F "),
            ["vllm-2/0.log", "vllm-1/0.log"],
        ),
        (_several('"2026-11-02T10:00:0{n}.000Z","gpu-{n}","vllm","'), ["gpu-2", "gpu-1"]),
    ],
    ids=["engines", "sglang dp", "grep", "table"],
)
def test_replicas_are_kept_the_worst_first(
    rows: list[str], names: list[str], tmp_path: Path
) -> None:
    _, found = ingest(write(tmp_path / "a.log", rows))
    assert [part.part for part in found] == names
    assert found[0].mean_length == pytest.approx(1.02)


_STARTED = (
    "(EngineCore_DP0 pid=77) INFO 11-02 12:00:00 [core.py:94] Initializing a V1 LLM engine "
    "(v0.32.0) with config: model='org/target', speculative_config="
    "SpeculativeConfig(method='eagle3', model='{}', num_spec_tokens=3), tokenizer='org/target'"
)
_ARGUMENTS = (
    "[2026-09-05 10:00:00] server_args=ServerArgs(model_path='org/target', device='cuda', "
    "speculative_algorithm='EAGLE3', speculative_num_steps={}, speculative_eagle_topk=1)"
)
_A, _B = _STARTED.format("org/a"), _STARTED.format("me/b")


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ([_A, *_vllm(3.1) * 20, _B, *_vllm(1.8) * 20], ["model='me/b'", "model='org/a'"]),
        (
            [
                *(_ARGUMENTS.format(1), *_lengths(*[1.7] * 20)),
                *(_ARGUMENTS.format(3), *_lengths(*[2.4] * 20)),
            ],
            ["speculative_num_steps=1", "speculative_num_steps=3"],
        ),
        ([_A, *_vllm(3.1)] * 2, [""]),
    ],
    ids=["another drafter", "another K", "as before"],
)
def test_a_server_that_was_started_otherwise_is_another(
    rows: list[str], parts: list[str], tmp_path: Path
) -> None:
    _, found = ingest(write(tmp_path / "a.log", rows))
    assert [part.part for part in found] == parts
    assert all(told(part) == [] for part in found)


SGLANG_GAUGE = 'sglang:spec_accept_length{dp_rank="%d",tp_rank="%d"} %.2f'


@pytest.mark.parametrize(
    ("text", "worst", "parts"),
    [
        ((INPUTS / "13-ray.prom").read_text(), ("engine 5", 1.08), 8),
        # Two ranks of each of two replicas, numbered through.
        (
            "\n".join(
                SGLANG_GAUGE % (rank // 2, rank, length)
                for rank, length in enumerate((3.1, 3.1, 1.02, 1.02))
            ),
            ("dp_rank 1", 1.02),
            2,
        ),
        (SGLANG_GAUGE % (0, 0, 3.1), ("", 3.1), 1),
    ],
    ids=["ray", "sglang", "one"],
)
def test_replicas_of_one_page_are_kept_the_worst_first(
    text: str, worst: tuple[str, float], parts: int, tmp_path: Path
) -> None:
    _, found = ingest(write(tmp_path / "a.prom", [text]))
    assert sum(not part.is_sum for part in found) == parts and found[0].part == worst[0]
    assert found[-1].is_sum == (parts > 1)
    assert found[0].mean_length == pytest.approx(worst[1], abs=0.005)


def test_a_dead_request_of_llamacpp_counts(tmp_path: Path) -> None:
    rows = [llamacpp(60, 120, ", mean len =  2.50"), *[llamacpp(0, 120, ", mean len =  1.00")] * 2]
    (found,) = ingest(write(tmp_path / "a.log", rows))[1]
    assert (found.rounds, found.accepted) == (120, 60) and found.mean_length == 1.5


RESTORED = """\
2026-05-14 22:40:29.046 |       total time =   31036.11 ms /  2181 tokens
2026-05-14 22:40:29.046 | draft acceptance rate = 0.98260 ( 1186 accepted /  1207 generated)
2026-05-14 22:40:29.046 | statistics mtp: #calls(b,g,a) = 1 861 690, #gen drafts = 690, \
#acc drafts = 690, #gen tokens = 1207, #acc tokens = 1186, dur(b,g,a) = 0.006, 3112.317, 0.287 ms
"""
"""A public log of llama.cpp of May 2026 whose target cannot drop refused tokens: 2,048 tokens of
861 rounds, so 2.38 a round; of the rounds only those that were accepted whole are counted."""


CHECKPOINTS = "srv load_model: speculative decoding will use checkpoints\ndraft acceptance "


@pytest.mark.parametrize(
    ("text", "length"),
    [
        (RESTORED, None),
        (RESTORED.replace("#acc drafts = 690", "#acc drafts = 600"), 2.72),
        (f"{CHECKPOINTS}rate = 1.00000 (  115 accepted /   115 generated)\n", None),
        (f"{CHECKPOINTS}= 0.75430 (  307 accepted /   407 generated), mean len =  2.50\n", 2.50),
    ],
)
def test_refusals_that_llamacpp_leaves_out_are_no_acceptance(
    text: str, length: float | None, tmp_path: Path
) -> None:
    *_, found = ingest(write(tmp_path / "a.log", [text]))[1]
    assert found.mean_length == (length and pytest.approx(length, abs=0.01))
    assert bool(found.contradictions) == (length is None)


def test_ranks_have_rows_of_their_own_and_copies_of_the_first_are_counted_once(
    tmp_path: Path,
) -> None:
    stats = {"numDraftTokens": 24, "numAcceptedTokens": 12, "numRequestsWithDraftTokens": 8}
    other = {**stats, "numAcceptedTokens": 6}
    for second, accepted in ((stats, [12]), (other, [12, 6])):
        rows = [
            json.dumps(
                {"iter": 2, "iterLatencyMS": 9.0, "specDecodingStats": one, "attentionDpRank": rank}
            )
            for rank, one in enumerate((stats, second))
        ]
        found = ingest(write(tmp_path / "a.jsonl", rows))[1]
        assert [figures.accepted for figures in found] == accepted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("just prose\n", "of no known kind: it is not read"),
        (
            "[2026] Decode batch, #running-req: 4, #token: 9, gen throughput (token/s): 1\n",
            "nearest is server-log .*: has Decode batch, lacks accept len:",
        ),
        (
            '{"predicted_ms": 4}',
            "nearest is llamacpp-responses .*: has predicted_ms, lacks timings",
        ),
        (
            'other:spec_decode_num_drafts_total{engine="0"} 4\n',
            "nearest is prometheus .*: has :spec_decode_num_drafts, lacks vllm:",
        ),
        (
            "vllm:num_requests_running 4\n",
            "nearest is prometheus .*: has vllm:, lacks :spec_decode_num_drafts",
        ),
        ('{"steps": 1, "metrics": 2}', "nearest is specforge .*: has steps, metrics, lacks topk"),
    ],
)
def test_an_unknown_file_names_the_nearest_format(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownKindError, match=words) as caught:
        ingest(write(tmp_path / "a", text))
    assert caught.value.exit_code == EXIT_UNKNOWN


@pytest.mark.parametrize(
    "row",
    [
        "draft acceptance = " + "( " * 40_000,
        "SpecDecoding metrics: Per-position acceptance rate: " + "0.1, " * 20_000 + "x",
        "Finish: obj='spec_correct_drafts_histogram': [" + "1" * 60_000,
        "(" * 60_000 + " Decode batch",
        "statistics " * 6_000,
        *(mark * 60_000 for mark in ("Decode batch", "SpecDecoding metrics:", "(a ")),
        *(mark * 60_000 for mark in ("Finish: obj=", "LLM engine (v model=")),
    ],
)
@pytest.mark.timeout(5)
def test_a_hostile_line_takes_no_time(row: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownKindError):
        ingest(write(tmp_path / "a.log", [row]))


WRITTEN = Path(__file__).parent / "written"
VLLM = WRITTEN / "vllm-0.32"


def _counts(figures: Figures) -> tuple[int | None, ...]:
    return figures.k, figures.rounds, figures.verified, figures.accepted


def _one(path: Path, reader: str) -> Figures:
    found, (figures,) = ingest(path)
    assert found.name == reader and figures.contradictions == ()
    return figures


def test_vllms_log_is_its_page() -> None:
    log, page = _one(VLLM / "server.log", "server-log"), _one(VLLM / "after.prom", "prometheus")
    assert _counts(log) == _counts(page) == (4, 621, 2484, 131)
    assert log.marginal == pytest.approx(page.marginal, abs=0.001)


def test_what_vllms_bench_prints_is_what_it_saves() -> None:
    printed, saved = (_one(VLLM / f"bench.{end}", "vllm-bench") for end in ("txt", "json"))
    assert _counts(printed) == _counts(saved) == (4, 540, 2160, 25)
    assert printed.marginal == pytest.approx(saved.marginal, abs=1e-4)
    assert printed.tpot_s == pytest.approx(saved.tpot_s, abs=1e-5)


def test_vllms_requests_and_bench_are_the_window_of_its_pages() -> None:
    """Three responses, one stream and the bench are all that it served between the two pages."""
    parts = [
        _one(VLLM / "responses.jsonl", "vllm-requests"),
        _one(VLLM / "stream.txt", "vllm-requests"),
        _one(VLLM / "bench.json", "vllm-bench"),
    ]
    _, (window,) = ingest_window(VLLM / "before.prom", VLLM / "after.prom")
    for name in ("rounds", "verified", "accepted"):
        assert sum(getattr(part, name) for part in parts) == getattr(window, name)


def test_what_aiperf_writes_agrees_with_the_responses() -> None:
    """Six requests, answered by the three responses twice."""
    folder, (responses,) = WRITTEN / "aiperf-0.13", ingest(VLLM / "responses.jsonl")[1]
    records = _one(folder / "profile_export.jsonl", "aiperf-records")
    summary = _one(folder / "profile_export_aiperf.json", "aiperf-summary")
    printed = _one(folder / "profile_export_console.txt", "aiperf-summary")
    assert _counts(records)[1:] == _counts(summary)[1:] == (122, 488, 150)
    assert records.rounds == 2 * (responses.rounds or 0) and records.k == 4
    assert records.marginal == pytest.approx(summary.marginal)
    assert printed.mean_length == pytest.approx(summary.mean_length, abs=0.005)


def test_guidellms_console_and_csv_have_the_times_of_each_benchmark() -> None:
    folder = WRITTEN / "guidellm-0.8"
    console, table = (ingest(folder / name)[1] for name in ("console.txt", "benchmarks.csv"))
    assert [one.part for one in console] == ["concurrent@1", "concurrent@2"]
    for printed, saved in zip(console, table, strict=True):
        assert (printed.part, printed.requests) == (saved.part, saved.requests)
        for name in ("ttft_s", "tpot_s", "output_tokens_per_s"):
            assert getattr(printed, name) == pytest.approx(getattr(saved, name), rel=0.03)


def test_what_sglangs_bench_prints_is_what_it_saves() -> None:
    folder = WRITTEN / "sglang-0.5.23"
    printed, saved = (_one(folder / f"bench.{end}", "sglang-bench") for end in ("txt", "jsonl"))
    assert (saved.k, saved.requests, printed.requests) == (5, 8, 8)
    for name in ("mean_length", "ttft_s", "tpot_s", "output_tokens_per_s"):
        assert getattr(printed, name) == pytest.approx(getattr(saved, name), rel=0.01)


def test_sglangs_log_has_the_rounds_of_its_page_and_the_requests_of_its_answers() -> None:
    """The server's own warm-up is in the log and on the page, and not in the answers."""
    folder = WRITTEN / "sglang-0.5.23"
    log = _one(folder / "server.log", "server-log")
    answers = _one(folder / "responses.jsonl", "sglang-requests")
    page = _one(folder / "page.prom", "prometheus")
    assert log.rounds == page.rounds == 106 and page.k == 5
    assert (answers.rounds, answers.verified) == (101, 505)
    warm_up = (log.rounds or 0) - 101, (log.accepted or 0) - (answers.accepted or 0)
    assert warm_up == (5, 3)
    # The gauge is of the end of the last answer, after which nothing ran.
    assert page.mean_length == 1.0 and "no request is running now" in page.observations[0]


@pytest.mark.parametrize(("rounds", "number"), [(10**9, 1), (10**6, 60)])
def test_a_histogram_of_many_rounds_is_held_as_sums(
    tmp_path: Path, rounds: int, number: int
) -> None:
    path = write(tmp_path / "a.jsonl", [json.dumps(response([0, rounds, 0, 0]))] * number)
    with no_hang():
        done = run_command("ingest", path, "-o", tmp_path / "run")
    assert done.returncode == EXIT_OK, done.stderr
    assert "sums of 1 part" in done.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (" [" + "1," * 1000 + "1]", "JSON of more than 500 values"),
        ("[" + '{"a": 1},' * 200 + "1]", "JSON of more than 100 objects"),
        ('{"a": 1}\n' * 200, "JSON of more than 100 objects"),
        ("[" + " " * 5000 + "]", "is larger than 4096 bytes"),
    ],
)
def test_json_beyond_a_bound_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, words: str
) -> None:
    for name, most in (("MOST_JSON_BYTES", 4096), ("MOST_VALUES", 500), ("MOST_OBJECTS", 100)):
        monkeypatch.setattr(base, name, most)
    path = write(tmp_path / "result.json", content)
    assert_fails(run_command("ingest", path), EXIT_USAGE, words)


def test_lists_of_times_count_for_no_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = SAMPLES / "vllm-bench.json"
    longer = {**json.loads(short.read_text()), "itls": [[0.0123456] * 1000] * 9}
    path = write(tmp_path / short.name, json.dumps(longer))
    monkeypatch.setattr(base, "MOST_VALUES", 1000)
    found, expected = (run_command("ingest", file, "--json").stdout for file in (path, short))
    assert found == expected and '"rounds": 200' in found


def test_a_number_of_401_digits_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", json.dumps(response([0, 10, 0, 0], num_spec_steps=10**400)))
    assert_fails(run_command("ingest", path), EXIT_USAGE, "num_spec_steps is inf, outside")
