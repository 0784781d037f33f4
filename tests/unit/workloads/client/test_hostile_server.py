"""A replay against servers that do harm: every request has its row and reason, the run goes on."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.hostile.server import OPENAI, Server, hostile_server
from support.waiting import no_hang

from driftscope.boundary.http_peer import AnswerLimits
from driftscope.errors import DriftscopeError, UsageError
from driftscope.trace.reader import read_trace
from driftscope.vocabulary import Ended
from driftscope.workloads.client import server as server_module
from driftscope.workloads.client.replay import Order, replay
from driftscope.workloads.client.sending import Patience
from driftscope.workloads.suites.plan import LoadLevel
from driftscope.workloads.suites.prompts import chat
from driftscope.workloads.suites.suite import parse_suite

pytestmark = pytest.mark.process

PLAIN = parse_suite("{prompts: chat, baseline: as asked, conditions: {as asked: []}}", "plain")
AS_TOKENS = parse_suite(
    "{prompts: chat, baseline: a, conditions: {a: [{template: {template: server}}]}}", "tokens"
)
KEY = "sk-0123456789abcdefghij"
TIMEOUT_S = 1.5
LOOK_S = 1.0
ROOM_KB = 500 << 10
"""Most memory that the worst server may add, in KiB: an answer's bytes at their limit."""
FINE = {"well", "version-deep", "version-long", "metrics-endless", "metrics-digits"}
"""The answer is as it should be; what is wrong is said of the server only."""
LOOKS = {name for name in OPENAI if name.startswith(("models-", "key-echo-models", "redirect-mod"))}
"""No request is sent: it is not known what to ask."""
RENDERS = {"tokenize-odd"}
ANSWERS = {
    "endless-answer": "within 1.5 s|more than",
    "endless-text": "more than 4,194,304 characters",
    "endless-calls": "within 1.5 s|more than",
    "endless-comments": "no complete answer within 1.5 s",
    "comment-flood": "within 1.5 s|more than",
    "small-lines": "within 1.5 s|more than",
    "loris-answer": "no complete answer within 1.5 s",
    "loris-head": "no complete answer within 1.5 s",
    "hanging-answer": "no complete answer within 1.5 s",
    "answer-bomb": "longer than|more than|within",
    "histogram-huge": "acceptance_histogram.0",
    "usage-types": "prompt_tokens",
    "answer-deep": "not JSON",
    "error-deep": "without a message",
    "refusal-deep": "HTTP 400: an error without a message",
    "retry-nan": "HTTP 503",
    "redirect-prompt": "HTTP 307: a redirect to http://127",
    "key-echo": r"HTTP 401: invalid key: Bearer \*\*\*",
    "key-echo-part": r"^\*\*\*$",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with hostile_server() as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = AnswerLimits(seconds=LOOK_S, octets=server_module.LIMITS.octets)
    monkeypatch.setattr(server_module, "LIMITS", limits)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def _order(url: str, run: Path, **more: Any) -> Order:
    prompts = [chat(f"p{number}", f"a private question {number}") for number in range(3)]
    patience = Patience(timeout_s=TIMEOUT_S, retries=1)
    given: dict[str, Any] = {"suite": PLAIN, "patience": patience, **more}
    return Order(
        url=url, run=run, prompts=prompts, warmup=0, levels=[LoadLevel(concurrency=3)], **given
    )


def _files(run: Path) -> bytes:
    return b"".join(path.read_bytes() for path in run.iterdir())


def test_every_behaviour_is_tried() -> None:
    assert FINE | LOOKS | RENDERS | ANSWERS.keys() == OPENAI.keys()


@pytest.mark.parametrize("behaviour", sorted(FINE))
def test_what_is_wrong_beside_the_answer(server: Server, tmp_path: Path, behaviour: str) -> None:
    done = replay(_order(server.url(behaviour) + "/v1", tmp_path / "run"))
    assert done.ended == {Ended.ANSWERED: 3}
    facts = read_trace(tmp_path / "run").manifest.workload["server"]
    assert facts["version"] == (None if behaviour.startswith("version") else "0.0")
    assert facts["kv_tokens"] == (None if behaviour.startswith("metrics") else 160)


@pytest.mark.parametrize("behaviour", sorted(LOOKS))
def test_nothing_is_sent_to_a_server_of_no_known_model(
    server: Server, tmp_path: Path, behaviour: str
) -> None:
    before_kb, words = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "no OpenAI-compatible"
    with no_hang(), pytest.raises(DriftscopeError, match=words) as caught:
        replay(_order(server.url(behaviour) + "/v1", tmp_path / "run"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < ROOM_KB
    message = str(caught.value)
    assert message.isprintable() and len(message) < 700 and KEY not in message
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_that_answers_something_else(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DriftscopeError, match=r"/tokenize does not return .*\(tokens\.0: "):
        replay(_order(server.url("tokenize-odd") + "/v1", tmp_path / "run", suite=AS_TOKENS))


@pytest.mark.parametrize("behaviour", sorted(ANSWERS))
def test_each_request_has_its_reason(server: Server, tmp_path: Path, behaviour: str) -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with no_hang():
        done = replay(_order(server.url(behaviour) + "/v1", tmp_path / "run"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < ROOM_KB
    assert done.answered == 0 and sum(done.ended.values()) == 3
    rows = read_trace(tmp_path / "run").client.to_pylist()
    assert len(rows) == 3
    for row in rows:
        assert re.search(ANSWERS[behaviour], row["error"]), row["error"]
        assert row["output_tokens"] is None or 0 <= row["output_tokens"] < 1 << 24
    kept = _files(tmp_path / "run")
    assert KEY.encode() not in kept and KEY[2:-2].encode() not in kept
    assert server.elsewhere is not None
    assert server.elsewhere.asked == [], "a prompt went to another origin"


def test_a_password_is_sent_and_kept_nowhere(server: Server, tmp_path: Path) -> None:
    url = server.url("well", user="me:s3cret-word") + "/v1"
    done = replay(_order(url, tmp_path / "run"))
    assert done.ended == {Ended.ANSWERED: 3}
    sent = {asked.headers.get("authorization") for asked in server.asked[-6:]}
    assert sent == {"Basic bWU6czNjcmV0LXdvcmQ="}
    assert b"s3cret" not in _files(tmp_path / "run")
    done = replay(_order(server.url("key-echo", user="me:s3cret-word") + "/v1", tmp_path / "b"))
    assert done.ended == {Ended.REFUSED: 3} and b"bWU6" not in _files(tmp_path / "b")
    with pytest.raises(UsageError) as caught:
        replay(_order("ftp://me:s3cret-word@host", tmp_path / "c"))
    assert "s3cret" not in str(caught.value)


def test_a_key_by_the_name_of_its_variable(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "another-key-of-mine")
    order = _order(server.url("well") + "/v1", tmp_path / "run", api_key_env="MINE")
    replay(order)
    sent = {asked.headers.get("authorization") for asked in server.asked[-6:]}
    assert sent == {"Bearer another-key-of-mine"}
    assert "another-key" not in repr(order)
    with pytest.raises(UsageError, match="ABSENT: --api-key-env"):
        replay(_order(server.url("well") + "/v1", tmp_path / "run", api_key_env="ABSENT"))
