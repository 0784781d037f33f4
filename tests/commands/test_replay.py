"""`driftscope replay` as a command: options, exit codes, what it prints."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from support.command import Driftscope, assert_fails
from support.runs import Spec, write_run
from support.small_disk import fill, small_disk
from support.stub_server import stub_server
from support.waiting import until

from driftscope.boundary.json_document import REPLAY
from driftscope.json_schema import schema_of
from driftscope.trace.reader import read_trace

pytestmark = pytest.mark.process


def _asked(folder: Path, *texts: str) -> list[object]:
    """Return options that send these texts once."""
    suite, prompts = folder / "plain.yaml", folder / "mine.jsonl"
    suite.write_text("{prompts: chat, baseline: a, conditions: {a: []}}")
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return ["--suite", suite, "--prompts", prompts, "--warmup", 0]


def test_it_records_a_run_and_says_what_next(driftscope: Driftscope, tmp_path: Path) -> None:
    with stub_server() as stub:
        options = ["--limit", "3", "--concurrency", "1,2", "-o", "run", "--warmup", "1", "--json"]
        done = driftscope("replay", stub.url, *options)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["ended"] == {"answered": 14} and said["planned"] == 14
    jsonschema.validate(said, schema_of(REPLAY))
    assert "next: driftscope analyze run" in done.stderr
    rows = read_trace(tmp_path / "run").client.to_pylist()
    assert {row["condition"] for row in rows} == {"as asked", "other wording"}
    assert {row["concurrency"] for row in rows} == {1, 2}


@pytest.mark.parametrize(
    ("texts", "code"), [(["fine", "refuse 400"], 1), (["refuse 400"], 4), (["half"], 4)]
)
def test_exit_codes(driftscope: Driftscope, tmp_path: Path, texts: list[str], code: int) -> None:
    with stub_server() as stub:
        done = driftscope("replay", stub.url, *_asked(tmp_path, *texts), "-o", "run")
    assert done.returncode == code, done.stderr
    assert read_trace(tmp_path / "run").client.num_rows == len(texts)
    assert done.stdout == ""


def test_rows_that_the_disk_has_no_room_for(driftscope: Driftscope, tmp_path: Path) -> None:
    """Every request was answered, and the run still lacks some: that is no success."""
    asked = (*_asked(tmp_path, *map(str, range(60))), "--concurrency", 2)
    with small_disk(tmp_path / "disk", 300) as disk, stub_server(piece_s=0.02) as stub:
        fill(disk, leave=24 << 10)
        done = driftscope("replay", stub.url, *asked, "-o", disk / "run", "--json", "--quiet")
        said, rows = json.loads(done.stdout), read_trace(disk / "run").client.num_rows
    assert done.returncode == 1
    assert said["ended"] == {"answered": 60}
    lost = said["lost"]["disk_error"]
    assert rows + lost >= 60 > rows
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert f"{lost} rows lost (disk error {lost})" in line and str(disk / "run") in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "give the URL"),
        (["ftp://nowhere"], "not a server's URL"),
        (["http://x", "--suite", "none"], "--suite none: neither a shipped suite"),
        (["http://x", "--concurrency", "2.5"], "give whole numbers"),
        (["http://x", "--rate", "-1"], "--rate -1: give numbers above 0"),
        (["http://x", "--rate", "5", "--concurrency", "1,2"], "concurrency must be one number"),
        (["http://x", "--prompts", "none"], "prompts none: neither"),
    ],
)
def test_options_that_cannot_be_used(
    driftscope: Driftscope, options: list[str], words: str
) -> None:
    assert_fails(driftscope("replay", *options), 2, words)


def test_lists(driftscope: Driftscope) -> None:
    suites = driftscope("replay", "--list-suites")
    assert suites.returncode == 0 and "\ntemplate\n" in suites.stdout and "trio" in suites.stdout
    assert "filler: {tokens, form='documents', needle=None}" in suites.stdout


def test_ctrl_c(tmp_path: Path) -> None:
    with stub_server(piece_s=0.02) as stub:
        command = ["driftscope", "replay", stub.url, "--repeat", "500", "-o", "run"]
        process = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        until(lambda: len(stub.seen) >= 20, 60)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "stopped; 8,004 requests" in said and "next: driftscope analyze run" in said
    trace = read_trace(tmp_path / "run")
    assert trace.problems == () and trace.client.num_rows == 8004


def test_two_replays_are_compared_prompt_by_prompt(driftscope: Driftscope, tmp_path: Path) -> None:
    with stub_server() as stub:
        for run in ("a", "b"):
            driftscope("replay", stub.url, "--limit", "6", "--warmup", "0", "-o", run)
    done = driftscope("compare", "a", "b", "--json")
    assert done.returncode == 0, done.stderr
    pairs = json.loads(done.stdout)["replays_compared"]
    assert [pair["condition"] for pair in pairs] == ["as asked", "other wording"]
    for pair in pairs:
        assert pair["same_text"] == [6, 6] and pair["length_ratio"]["pairs"] == 6
    rows = driftscope("compare", "a", "b").stdout.splitlines()
    assert any(row.split()[:2] == ["b", "a"] for row in rows), "replay, and what it is against"
    write_run(tmp_path / "server", Spec(requests=2))
    mixed = driftscope("compare", "a", "server")
    assert mixed.returncode == 1 and "a replay and a probe's run" in mixed.stderr
