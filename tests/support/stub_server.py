"""An OpenAI-compatible server on a real socket, whose behaviour each prompt selects.

The beginning of a request's text selects it: "stall", "reset", "refuse 429", "refuse 500 twice",
"refuse 400", "half", "cut", "error", "silent", "babble", "lingers", "die"; anything else is
answered.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

PIECES = 8
ROUNDS = [2, 0, 1, 3]
"""Accepted tokens per round, of 4 drafted, that every answer reports."""
USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": PIECES,
    "total_tokens": 11 + PIECES,
    "prompt_tokens_details": {"cached_tokens": 3},
}
SPECULATION = {
    "per_step_accepted": ROUNDS,
    "per_step_drafted": [4] * len(ROUNDS),
    "acceptance_histogram": [1, 1, 1, 1, 0],
}


@dataclass
class Seen:
    """One request as the server received it."""

    request: str
    label: str
    path: str
    body: dict[str, Any]
    headers: dict[str, str]

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
    over: threading.Event = field(default_factory=threading.Event)
    piece_s: float = 0.0
    last_s: float = 0.0
    """Time between the last event and the end of the body, in seconds."""
    port: int = 0
    """Port; 0 for any free one."""
    metrics: str = ""
    """Text of its metrics; empty: it has none."""
    launched: dict[str, Any] | None = None
    """What it tells at SGLang's /server_info; None: nothing."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Server(ThreadingHTTPServer):
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, *_: Any) -> None:
        """Ignore clients that gave up."""


@contextlib.contextmanager
def stub_server(**options: Any) -> Iterator[Stub]:
    stub = Stub(**options)
    handler = type("Handler", (_Handler,), {"stub": stub})
    with _Server(("127.0.0.1", stub.port), handler) as server:
        stub.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        try:
            yield stub
        finally:
            stub.over.set()
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    stub: Stub

    def setup(self) -> None:
        super().setup()
        self.stub.connections += 1

    def log_message(self, *_: Any) -> None:
        """Do nothing."""

    def do_POST(self) -> None:
        stub, path = self.stub, urlsplit(self.path).path
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if path == "/v1/models":
            model = {"id": "stub", "object": "model", "max_model_len": 4096}
            self._json({"object": "list", "data": [model]})
        elif path == "/metrics" and stub.metrics:
            self._whole(stub.metrics.encode())
        elif path == "/server_info" and stub.launched is not None:
            self._json(stub.launched)
        elif path == "/health":
            self._json({})
        elif path == "/tokenize":
            self._json(_tokenized(json.loads(content)))
        elif stub.dead.is_set():
            self._abort()
        elif path in ("/v1/chat/completions", "/v1/completions"):
            headers = {name.lower(): value for name, value in self.headers.items()}
            request, label = (headers.get(f"x-{n}", "") for n in ("request-id", "driftscope-label"))
            seen = Seen(request, label, path, json.loads(content), headers)
            with stub.lock:
                stub.seen.append(seen)
                stub.tries[seen.text] += 1
                stub.running += 1
                stub.most = max(stub.most, stub.running)
            try:
                self._answer(seen)
            finally:
                with stub.lock:
                    stub.running -= 1
        else:
            self._json({"error": "no such thing"}, status=404)

    def do_GET(self) -> None:
        self.do_POST()

    def _answer(self, seen: Seen) -> None:
        text, stub = seen.text, self.stub
        if text.startswith("refuse"):
            _, status, *rest = text.split()
            if "twice" not in rest or stub.tries[text] <= 2:
                error = {"error": {"message": f"stub refuses with {status}", "code": int(status)}}
                return self._json(error, status=int(status))
        if text.startswith("unreached"):
            return self._abort()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if text.startswith("babble"):
            return self._end(b"data: <html>\n\n")
        if text.startswith("silent"):
            stub.over.wait(60)
        chat = "chat" in seen.path
        id_ = f"{'chatcmpl' if chat else 'cmpl'}-{seen.request}"
        for number in range(PIECES):
            if number == PIECES // 2 and self._mishap(text):
                self.close_connection = True
                return None
            if number:
                time.sleep(stub.piece_s)
            said = {"delta": {"content": f"{number} "}} if chat else {"text": f"{number} "}
            self._event(id=id_, choices=[{"index": 0, **said, "finish_reason": None}])
        if not text.startswith("endless"):
            last = {"index": 0, "delta": {}, "text": "", "finish_reason": "length"}
            self._event(id=id_, choices=[last])
            metrics = {"speculative_decoding": SPECULATION}
            self._event(id=id_, choices=[], usage=USAGE, metrics=metrics)
        self._piece(b"data: [DONE]\n\n")
        if text.startswith("lingers"):
            stub.over.wait(60)
        time.sleep(stub.last_s)
        return self._end()

    def _mishap(self, text: str) -> bool:
        """Return whether the answer ends here."""
        name, stub = text.partition(" ")[0], self.stub
        if name == "stall":
            stub.over.wait(60)
        elif name == "reset":
            time.sleep(0.05)
            self._abort()
        elif name == "half":
            self._end(b'data: {"id": "chatcmpl-x", "choices": [{"del')
        elif name == "cut":
            self._end()
        elif name == "error":
            self._event(error={"message": "the stub is out of sorts"})
            self._end(b"data: [DONE]\n\n")
        elif name == "die":
            stub.dead.set()
            self.server.shutdown()
            self.server.server_close()
            self._abort()
        return name in ("reset", "half", "cut", "error") or stub.dead.is_set()

    def _abort(self) -> None:
        """Reset the connection instead of closing it."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def _json(self, value: Any, *, status: int = 200) -> None:
        self._whole(json.dumps(value).encode(), status)

    def _whole(self, content: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status != 200:
            self.send_header("Retry-After", "0.05")
        self.end_headers()
        self.wfile.write(content)

    def _event(self, **value: Any) -> None:
        self._piece(b"data: " + json.dumps(value).encode() + b"\n\n")

    def _piece(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))

    def _end(self, content: bytes = b"") -> None:
        """Send a last piece, if any, and the end of the body."""
        if content:
            self._piece(content)
        self._piece(b"")


def _tokenized(body: dict[str, Any]) -> dict[str, Any]:
    """Return one token per word; a chat begins with BOS, which is 1."""
    if "messages" not in body:
        return {"tokens": [len(word) + 10 for word in body["prompt"].split()]}
    words = [word for message in body["messages"] for word in message["content"].split()]
    tokens = [1, *(len(word) + 10 for word in words)]
    return {"tokens": tokens, "token_strs": ["<s>", *words]}
