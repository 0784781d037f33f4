"""A small or a large file takes neither long nor much memory, whatever numbers it holds."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from support.command import assert_fails, run_command

from driftscope.errors import EXIT_OK, EXIT_UNKNOWN, EXIT_USAGE
from driftscope.ingest import base

SAMPLES = Path(__file__).parent / "samples"


def _requests(rounds: int, number: int = 1) -> str:
    counts = {
        "acceptance_histogram": [0, rounds],
        "num_spec_steps": rounds,
        "num_accepted_draft_tokens": rounds,
        "num_draft_tokens": 3 * rounds,
        "num_spec_tokens": 3,
    }
    row = {"id": "a", "metrics": {"speculative_decoding": counts}}
    return (json.dumps(row) + "\n") * number


@pytest.mark.parametrize(("rounds", "number"), [(10**9, 1), (10**6, 60)])
def test_a_histogram_of_many_rounds_is_held_as_sums(
    tmp_path: Path, rounds: int, number: int
) -> None:
    path = tmp_path / "responses.jsonl"
    path.write_text(_requests(rounds, number))
    began_s = time.process_time()
    done = run_command("ingest", path, "-o", tmp_path / "run")
    assert done.returncode == EXIT_OK, done.stderr
    assert "sums of 1 part" in done.stderr and time.process_time() - began_s < 2.0


@pytest.mark.parametrize("line", ["Decode batch", "SpecDecoding metrics:", "Finish: obj=", "(a "])
def test_a_line_that_repeats_a_mark_is_read_in_linear_time(tmp_path: Path, line: str) -> None:
    path = tmp_path / "server.log"
    path.write_text(line * (400_000 // len(line)))
    began_s = time.process_time()
    assert run_command("ingest", path).returncode == EXIT_UNKNOWN
    assert time.process_time() - began_s < 1.0


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
    path = tmp_path / "result.json"
    path.write_text(content)
    assert_fails(run_command("ingest", path), EXIT_USAGE, words)


def test_lists_of_times_count_for_no_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = SAMPLES / "vllm-bench.json"
    path = tmp_path / short.name
    path.write_text(json.dumps({**json.loads(short.read_text()), "itls": [[0.0123456] * 1000] * 9}))
    monkeypatch.setattr(base, "MOST_VALUES", 1000)
    found, expected = (run_command("ingest", file, "--json").stdout for file in (path, short))
    assert found == expected and '"rounds": 200' in found


def test_a_number_of_401_digits_is_named(tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    path.write_text(_requests(10).replace('"num_spec_steps": 10', f'"num_spec_steps": {10**400}'))
    assert_fails(run_command("ingest", path), EXIT_USAGE, "num_spec_steps is 1000")
