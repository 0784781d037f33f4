"""An OpenAI-compatible server on a real socket, whose behaviour each prompt selects.

The beginning of a request's text selects it: "stall", "reset", "refuse 429", "refuse 500 twice",
"refuse 400", "half", "cut", "error", "silent", "babble", "lingers", "die"; anything else is
answered. The server has a thread and an event loop of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

PIECES = 8
ROUNDS = [2, 0, 1, 3]
"""Accepted tokens per round, of 4 drafted, that every answer reports."""


@dataclass
class Seen:
    """One request as the server received it."""

    request: str
    label: str
    path: str
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        if "messages" in self.body:
            return str(self.body["messages"][-1]["content"])
        return str(self.body["prompt"])


@dataclass
class Stub:
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    tries: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    most: int = 0
    running: int = 0
    dead: threading.Event = field(default_factory=threading.Event)
    piece_s: float = 0.0
    last_s: float = 0.0
    """Time between the last event and the end of the body, in seconds."""
    max_model_len: int = 4096
    port: int = 0
    """Port; 0 for any free one."""
    metrics: str = ""
    """Text of its metrics; empty: it has none."""
    launched: dict[str, Any] | None = None
    """What it tells at SGLang's /server_info; None: nothing."""


@contextlib.contextmanager
def stub_server(**options: Any) -> Iterator[Stub]:
    stub, ready, loop = Stub(**options), threading.Event(), asyncio.new_event_loop()

    async def main() -> None:
        server = await asyncio.start_server(
            lambda r, w: _connection(stub, server, r, w), "127.0.0.1", stub.port
        )
        stub.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await stopped.wait()
        server.close()

    stopped = asyncio.Event()

    def work() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(main())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(10)
    try:
        yield stub
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(10)


async def _connection(
    stub: Stub, server: asyncio.Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    stub.connections += 1
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
        while not stub.dead.is_set() and await _request(stub, server, reader, writer):
            pass
    writer.close()


async def _request(
    stub: Stub, server: asyncio.Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    content = await reader.readexactly(int(headers.get("content-length", 0)))
    path = urlsplit(first.split(" ")[1]).path
    if path == "/v1/models":
        model = {"id": "stub", "object": "model", "max_model_len": stub.max_model_len}
        return _json(writer, {"object": "list", "data": [model]})
    if path == "/metrics" and stub.metrics:
        content = stub.metrics.encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        return True
    if path == "/server_info" and stub.launched is not None:
        return _json(writer, stub.launched)
    if path == "/health":
        return _json(writer, {})
    if path == "/tokenize":
        return _json(writer, _tokenized(json.loads(content)))
    if stub.dead.is_set():
        _abort(writer)
        return False
    if path not in ("/v1/chat/completions", "/v1/completions"):
        return _json(writer, {"error": "no such thing"}, status=404)
    seen = Seen(
        headers.get("x-request-id", ""),
        headers.get("x-driftscope-label", ""),
        path,
        json.loads(content),
        headers,
    )
    stub.seen.append(seen)
    stub.running += 1
    stub.most = max(stub.most, stub.running)
    try:
        return await _answer(stub, server, seen, writer)
    finally:
        stub.running -= 1


async def _answer(
    stub: Stub, server: asyncio.Server, seen: Seen, writer: asyncio.StreamWriter
) -> bool:
    text = seen.text
    stub.tries[text] += 1
    if text.startswith("refuse"):
        _, status, *rest = text.split()
        if "twice" not in rest or stub.tries[text] <= 2:
            error = {"error": {"message": f"stub refuses with {status}", "code": int(status)}}
            return _json(writer, error, status=int(status), more="retry-after: 0.05\r\n")
    if text.startswith("unreached"):
        _abort(writer)
        return False
    _head(writer)
    if text.startswith("babble"):
        _piece(writer, b"data: <html>\n\n")
        writer.write(b"0\r\n\r\n")
        return True
    if text.startswith("silent"):
        await asyncio.sleep(60)
    for number in range(PIECES):
        if number == PIECES // 2 and await _mishap(stub, server, text, writer):
            return False
        if number:
            await asyncio.sleep(stub.piece_s)
        _event(writer, _chunk(seen, f"{number} "))
        await writer.drain()
    if not text.startswith("endless"):
        _event(writer, _last(seen))
        _event(writer, _usage(seen))
    _event(writer, b"[DONE]")
    await writer.drain()
    if text.startswith("lingers"):
        await asyncio.sleep(60)
    await asyncio.sleep(stub.last_s)
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


async def _mishap(
    stub: Stub, server: asyncio.Server, text: str, writer: asyncio.StreamWriter
) -> bool:
    if text.startswith("stall"):
        await asyncio.sleep(60)
    if text.startswith("reset"):
        await writer.drain()
        await asyncio.sleep(0.05)
        _abort(writer)
        return True
    if text.startswith("half"):
        _piece(writer, b'data: {"id": "chatcmpl-x", "choices": [{"del')
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True
    if text.startswith("cut"):
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True
    if text.startswith("error"):
        _event(writer, {"error": {"message": "the stub is out of sorts"}})
        _event(writer, b"[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True
    if text.startswith("die"):
        stub.dead.set()
        server.close()
        _abort(writer)
        return True
    return stub.dead.is_set()


def _abort(writer: asyncio.StreamWriter) -> None:
    """Reset the connection instead of closing it."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _chunk(seen: Seen, text: str) -> dict[str, Any]:
    said = {"delta": {"content": text}} if "chat" in seen.path else {"text": text}
    return {"id": _id(seen), "choices": [{"index": 0, **said, "finish_reason": None}]}


def _last(seen: Seen) -> dict[str, Any]:
    return {
        "id": _id(seen),
        "choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": "length"}],
    }


def _usage(seen: Seen) -> dict[str, Any]:
    return {
        "id": _id(seen),
        "choices": [],
        "usage": {
            "prompt_tokens": 11,
            "completion_tokens": PIECES,
            "total_tokens": 11 + PIECES,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
        "metrics": {
            "speculative_decoding": {
                "per_step_accepted": ROUNDS,
                "per_step_drafted": [4] * len(ROUNDS),
                "acceptance_histogram": [1, 1, 1, 1, 0],
            }
        },
    }


def _id(seen: Seen) -> str:
    return f"{'chatcmpl' if 'chat' in seen.path else 'cmpl'}-{seen.request}"


def _tokenized(body: dict[str, Any]) -> dict[str, Any]:
    """Return one token per word; a chat begins with BOS, which is 1."""
    if "messages" not in body:
        return {"tokens": [len(word) + 10 for word in body["prompt"].split()]}
    words = [word for message in body["messages"] for word in message["content"].split()]
    tokens = [1, *(len(word) + 10 for word in words)]
    return {"tokens": tokens, "token_strs": ["<s>", *words]}


def _json(writer: asyncio.StreamWriter, value: Any, *, status: int = 200, more: str = "") -> bool:
    content = json.dumps(value).encode()
    writer.write(
        f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{more}"
        f"content-length: {len(content)}\r\n\r\n".encode()
        + content
    )
    return True


def _head(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )


def _event(writer: asyncio.StreamWriter, value: Any) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    _piece(writer, b"data: " + data + b"\n\n")


def _piece(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(content), content))
