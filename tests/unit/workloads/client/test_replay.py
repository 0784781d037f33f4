"""A replay against a server on a real socket: every request is accounted for, whatever happens."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.stub_server import PIECES, ROUNDS, Stub, stub_server
from support.waiting import until

from driftscope.errors import DriftscopeError, NoDataError, TraceError
from driftscope.trace.manifest import CLIENT
from driftscope.trace.reader import Trace, read_trace
from driftscope.trace.records import ClientRow
from driftscope.trace.runs import remove
from driftscope.trace.status import Status
from driftscope.trace.texts import TEXTS
from driftscope.vocabulary import Ended
from driftscope.workloads.client.answer import Counts, StreamedAnswer
from driftscope.workloads.client.recording import row_of, text_of
from driftscope.workloads.client.replay import (
    UNWRITTEN,
    Done,
    Order,
    Watcher,
    lost_of,
    replay,
    require_answers,
)
from driftscope.workloads.client.sending import Patience, Sent
from driftscope.workloads.suites.plan import GONE_AFTER, LoadGenerator, LoadLevel, Shot, plan
from driftscope.workloads.suites.prompts import chat
from driftscope.workloads.suites.suite import parse_suite

pytestmark = pytest.mark.process

PLAIN = parse_suite("{prompts: chat, baseline: as asked, conditions: {as asked: []}}", "plain")
QUICK = Patience(idle_s=1.0, retries=2)


def _order(stub: Stub, run: Path, texts: Iterable[str], **more: Any) -> Order:
    given: dict[str, Any] = {
        "url": stub.url,
        "suite": PLAIN,
        "prompts": [chat(f"p{number}", text) for number, text in enumerate(texts)],
        "patience": QUICK,
        "levels": [LoadLevel(concurrency=4)],
    }
    return Order(run=run, **{"warmup": 0, **given, **more})


def _rows(run: Path) -> list[dict[str, Any]]:
    trace = read_trace(run)
    assert trace.problems == ()
    rows: list[dict[str, Any]] = trace.client.sort_by("order").to_pylist()
    return rows


def _one(text: str, run: Path, **options: Any) -> tuple[Done, dict[str, Any], Stub]:
    with stub_server(**options) as stub:
        done = replay(_order(stub, run, [text]))
    (row,) = _rows(run)
    return done, row, stub


def test_an_answer_is_measured_and_joined(tmp_path: Path) -> None:
    began = time.time()
    done, row, stub = _one("hello", tmp_path / "run", piece_s=0.02)
    (seen,) = stub.seen
    assert done.ended == {Ended.ANSWERED: 1} and done.answered == done.planned == 1
    assert row["request"] == seen.request and row["response"] == f"chatcmpl-{seen.request}"
    assert row["condition"] == "as asked"
    assert seen.label == "replay/plain/as asked"
    assert (row["pair"], row["repeat"], row["concurrency"], row["rate"]) == ("p0", 0, 4, None)
    assert (row["status"], row["error"], row["attempts"]) == (200, None, 1)
    assert row["output_tokens"] == PIECES and row["finish_reason"] == "length"
    assert (row["prompt_tokens"], row["cached_tokens"]) == (11, 3)
    assert row["accepted"] == ROUNDS and row["verified"] == [4] * len(ROUNDS)
    assert 1 <= len(row["gaps_s"]) <= PIECES - 1
    assert row["tpot_s"] == pytest.approx(sum(row["gaps_s"]) / (PIECES - 1), rel=1e-4)
    assert 0 < row["ttft_s"] < row["ttft_s"] + sum(row["gaps_s"]) <= row["e2e_s"] + 1e-4
    assert began <= row["sent_s"] <= row["time_s"] <= time.time()
    assert {"x-request-id", "x-driftscope-label", "x-driftscope-pair"} <= seen.headers.keys()
    assert seen.headers["content-type"] == "application/json"


def test_texts_are_kept_only_on_request_and_only_in_their_file(tmp_path: Path) -> None:
    run = tmp_path / "run"
    _one("a very private question", tmp_path / "without")
    kept = b"".join(path.read_bytes() for path in (tmp_path / "without").iterdir())
    assert b"very private" not in kept and b"0 1 2" not in kept
    with stub_server() as stub:
        done = replay(_order(stub, run, ["a very private question"], keep_texts=True))
    assert done.whole
    (row,) = _rows(run)
    assert json.loads((run / TEXTS).read_text()) == {
        "response": row["response"],
        "prompt": [{"role": "user", "content": "a very private question"}],
        "answer": [f"{number} " for number in range(PIECES)],
        "by_round": False,
    }
    assert (run / TEXTS).stat().st_mode & 0o777 == 0o600
    others = b"".join(path.read_bytes() for path in run.iterdir() if path.name != TEXTS)
    assert b"very private" not in others and b"0 1 2" not in others
    remove(run)
    assert not run.exists()


@pytest.mark.parametrize(
    ("pieces", "accepted", "tokens", "finish", "by_round"),
    [
        (4, [2, 0, 1], 7, "length", True),  # 1 + 3 + 1 + 2
        (4, [2, 0, 3], 6, "length", True),  # the last round is cut
        (4, [2, 0, 3], 7, "stop", True),
        (3, [2, 0, 3], 6, "stop", True),  # its only token is the end of the answer
        (4, [2, 0, 3], 6, "stop", False),
        (3, [2, 0, 1], 7, "length", False),  # two rounds came as one piece
        (5, [2, 0, 1], 8, "length", False),  # a step without a draft
        (1, [], 1, "length", False),
        (4, [2, 0, 1], None, "length", False),
    ],
)
def test_an_answer_is_split_by_round_only_where_its_pieces_are_rounds(
    pieces: int, accepted: list[int], tokens: int | None, finish: str, by_round: bool
) -> None:
    answer = StreamedAnswer(response="r", parts=["x"] * pieces, finish_reason=finish)
    sent = Sent(
        request="r", answer=answer, counts=Counts(output_tokens=tokens, accepted=accepted or None)
    )
    shot = Shot(order=0, prompt=chat("p", "Hi"), condition="c", repeat=0, level=LoadLevel())
    assert text_of(shot, sent, str)["by_round"] is by_round
    secret = StreamedAnswer(response="r", parts=["the key is se", "cret"])
    kept = text_of(shot, Sent(request="r", answer=secret), lambda s: s.replace("secret", "***"))
    assert kept["answer"] == ["the key is ***"]


@pytest.mark.parametrize(
    ("text", "ended", "status", "attempts", "words"),
    [
        ("stall", Ended.TIMEOUT, 200, 1, "no data received for 1 s"),
        ("silent", Ended.TIMEOUT, 200, 1, "no data received for 1 s"),
        ("reset", Ended.INTERRUPTED, 200, 1, ""),
        ("half", Ended.INTERRUPTED, 200, 1, "in the middle of an event"),
        ("cut", Ended.INTERRUPTED, 200, 1, "finish reason None"),
        ("endless", Ended.INTERRUPTED, 200, 1, "finish reason None"),
        ("babble", Ended.INTERRUPTED, 200, 1, "not JSON"),
        ("error", Ended.INTERRUPTED, 200, 1, "out of sorts"),
        ("refuse 400", Ended.REFUSED, 400, 1, "stub refuses with 400"),
        ("refuse 429", Ended.REFUSED, 429, 3, "stub refuses with 429"),
        ("refuse 500", Ended.REFUSED, 500, 3, "stub refuses with 500"),
        ("unreached", Ended.UNREACHED, None, 3, ""),
        ("lingers", Ended.ANSWERED, 200, 1, None),
        ("refuse 429 twice", Ended.ANSWERED, 200, 3, "stub refuses with 429"),
        ("refuse 503 twice", Ended.ANSWERED, 200, 3, "stub refuses with 503"),
    ],
)
def test_how_a_request_can_end(
    tmp_path: Path, text: str, ended: str, status: int | None, attempts: int, words: str | None
) -> None:
    done, row, stub = _one(text, tmp_path / "run", piece_s=0.02)
    assert done.ended == {ended: 1}
    assert (row["ended"], row["status"], row["attempts"]) == (ended, status, attempts)
    if words is None:
        assert row["error"] is None and row["e2e_s"] < 1.0
    else:
        assert words in row["error"] and row["error"]
    assert len({seen.request for seen in stub.seen}) == len(stub.seen) == attempts
    assert stub.seen[-1].request == row["request"], "the last attempt is the one that joins"
    if attempts > 1 and ended == Ended.ANSWERED:
        assert row["waited_s"] >= 0.1 and row["ttft_s"] < row["e2e_s"] - 0.1
    if ended == Ended.INTERRUPTED and text not in ("endless", "babble"):
        assert 1 <= len(row["gaps_s"]) < PIECES // 2 and row["tpot_s"] is None
    if ended != Ended.ANSWERED:
        assert row["garbled"] is None and row["looping"] is None
        with pytest.raises(NoDataError, match="no request was answered"):
            require_answers(done)


def test_one_bad_request_costs_no_other(tmp_path: Path) -> None:
    bad = ["stall", "reset", "half", "cut", "refuse 500", "error", "unreached"]
    with stub_server() as stub:
        done = replay(_order(stub, tmp_path / "run", [*bad, *(f"fine {n}" for n in range(40))]))
    assert done.planned == len(_rows(tmp_path / "run")) == 47
    assert done.answered == 40
    assert sum(done.ended.values()) == 47


def test_a_server_that_dies_leaves_the_rest_unsent(tmp_path: Path) -> None:
    texts = ["fine"] * 5 + ["die"] + ["fine"] * 200
    with stub_server() as stub:
        order = _order(stub, tmp_path / "run", texts, patience=Patience(idle_s=2, retries=0))
        done = replay(order)
    rows = _rows(tmp_path / "run")
    ended = Counter(row["ended"] for row in rows)
    assert len(rows) == done.planned == 206 and dict(ended) == dict(done.ended)
    # Those that the four senders had under way when it died, and those that found it gone.
    assert GONE_AFTER <= ended[Ended.UNREACHED] + ended[Ended.INTERRUPTED] <= GONE_AFTER + 2 * 4
    assert ended[Ended.ANSWERED] + ended[Ended.UNSENT] >= 206 - GONE_AFTER - 2 * 4
    unsent = [row for row in rows if row["ended"] == Ended.UNSENT]
    assert {(row["attempts"], row["sent_s"], row["e2e_s"]) for row in unsent} == {(0, None, None)}


@pytest.mark.parametrize(("late", "fired"), [(Ended.INTERRUPTED, GONE_AFTER + 2), (None, 40)])
def test_only_an_answer_begun_since_shows_a_server_alive(late: str | None, fired: int) -> None:
    """The first shot's answer breaks off (late) when ten others were not reached; without it every
    tenth shot is answered."""
    prompts = [chat(f"p{number}", "x") for number in range(40)]
    shots = plan({"as asked": prompts}, [LoadLevel(concurrency=2)])
    ten = asyncio.Event()

    async def fire(shot: Shot, due_unix_s: float | None) -> ClientRow:
        await asyncio.sleep(0)
        if shot.order >= 10:
            ten.set()
        if shot.order == 0 and late:
            await ten.wait()
            return dataclasses.replace(row_of(shot, Sent(request="x"), {}), ended=late)
        answered = late is None and shot.order % 10 == 0
        ended = Ended.ANSWERED if answered else Ended.UNREACHED
        return dataclasses.replace(row_of(shot, Sent(request="x"), {}), ended=ended)

    load = LoadGenerator(fire)
    asyncio.run(load.run(shots))
    assert len(load.fired) == fired


def test_connections_are_used_again(tmp_path: Path) -> None:
    """Also where the end of a body comes after its last event; it counts for no figure."""
    with stub_server(last_s=0.5) as stub:
        replay(_order(stub, tmp_path / "run", map(str, range(8)), patience=Patience()))
    rows = _rows(tmp_path / "run")
    assert stub.connections <= 4 + 4, "the four senders', and the four looks at the server"
    assert all(row["e2e_s"] < row["ttft_s"] + sum(row["gaps_s"]) + 0.5 for row in rows)


def test_a_proxy_of_the_environment_is_asked_with_the_key_and_the_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("OPENAI_ORG_ID", "an organisation")
    with stub_server() as stub:
        monkeypatch.setenv("http_proxy", stub.url)
        done = replay(_order(stub, tmp_path / "run", ["x"], url="http://model.invalid:8000"))
    (seen,) = stub.seen
    assert done.ended == {Ended.ANSWERED: 1} and seen.text == "x"
    assert seen.headers["authorization"] == "Bearer secret"
    assert seen.headers["openai-organization"] == "an organisation"


def test_a_run_says_what_it_asked_and_of_whom_and_is_never_written_over(tmp_path: Path) -> None:
    with stub_server() as stub:
        order = _order(stub, tmp_path / "run", ["a", "b"], seed=5)
        replay(order)
        with pytest.raises(TraceError, match="already holds a run; give -o"):
            replay(order)
    with pytest.raises(DriftscopeError, match=r"no OpenAI-compatible server answers there"):
        replay(dataclasses.replace(order, run=tmp_path / "other"))
    assert not (tmp_path / "other").exists()
    trace = read_trace(tmp_path / "run")
    assert (trace.manifest.engine, trace.manifest.target.name) == (CLIENT, "stub")
    workload = trace.manifest.workload
    assert (workload["suite"], workload["seed"]) == ("plain", 5)
    assert workload["server"]["url"] == f"{stub.url}/v1"
    assert workload["server"]["max_model_len"] == 4096
    assert trace.resource.num_rows >= 1


def test_two_thousand_requests_of_more_users_than_an_http_client_likes(tmp_path: Path) -> None:
    """None lost, none twice, none taken for another; aiohttp stops at a hundred connections unless
    told otherwise."""
    texts = [f"question {number}" for number in range(2000)]
    with stub_server(piece_s=0.02) as stub:
        levels, patience = [LoadLevel(concurrency=150)], Patience(timeout_s=60)
        done = replay(_order(stub, tmp_path / "run", texts, levels=levels, patience=patience))
    rows = _rows(tmp_path / "run")
    assert done.ended == {Ended.ANSWERED: 2000}
    assert [row["order"] for row in rows] == list(range(2000))
    asked = {seen.request: seen.text for seen in stub.seen}
    assert len(asked) == len(stub.seen) == 2000
    assert {asked[row["request"]] for row in rows} == set(texts)
    for row in rows:
        assert texts[int(row["pair"][1:])] == asked[row["request"]]
        assert row["response"] == f"chatcmpl-{row['request']}"
    assert 100 < stub.most <= 150


def test_levels_follow_each_other_and_begin_warm(tmp_path: Path) -> None:
    with stub_server(piece_s=0.002) as stub:
        levels = [LoadLevel(concurrency=1), LoadLevel(concurrency=3)]
        replay(_order(stub, tmp_path / "run", ["a", "b", "c"], levels=levels, repeat=2, warmup=2))
    rows = _rows(tmp_path / "run")
    assert [row["concurrency"] for row in rows] == [1] * 8 + [3] * 8
    assert [row["warmup"] for row in rows] == ([True] * 2 + [False] * 6) * 2
    names = ("pair", "repeat", "concurrency")
    measured = [tuple(row[name] for name in names) for row in rows if not row["warmup"]]
    assert len(set(measured)) == len(measured) == 12
    for first, then in ((rows[:2], rows[2:8]), (rows[:8], rows[8:]), (rows[8:10], rows[10:])):
        over = max(row["time_s"] for row in first)
        assert min(row["sent_s"] for row in then) >= over - 1e-3, "one phase after the other"


def test_an_open_loop_sends_when_it_is_time(tmp_path: Path) -> None:
    """Also when the answers before are still coming."""
    levels = [LoadLevel(rate=40.0)]
    with stub_server(piece_s=0.05) as stub:
        replay(_order(stub, tmp_path / "run", map(str, range(20)), levels=levels))
    rows = _rows(tmp_path / "run")
    due = [row["due_s"] for row in rows]
    assert due == sorted(due) and {row["rate"] for row in rows} == {40.0}
    assert all(row["sent_s"] >= row["due_s"] - 1e-3 for row in rows)
    assert stub.most > 4
    gaps = [b - a for a, b in itertools.pairwise(due)]
    assert len(set(gaps)) == len(gaps), "users do not come by the clock"


class _StopsAfter(Watcher):
    """Ctrl-C after some requests."""

    def __init__(self, count: int) -> None:
        self._left = count

    def planned(self, shots: Sequence[Shot]) -> None:  # noqa: ARG002
        if self._left == 0:
            signal.raise_signal(signal.SIGINT)

    def ended(self, shot: Shot, row: ClientRow) -> None:  # noqa: ARG002
        self._left -= 1
        if self._left == 0:
            threading.Timer(0.0, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    with stub_server(piece_s=0.02) as stub:
        order = _order(stub, tmp_path / "run", map(str, range(60)))
        done = replay(order, _StopsAfter(6))
    rows = _rows(tmp_path / "run")
    ended = Counter(row["ended"] for row in rows)
    assert done.stopped and len(rows) == 60 and dict(ended) == dict(done.ended)
    assert ended[Ended.ANSWERED] >= 6 and ended[Ended.UNSENT] > 0
    assert 1 <= ended[Ended.CANCELLED] <= 4
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_before_the_first_request_leaves_no_task_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with stub_server() as stub:
        done = replay(_order(stub, tmp_path / "run", map(str, range(60))), _StopsAfter(0))
    assert done.stopped and set(done.ended) <= {Ended.CANCELLED, Ended.UNSENT}
    assert not caplog.records


def test_a_template_is_sent_as_tokens(tmp_path: Path) -> None:
    suite = parse_suite(
        """
        prompts: chat
        baseline: regular
        conditions:
          regular: [{template: {template: server}}]
          no BOS: [{template: {template: server, bos: false}}]
          roles: [{template: {template: roles}}]
          bare roles: [{template: {template: roles, bos: false}}]
        """,
        "templates",
    )
    prompts = [chat("one", "say hello", system="be brief")]
    with stub_server() as stub:
        replay(_order(stub, tmp_path / "run", [], suite=suite, prompts=prompts))
    sent = {seen.label.split("/")[-1]: seen.body["prompt"] for seen in stub.seen}
    assert sent["regular"] == [1, 12, 15, 13, 15] and sent["no BOS"] == sent["regular"][1:]
    # "System: be brief User: say hello Assistant:"
    assert sent["roles"] == [1, 17, 12, 15, 15, 13, 15, 20]
    assert sent["bare roles"] == sent["roles"][1:]
    assert {seen.path for seen in stub.seen} == {"/v1/completions"}


def test_a_killed_replay_is_readable_up_to_its_last_flush(tmp_path: Path) -> None:
    with stub_server(piece_s=0.01) as stub:
        words = ["replay", stub.url, "--repeat", "400", "-o", str(tmp_path / "run")]
        command = [sys.executable, "-m", "driftscope", *words]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        until(lambda: len(stub.seen) >= 60, 60)
        time.sleep(1.0)
        process.kill()
        process.wait(10)
    trace: Trace = read_trace(tmp_path / "run")
    assert trace.client.num_rows >= 30
    assert any("killed" in problem for problem in trace.problems)


@pytest.mark.parametrize(
    ("written", "dropped", "lost"),
    [
        (5, {}, {}),
        (3, {"disk_error": 2}, {"disk_error": 2}),
        (5, {"encode_error": 1}, {"encode_error": 1}),  # one of the machine's resources
        (1, {}, {UNWRITTEN: 4}),
        (1, {"queue_full": 1}, {"queue_full": 1, UNWRITTEN: 3}),
    ],
)
def test_every_row_is_written_or_lost_for_a_reason(
    written: int, dropped: dict[str, int], lost: dict[str, int]
) -> None:
    status = Status(
        source="client-1", closed=True, flushed_s=1.0, rows={"client": written}, dropped=dropped
    )
    assert lost_of(status, 5) == lost
    done = Done(
        run=Path("run"), planned=5, ended={Ended.ANSWERED: 5}, stopped=False, notes=(), lost=lost
    )
    assert done.whole is not bool(lost)
