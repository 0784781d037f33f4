"""Each format's sample against figures computed by hand.

HISTOGRAMS are those of six requests in several samples: 60 rounds that accept 105 tokens.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from driftscope.boundary.json_document import INGESTED
from driftscope.cli.app import app
from driftscope.errors import UsageError
from driftscope.ingest.base import LAST_INTERVAL, SINCE_START, THIS_RUN, Figures
from driftscope.ingest.catalogue import READERS, ingest
from driftscope.json_schema import schema_of

SAMPLES = Path(__file__).parent / "samples"
HISTOGRAMS = ((1, 2, 3, 4), (2, 2, 2, 4), (0, 5, 0, 5), (4, 2, 2, 2), (1, 1, 4, 4), (2, 3, 4, 1))
ROUNDS = 60  # 10 each
ACCEPTED = 20 + 18 + 20 + 12 + 21 + 14
TOTALS = (10, 15, 15, 20)  # columns of HISTOGRAMS
MARGINAL = (50 / 60, 35 / 60, 20 / 60)


def _one(name: str, reader: str) -> Figures:
    found_reader, found = ingest(SAMPLES / name)
    assert found_reader.name == reader
    (only,) = found
    assert not only.contradictions
    return only


def test_the_counts_by_hand_are_right() -> None:
    assert tuple(map(sum, zip(*HISTOGRAMS, strict=True))) == TOTALS
    assert sum(TOTALS) == ROUNDS
    assert TOTALS[1] + 2 * TOTALS[2] + 3 * TOTALS[3] == ACCEPTED


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("vllm-requests.jsonl", "vllm-requests"),
        ("sglang-requests.jsonl", "sglang-requests"),
        ("trtllm-requests.jsonl", "trtllm-requests"),
        ("aiperf-records.jsonl", "aiperf-records"),
        ("guidellm.json", "guidellm"),
        ("spec-bench.jsonl", "spec-bench"),
    ],
)
def test_requests_with_a_histogram_each(name: str, reader: str) -> None:
    found = _one(name, reader)
    assert (found.rounds, found.accepted) == (ROUNDS, ACCEPTED)
    assert found.length == pytest.approx(1 + ACCEPTED / ROUNDS)
    assert found.marginal == pytest.approx(MARGINAL)
    assert found.length_by_request == pytest.approx(1 + ACCEPTED / ROUNDS)  # 10 rounds each
    assert found.length_interval is not None
    assert found.length_interval.low < 1 + ACCEPTED / ROUNDS < found.length_interval.high


@pytest.mark.parametrize(
    ("name", "reader", "rounds", "length", "marginal"),
    [
        ("vllm-bench.json", "vllm-bench", 200, 2.5, (0.75, 0.5, 0.25)),  # 1 + 300 / 200
        ("prometheus-vllm.txt", "prometheus", 200, 2.5, (0.75, 0.5, 0.25)),
        # Increases 120 + 50 (after a restart) + 30 rounds, 180 + 75 + 45 tokens.
        ("prometheus-range.json", "prometheus-range", 200, 2.5, (0.75, 0.5, 0.25)),
        # 1 + (3 + 5) / (2 + 2)
        ("trtllm-iterations.json", "trtllm-iterations", 4, 3.0, None),
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
    name: str,
    reader: str,
    rounds: int | None,
    length: float,
    marginal: tuple[float, ...] | None,
) -> None:
    found = _one(name, reader)
    assert found.rounds == rounds and found.length == pytest.approx(length)
    assert marginal is None or found.marginal == pytest.approx(marginal)


def test_times_are_in_seconds() -> None:
    found = _one("vllm-bench.json", "vllm-bench")
    assert (found.ttft_s, found.tpot_s, found.output_per_s) == (0.04, 0.0075, 130.0)
    assert found.token_rate == pytest.approx(0.5) and found.k == 3
    records = _one("aiperf-records.jsonl", "aiperf-records")
    assert records.ttft_s == pytest.approx(0.0425) and records.tpot_s == pytest.approx(0.008)
    guide = _one("guidellm.json", "guidellm")
    assert guide.ttft_s == pytest.approx(0.05) and guide.tpot_s == pytest.approx(0.01)
    # 500 ms / 50 tokens and 800 ms / 40 tokens.
    llama = _one("llamacpp-responses.jsonl", "llamacpp-responses")
    assert llama.tpot_s == pytest.approx((0.010 + 0.020) / 2)


def test_what_a_file_does_not_hold_is_none() -> None:
    llama = _one("llamacpp-responses.jsonl", "llamacpp-responses")
    assert (llama.rounds, llama.length, llama.marginal) == (None, None, None)
    assert (llama.drafted, llama.accepted) == (110, 50)
    assert "no rounds" in llama.assumptions[0]
    bench = _one("vllm-bench.json", "vllm-bench")
    assert bench.length_interval is None and bench.length_by_request is None


def test_the_period_is_said() -> None:
    assert _one("sglang-bench.jsonl", "sglang-bench").period == SINCE_START
    assert _one("prometheus-vllm.txt", "prometheus").period == SINCE_START
    gauge = _one("prometheus-sglang.txt", "prometheus")
    assert gauge.period == LAST_INTERVAL and gauge.length == 2.75
    assert _one("vllm-bench.json", "vllm-bench").period == THIS_RUN
    ranged = _one("prometheus-range.json", "prometheus-range")
    assert ranged.period == "2025-11-25 20:00:00 to 2025-11-25 20:03:00 UTC"
    assert any("began again at 0 1 time:" in words for words in ranged.assumptions)


def test_requests_that_aiperf_makes_up_are_left_out() -> None:
    found = _one("aiperf-records.jsonl", "aiperf-records")
    assert found.requests == 7 and found.rounds == ROUNDS
    assert "1 requests of llama.cpp are left out" in found.assumptions[0]


def test_parts_of_a_file_are_apart() -> None:
    _, forge = ingest(SAMPLES / "specforge.json")
    assert [(item.part, item.length) for item in forge] == [
        ("mtbench, batch 1", 2.8),
        ("gsm8k, batch 1", 3.1),
    ]
    _, table = ingest(SAMPLES / "speculators.csv")
    math, empty = table
    assert math.part == "math" and math.length == pytest.approx(2.5)
    assert math.marginal == pytest.approx((0.75, 0.5, 0.25))
    assert empty.length is None and empty.rounds == 0


def test_every_format_has_a_sample() -> None:
    read = {ingest(path)[0].name for path in SAMPLES.iterdir()}
    assert read == READERS.keys()
    assert len(READERS) >= 12


def test_figures_that_use_the_other_definition_are_noticed(tmp_path: Path) -> None:
    """A length without the target's own token, beside counts that include it."""
    file = tmp_path / "bench.json"
    text = (SAMPLES / "vllm-bench.json").read_text()
    file.write_text(
        text.replace('"spec_decode_acceptance_length": 2.5', '"spec_decode_acceptance_length": 1.5')
    )
    (found,) = ingest(file)[1]
    assert found.length == pytest.approx(2.5)
    assert "does not count the target's own token" in found.contradictions[0]


