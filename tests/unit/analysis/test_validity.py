"""What a measurement is of: text or random tokens, answers that stop or go on, loops."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.command import run_command
from support.replays import client_row, write_replay
from support.stub_server import stub_server

from driftscope.analysis.replays import CONTENDER, SPECULATION
from driftscope.analysis.validity import IGNORES_STOP, PROMPT_TEXT, RANDOM, TEXT, kind_of_text
from driftscope.pipeline import Inputs, analyze

_WRITTEN = Path(__file__).parents[1] / "ingest/written"
_TEXT = (
    "The council of the town met on the first day of the year, and the mayor of the town read the "
    "report of the committee to the council, as the rules of the council ask of the mayor."
)


def _tokens(words: int, seed: int = 0) -> str:
    source = random.Random(seed)
    return " ".join("".join(source.choices("abcdefghijklmnop", k=6)) for _ in range(words))


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        ([_TEXT], TEXT),
        ([_tokens(120)], RANDOM),
        ([_tokens(120)] * 9, RANDOM),
        ([_tokens(120, seed) for seed in range(9)], RANDOM),
        (["What is the capital of France?"], None),
        ([], None),
    ],
    ids=["prose", "random", "the same random prompt again", "several", "too short", "none"],
)
def test_text_is_told_from_random_tokens(texts: list[str], kind: str | None) -> None:
    assert kind_of_text(texts) == kind


def _replay(folder: Path, content: dict[str, Any], *, loops: int = 0, **values: Any) -> Any:
    rows = [
        client_row(n, digest=f"d{n}", looping=n < loops, accepted=[n % 4, 3], **values)
        for n in range(40)
    ]
    run = write_replay(folder / "run", [*rows, client_row(40, warmup=True)], **content)
    return run, analyze(Inputs(sources=[run], labels=["run"]))


_VALID = {PROMPT_TEXT: TEXT, IGNORES_STOP: False}


@pytest.mark.parametrize(
    ("content", "more", "valid", "words"),
    [
        (_VALID, {}, True, "0 of 40 end in a repetition loop; 40 different prompts; 1 warm-up"),
        (_VALID, {"finish_reason": "length"}, True, "40 of 40 answers cut at max_tokens"),
        (_VALID, {"loops": 2}, True, "2 of 40 end in a repetition loop"),
        (_VALID, {"loops": 30}, False, "75% of the answers end in a repetition loop"),
        ({**_VALID, IGNORES_STOP: True}, {}, False, "ignore_eos"),
        ({**_VALID, PROMPT_TEXT: RANDOM}, {}, False, "random tokens"),
        ({}, {}, None, "what the prompts are made of is not recorded"),
    ],
)
def test_a_replay_says_what_it_is_of(
    tmp_path: Path, content: dict[str, Any], more: dict[str, Any], valid: bool | None, words: str
) -> None:
    run, analysis = _replay(tmp_path, content, **more)
    (sender,) = analysis.senders
    assert sender.validity.content_valid is valid and words in sender.validity.words
    assert words in " ".join(analysis.verdict)
    found = [finding.id for finding in analysis.findings]
    assert ("not_content_valid" in found) is (valid is False)
    checked = run_command("check", run, "--fail-on", "not_content_valid")
    assert checked.returncode == {True: 0, False: 3, None: 4}[valid], checked.stderr


def test_speed_on_random_tokens_decides_nothing(tmp_path: Path) -> None:
    for name, speculates, tpot_s in (("with", True, 0.01), ("without", False, 0.03)):
        for kind in (TEXT, RANDOM):
            rows = [client_row(n, tpot_s=tpot_s * (1 + n % 3 / 50)) for n in range(40)]
            content = {**_VALID, PROMPT_TEXT: kind, SPECULATION: speculates, CONTENDER: name}
            write_replay(tmp_path / f"{kind} {name}", rows, **content)
    for kind, answer in ((TEXT, "yes"), (RANDOM, "cannot tell")):
        runs = [tmp_path / f"{kind} {name}" for name in ("without", "with")]
        analysis = analyze(Inputs(sources=runs, labels=["without", "with"]))
        (pays,) = [one for one in analysis.answers if one.id == "pays_for_clients"]
        assert pays.answer == answer and ("not content-valid" in pays.statement) is (kind == RANDOM)


@pytest.mark.parametrize("ignores", [False, True])
def test_the_client_records_what_it_asks(tmp_path: Path, ignores: bool) -> None:
    suite, mine = tmp_path / "plain.yaml", tmp_path / "mine.jsonl"
    settings = "{max_tokens: 8, ignore_eos: true}" if ignores else "{max_tokens: 8}"
    suite.write_text(f"{{prompts: chat, baseline: a, conditions: {{a: []}}, settings: {settings}}}")
    text = _tokens(120) if ignores else _TEXT
    mine.write_text("".join(json.dumps({"prompt": f"{n} {text}"}) + "\n" for n in range(3)))
    with stub_server() as stub:
        asked = ("--suite", suite, "--prompts", mine, "--warmup", 0, "-o", tmp_path / "run")
        done = run_command("replay", stub.url, *asked)
    assert done.returncode == 0, done.stderr
    (sender,) = analyze(Inputs(sources=[tmp_path / "run"], labels=["a"])).senders
    assert sender.validity.ignores_stop is ignores
    assert sender.validity.prompts == (RANDOM if ignores else TEXT)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("sglang-0.5.23/bench.jsonl", "the prompts are random tokens"),
        ("guidellm-0.8/benchmarks.json", "answers go on after their end"),
        ("aiperf-0.13/profile_export_aiperf.json", ""),
    ],
)
def test_a_tools_file_says_it_where_it_is_known(tmp_path: Path, file: str, words: str) -> None:
    read = run_command("ingest", _WRITTEN / file, "-o", tmp_path / "run")
    assert (words in " ".join(read.stdout.split())) and bool(words) is (
        "not content-valid" in read.stdout
    )
    (sender,) = analyze(Inputs(sources=[tmp_path / "run"], labels=["a"])).senders
    assert sender.validity.content_valid is (not words)
