"""Logs over time, replicas of logs and pages, and files that no reader knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.command import run_command

from driftscope.analysis.log_changes import FEWEST_LINES
from driftscope.errors import EXIT_UNKNOWN, UnknownKindError
from driftscope.ingest.base import Figures
from driftscope.ingest.catalogue import ingest

SAMPLES = Path(__file__).parent / "samples"
INPUTS = Path(__file__).parents[2] / "verification" / "cases" / "inputs"


def told(figures: Figures) -> list[str]:
    """Return what a file shows beside its mean."""
    return [*figures.observations, *(change.statement for change in figures.changes)]


def _decode(at: int, running: int, tokens: int, length: float, rank: str = "") -> str:
    return (
        f"[2026-09-05 10:{at:02d}:00{rank}] Decode batch, #running-req: {running}, "
        f"#token: {tokens}, token usage: 0.11, accept len: {length:.2f}, "
        f"accept rate: {(length - 1) / 3:.2f}, cuda graph: True, "
        "gen throughput (token/s): 610.20, #queue-req: 0"
    )


_LOAD = (
    "INFO 11-02 12:00:00 [loggers.py:257] Engine {engine:03d}: Avg prompt throughput: 12.1 tokens/s"
    ", Avg generation throughput: 60.2 tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache "
    "usage: 1.0%, Prefix cache hit rate: 0.0%"
)
_METRICS = (
    "INFO 11-02 12:00:00 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: "
    "{length:.2f}, Accepted throughput: 95.30 tokens/s, Drafted throughput: 150.00 tokens/s, "
    "Accepted: {accepted} tokens, Drafted: 3000 tokens, Per-position acceptance rate: {rate:.3f}, "
    "{rate:.3f}, {rate:.3f}, Avg Draft acceptance rate: 63.7%"
)


def _vllm(length: float, engine: int = 0) -> list[str]:
    """Return what vLLM logs of 1000 rounds at K = 3."""
    accepted = round(1000 * (length - 1))
    metrics = _METRICS.format(length=length, accepted=accepted, rate=accepted / 3000)
    return [_LOAD.format(engine=engine), metrics]


def _two(prefix: str) -> list[str]:
    """Return the logs of two servers, the healthy one first, with prefixes that number them."""
    return [
        prefix.format(n=n) + row for n, length in ((1, 3.1), (2, 1.02)) for row in _vllm(length)
    ]


def _write(path: Path, rows: Sequence[str]) -> Path:
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def _falling(lines: int, last: float) -> list[str]:
    step = 1 / (lines - 1)
    return [
        _decode(at, 4, 1500 + round(32_000 * at * step), 3.3 + (last - 3.3) * at * step)
        for at in range(lines)
    ]


def test_a_fall_over_the_context_is_said(tmp_path: Path) -> None:
    (found,) = ingest(_write(tmp_path / "a.log", _falling(16, 1.5)))[1]
    time, context = told(found)
    assert time.startswith("3.12 -> 1.68 tokens per round from the first quarter of the lines")
    assert "tokens in the KV cache went from" in time
    assert "tokens per round between lines with" in context


@pytest.mark.parametrize(
    "rows",
    [
        _falling(16, 3.25),
        _falling(FEWEST_LINES - 1, 1.5),
        [_decode(at, 4, 2000, 2.0 + (at % 2)) for at in range(20)],
    ],
    ids=["steady", "too few lines", "noise"],
)
def test_a_steady_log_shows_no_change(rows: list[str], tmp_path: Path) -> None:
    (found,) = ingest(_write(tmp_path / "a.log", rows))[1]
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
            _decode(at, 4, 2000, max(1.01, 2.5 + wander - fall * (at > 20)))
            for at, wander in enumerate(noise)
        ]
        said += bool(ingest(_write(tmp_path / "a.log", rows))[1][0].changes)
    assert least <= said <= most


def _lengths(*lengths: float, running: int = 8) -> list[str]:
    return [_decode(at, running, 2000, length) for at, length in enumerate(lengths)]


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
    log, run = _write(tmp_path / "a.log", rows), tmp_path / "run"
    done = run_command("ingest", log, "-o", run, COLUMNS="300")
    assert words in done.stdout
    assert run_command("check", run, "--fail-on", "falls_in_log").returncode == code
    analyzed = run_command("analyze", run, "-o", tmp_path / "a.html", COLUMNS="300")
    assert analyzed.stdout.startswith("[ACT]") is (code == 3)
    assert words in analyzed.stdout or code == 0


def test_a_line_of_few_tokens_that_accepts_none_is_chance(tmp_path: Path) -> None:
    quiet = _METRICS.replace("3000 tokens", "21 tokens").format(length=1, accepted=0, rate=0)
    rows = [row for n in range(12) for row in ([quiet] if n % 4 == 0 else _vllm(3.1))]
    (found,) = ingest(_write(tmp_path / "a.log", rows))[1]
    assert told(found) == []


def test_a_dead_replica_is_named_beside_one_that_accepts(tmp_path: Path) -> None:
    rows = [
        f"[pod/vllm-{name}/server] {row}"
        for _ in range(8)
        for name, length in (("a", 3.1), ("b", 1.0))
        for row in _vllm(length)
    ]
    log, run = _write(tmp_path / "a.log", rows), tmp_path / "run"
    assert run_command("ingest", log, "-o", run).returncode == 0
    analyzed = run_command("analyze", run, "-o", tmp_path / "a.html", COLUMNS="300").stdout
    assert analyzed.startswith("[ACT] Nothing is accepted in vllm-b/server: ")
    assert "vllm-a/server accepts: compare version, options and files of both" in analyzed


def test_an_idle_batch_is_no_measurement(tmp_path: Path) -> None:
    rows = [_decode(0, 4, 900, 3.0), _decode(1, 0, 0, 1.0), _decode(2, 4, 900, 1.0)]
    (found,) = ingest(_write(tmp_path / "a.log", rows))[1]
    assert found.mean_length == 2.0 and "1 of 2 lines at 1.00" in found.changes[0].statement


def test_a_response_that_only_some_objects_hold_is_found(tmp_path: Path) -> None:
    """SGLang's request log as JSON: events of requests that arrive, and of those that finish."""
    meta = {"spec_verify_ct": 4, "spec_correct_drafts_histogram": [1, 1, 2]}
    rows = [
        {"event": "request.received", "rid": "a"},
        {"event": "request.finished", "rid": "a", "out": {"meta_info": meta}},
    ]
    reader, (found,) = ingest(_write(tmp_path / "a.log", [json.dumps(row) for row in rows]))
    assert (reader.name, found.rounds, found.accepted) == ("sglang-requests", 4, 5)


