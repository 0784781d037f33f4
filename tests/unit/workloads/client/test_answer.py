"""Streams, counts and errors of a server, its URL and its key: bounded, and no secret is shown."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.waiting import no_hang

from driftscope.boundary.bounds import MAX_K, MAX_ROUNDS
from driftscope.errors import UsageError
from driftscope.workloads.client import answer
from driftscope.workloads.client.answer import (
    MAX_EVENT_BYTES,
    BrokenStreamError,
    Counts,
    Events,
    StreamedAnswer,
    ToolCall,
    counts_of,
    is_garbled,
    is_json,
    is_looping,
    outcome_of,
    words_of,
)
from driftscope.workloads.client.server import Access
from driftscope.workloads.suites.prompts import TOOLS, Expect, Prompt
from driftscope.workloads.suites.transforms import document, json_result, shell, stack_trace


@pytest.mark.parametrize("piece", [b": still here\n", b"\n", b"data: {}\n", b"x"])
def test_a_stream_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch, piece: bytes) -> None:
    monkeypatch.setattr(answer, "MAX_ANSWER_BYTES", 10_000)
    events = Events()
    with pytest.raises(BrokenStreamError, match="a stream of more than 10,000 bytes"):
        for _ in range(10_000 // len(piece) + 1):
            events.feed(piece)


def test_a_stream_is_bounded_in_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "MAX_ANSWER_EVENTS", 100)
    events = Events()
    assert len(events.feed(b"data: {}\n" * 100)) == 100
    with pytest.raises(BrokenStreamError, match="more than 100 events"):
        events.feed(b"data: {}\n")


def test_an_event_that_comes_in_small_pieces_costs_no_more_than_its_length() -> None:
    events = Events()
    with no_hang(), pytest.raises(BrokenStreamError, match="an event longer than"):
        for _ in range(MAX_EVENT_BYTES // 64 + 1):
            events.feed(b"x" * 64)


def test_counts_of_tokens() -> None:
    details = {"cached_tokens": 1, "more": "x"}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": details}
    assert counts_of(usage, None) == Counts(prompt_tokens=3, output_tokens=2, cached_tokens=1)
    assert counts_of({"prompt_tokens_details": None}, None) == Counts()
    assert counts_of(None, None) == counts_of({}, {}) == Counts()


def test_rounds_as_vllm_tells_them() -> None:
    detailed = {"per_step_accepted": [1, 0], "per_step_drafted": [4, 4]}
    detailed["acceptance_histogram"] = [1, 1, 0, 0, 0]
    assert counts_of(None, detailed) == Counts(verified=[4, 4], accepted=[1, 0])
    summary = {"acceptance_histogram": [2, 1, 0]}
    assert counts_of(None, summary) == Counts(accepted=[0, 0, 1])
    assert counts_of(None, {"acceptance_histogram": [0, 0]}) == Counts()
    cut = {**summary, "acceptance_histogram_by_draft_length": {"1": [2, 0], "2": [0, 1, 0]}}
    assert counts_of(None, cut) == Counts(verified=[1, 1, 2], accepted=[0, 0, 1])


@pytest.mark.parametrize(
    ("usage", "speculation", "words"),
    [
        ([1], None, "dictionary"),
        ({"prompt_tokens": "3"}, None, "prompt_tokens: "),
        ({"completion_tokens": True}, None, "completion_tokens: "),
        ({"completion_tokens": -1}, None, "completion_tokens: "),
        ({"completion_tokens": 1 << 62}, None, "completion_tokens: "),
        ({"prompt_tokens_details": [1]}, None, "prompt_tokens_details: "),
        (None, "x", "dictionary"),
        (None, {"acceptance_histogram": "x"}, "acceptance_histogram: "),
        (None, {"acceptance_histogram": ["many", None]}, "acceptance_histogram.0: "),
        (None, {"acceptance_histogram": [-1, 2]}, "acceptance_histogram.0: "),
        (None, {"acceptance_histogram": [3_000_000_000, 1]}, "acceptance_histogram.0: "),
        (None, {"acceptance_histogram": [MAX_ROUNDS, 1]}, "more than 1,048,576 rounds"),
        (None, {"acceptance_histogram": [0] * (MAX_K + 2)}, "acceptance_histogram: "),
        (None, {"per_step_drafted": [MAX_K + 1]}, "per_step_drafted.0: "),
    ],
)
def test_counts_that_cannot_be_right(usage: Any, speculation: Any, words: str) -> None:
    with pytest.raises(BrokenStreamError, match=words):
        counts_of(usage, speculation)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"error": {"message": "no such model", "code": 404}}', "no such model"),
        (b'{"error": "no such model"}', "no such model"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"message": "two\\nlines"}', "two lines"),
        (b"<html>\n  Bad gateway </html>", "<html> Bad gateway </html>"),
        (b'{"error": {"code": 7}}', '{"code":7}'),
        (b"[1, null]", "[1,null]"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", ""),
        (b'{"error": ' + b"[" * 900 + b"]" * 900 + b"}", "an error without a message"),
    ],
)
def test_the_words_of_a_servers_error(content: bytes, words: str) -> None:
    assert words_of(content) == words


def test_a_call_that_is_streamed_in_pieces() -> None:
    answer = StreamedAnswer()
    first, *others = {"name": "shell", "arguments": ""}, '{"com', 'mand": "ls"}'
    for piece in (first, *({"arguments": other} for other in others)):
        delta = {"tool_calls": [{"index": 0, "function": piece}]}
        assert answer.add({"choices": [{"delta": delta}]})
    (call,) = answer.calls.values()
    assert (call.name, call.arguments) == ("shell", '{"command": "ls"}')


def test_events_however_they_are_cut() -> None:
    stream = b': hi\n\ndata: {"a": 1}\n\ndata:{"a": "\xc3\xa4"}\r\n\r\ndata: [DONE]\n\n'
    for size in range(1, len(stream)):
        events, found = Events(), []
        for at in range(0, len(stream), size):
            found += list(events.feed(stream[at : at + size]))
        assert found == [{"a": 1}, {"a": "ä"}] and events.done and not events.open
    with pytest.raises(BrokenStreamError):
        list(Events().feed(b"data: {no\n"))
    with pytest.raises(BrokenStreamError):
        list(Events().feed(b"data: [1]\n"))


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("[1, 2]", True),
        ("```json\n[1]\n```", True),
        ("[1, 2", False),
        ("Sure! [1]", False),
        ('["a"]', False),
        ("", False),
    ],
)
def test_json(text: str, fits: bool) -> None:
    assert is_json(text, {"type": "array", "items": {"type": "integer"}}) is fits


@pytest.mark.parametrize(
    ("name", "arguments", "right"),
    [
        ("weather", '{"city": "Lisbon", "unit": "celsius"}', True),
        ("weather", '{"city": "Lisbon", "unit": "kelvin"}', False),
        ("weather", '{"city": "Lisbon"}', False),
        ("weather", '{"city": "Lis', False),
        ("shell", '{"command": "weather Lisbon"}', False),
    ],
)
def test_a_tool_call(name: str, arguments: str, right: bool) -> None:
    prompt = Prompt(key="x", tools=TOOLS, expect=Expect(tool="weather"))
    answer = StreamedAnswer(calls={0: ToolCall(names=[name], pieces=[arguments])})
    assert outcome_of(prompt, answer, 9).tool_ok is right
    assert outcome_of(prompt, StreamedAnswer(), 9).tool_ok is False


@pytest.mark.parametrize(
    ("reason", "tokens", "early"), [("stop", 10, True), ("stop", 300, False), ("length", 10, False)]
)
def test_an_early_stop(reason: str, tokens: int, early: bool) -> None:
    prompt = Prompt(key="x", expect=Expect(min_tokens=200))
    answer = StreamedAnswer(finish_reason=reason)
    assert outcome_of(prompt, answer, tokens).early_stop is early
    assert outcome_of(Prompt(key="x"), answer, tokens).early_stop is None


def test_a_repetition_loop() -> None:
    source = random.Random(3)
    assert is_looping("It began well. " + "and then again " * 12)
    assert is_looping("x" * 100) and is_looping("start " + "self.buffer[0] = 0\n" * 9 + "self.b")
    texts = [document(3000, source), json_result(source), shell(source), stack_trace(source)]
    for text in ("", "ok", "....", "ha ha ha ha ha", "-" * 60, *texts):
        assert not is_looping(text), text


def test_garbled() -> None:
    assert is_garbled("the \ufffd\ufffd\ufffd\ufffd end") and is_garbled("\x00\x01\x02 a")
    for text in ("", "plain\n\ttext", "早上好，世界", "👩‍🔬 works", "cut off \ufffd"):
        assert not is_garbled(text), text


@pytest.fixture(autouse=True)
def without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.mark.parametrize(
    ("url", "base", "root"),
    [
        ("http://h:8000", "http://h:8000/v1", "http://h:8000"),
        ("h:8000", "http://h:8000/v1", "http://h:8000"),
        ("https://h/v1/", "https://h/v1", "https://h"),
        ("https://h/api/v1", "https://h/api/v1", "https://h/api"),
        ("http://h/other", "http://h/other", "http://h/other"),
        ("me:s3cret@h:8000", "http://h:8000/v1", "http://h:8000"),
    ],
)
def test_where_it_is(url: str, base: str, root: str) -> None:
    access = Access.parsed(url)
    assert (access.base, access.root) == (base, root)
    assert "s3cret" not in repr(access)


def test_what_is_taken_out_of_a_servers_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    access = Access.parsed("http://me:s3cret@h:8000")
    assert access.secrets == ("s3cret", "bWU6czNjcmV0", "sk-0123456789")
    assert access.recorded("no: sk-0123456789, s3cret \x1b") == "no: ***, *** \x1b"
    assert access.printable("no: sk-0123456789, s3cret \x1b") == r"no: ***, *** \x1b"
    assert "sk-" not in repr(access)


def test_what_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="not a server's URL") as caught:
        Access.parsed("http://me:s3cret@")
    assert "s3cret" not in str(caught.value)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-\xe9")
    with pytest.raises(UsageError, match="characters that no HTTP header can carry") as caught:
        Access.parsed("http://h")
    assert "sk-" not in str(caught.value)
    with pytest.raises(UsageError, match="not a server's URL") as caught:
        Access.parsed("http://" + "é" * 200)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