def test_conditional_rates_are_not_taken_for_marginal_ones(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    text = (SAMPLES / "vllm-bench.json").read_text()
    file.write_text(text.replace("0.25", "0.9"))
    (found,) = ingest(file)[1]
    assert any("rise with depth" in contradiction for contradiction in found.contradictions)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no known format"),
        ("{}", "no known format"),
        ('{"measured": false, "num_speculative_tokens": 3}', "a stub"),
        ('{"benchmarks": []}', "holds no figure"),
        ('{"mean_ttft_ms": "x", "total_input_tokens": 1}', "mean_ttft_ms is 'x', not a number"),
        ('{"mean_ttft_ms": -1, "total_input_tokens": 1}', "outside 0 to"),
        ("vllm:spec_decode_num_drafts_total NaN", "not a finite number"),
    ],
)
def test_a_file_that_no_tool_writes_is_one_error(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "file"
    file.write_text(content)
    with pytest.raises(UsageError, match=words):
        ingest(file)


def test_a_missing_file_and_an_unknown_format_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not readable"):
        ingest(tmp_path / "none")
    with pytest.raises(UsageError, match="no such format; there are vllm-requests"):
        ingest(SAMPLES / "vllm-bench.json", "excel")


FILES = sorted(SAMPLES.iterdir())


def _read(content: bytes, name: str | None) -> tuple[Figures, ...]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        try:
            return ingest(Path(file.name), name)[1]
        except UsageError:
            return ()


def _possible(figures: Figures) -> bool:
    lengths = (figures.length, figures.length_by_request)
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


def test_two_files_stand_side_by_side() -> None:
    names = ("vllm-bench.json", "sglang-bench.jsonl")
    done = CliRunner().invoke(app, ["ingest", *(str(SAMPLES / name) for name in names)])
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert "since the server's start" in text and "no interval: the file has sums only" in text


def test_the_document_follows_its_schema() -> None:
    every = sorted(str(path) for path in SAMPLES.iterdir())
    done = CliRunner().invoke(app, ["ingest", *every, "--json"])
    document = json.loads(done.stdout)
    jsonschema.validate(document, schema_of(INGESTED))
    assert len(document["files"]) == len(every)


def test_the_formats_are_listed_and_a_file_is_needed() -> None:
    done = CliRunner().invoke(app, ["ingest", "--list"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert all(name in done.output for name in READERS)
    none = CliRunner().invoke(app, ["ingest"])
    assert isinstance(none.exception, UsageError) and "--list" in str(none.exception)