def _docker_json(rows: Sequence[str]) -> list[str]:
    return [json.dumps({"log": f"{row}\n", "stream": "stderr", "time": "t"}) for row in rows]


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([*_vllm(3.1, engine=0), *_vllm(1.02, engine=1)], ["engine 1", "engine 0"]),
        (_docker_json(_vllm(1.02)), [""]),
        ([json.dumps({"ts": 1, "message": row}) for row in _vllm(1.02)], [""]),
        (
            [_decode(0, 4, 900, 3.1, " DP0 TP0"), _decode(0, 4, 900, 1.02, " DP1 TP1")],
            ["DP1", "DP0"],
        ),
        (_two("vllm-{n}  | \x1b[36m"), ["vllm-2", "vllm-1"]),
        (
            _two("\x1b[36m(ServeReplica:app:llm pid={n}, ip=10.0.0.1)\x1b[0m "),
            [f"ServeReplica:app:llm pid={n}, ip=10.0.0.1" for n in (2, 1)],
        ),
    ],
    ids=["engines", "docker json", "collector", "sglang dp", "compose", "ray"],
)
def test_replicas_are_kept_the_worst_first(
    rows: list[str], names: list[str], tmp_path: Path
) -> None:
    _, found = ingest(_write(tmp_path / "a.log", rows))
    assert [part.part for part in found] == names
    assert found[0].mean_length == pytest.approx(1.02)


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
    _, found = ingest(_write(tmp_path / "a.prom", [text]))
    assert sum(not part.is_sum for part in found) == parts and found[0].part == worst[0]
    assert found[-1].is_sum == (parts > 1)
    assert found[0].mean_length == pytest.approx(worst[1], abs=0.005)


def test_a_dead_request_of_llamacpp_counts(tmp_path: Path) -> None:
    line = (
        "slot print_timing: id  0 | task 1 | draft acceptance = 0.5 (%5d accepted / %5d generated)"
    )
    rows = [f"{line % (60, 120)}, mean len =  2.50", *[f"{line % (0, 120)}, mean len =  1.00"] * 2]
    (found,) = ingest(_write(tmp_path / "a.log", rows))[1]
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
    *_, found = ingest(_write(tmp_path / "a.log", [text]))[1]
    assert found.mean_length == (length and pytest.approx(length, abs=0.01))
    assert bool(found.contradictions) == (length is None)


def test_rows_of_ranks_that_repeat_the_first_are_counted_once(tmp_path: Path) -> None:
    stats = {"numDraftTokens": 24, "numAcceptedTokens": 12, "numRequestsWithDraftTokens": 8}
    other = {**stats, "numAcceptedTokens": 6}
    for second, accepted in ((stats, 12), (other, 18)):
        rows = [
            json.dumps(
                {"iter": 2, "iterLatencyMS": 9.0, "specDecodingStats": one, "attentionDpRank": rank}
            )
            for rank, one in enumerate((stats, second))
        ]
        (found,) = ingest(_write(tmp_path / "a.jsonl", rows))[1]
        assert found.accepted == accepted


def test_two_runs_on_one_console_are_two_parts(tmp_path: Path) -> None:
    text = (INPUTS / "10-vllm-console.txt").read_text()
    _, found = ingest(_write(tmp_path / "a.txt", [text, text.replace("1.36 ", "1.35 ")]))
    assert [part.part for part in found] == ["run 1", "run 2"]


def test_one_run_of_sglang_is_no_run_of_vllm(tmp_path: Path) -> None:
    fields = json.loads((SAMPLES / "sglang-bench.jsonl").read_text().splitlines()[0])
    path = _write(tmp_path / "a.jsonl", [json.dumps({**fields, "total_input_tokens": 5})])
    assert ingest(path)[0].name == "sglang-bench"


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
        ('{"steps": 1, "metrics": 2}', "nearest is specforge .*: has steps, metrics, lacks topk"),
    ],
)
def test_an_unknown_file_names_the_nearest_format(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(UnknownKindError, match=words) as caught:
        ingest(tmp_path / "a")
    assert caught.value.exit_code == EXIT_UNKNOWN


@pytest.mark.parametrize(
    "row",
    [
        "draft acceptance = " + "( " * 40_000,
        "SpecDecoding metrics: Per-position acceptance rate: " + "0.1, " * 20_000 + "x",
        "Finish: obj='spec_correct_drafts_histogram': [" + "1" * 60_000,
        "(" * 60_000 + " Decode batch",
        "statistics " * 6_000,
    ],
)
@pytest.mark.timeout(5)
def test_a_hostile_line_takes_no_time(row: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownKindError):
        ingest(_write(tmp_path / "a.log", [row]))
