"""Hostile servers on real sockets: the behaviours of METRICS and OPENAI by name.

    with hostile_server() as server:
        watch(server.url("endless"))             # METRICS: GET /endless/metrics
        replay(server.url("endless-answer"))     # OPENAI: GET and POST /endless-answer/v1/...

The first part of a path names the behaviour. Names are unique over both tables.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import socket
import socketserver
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

DRIP_S = 0.05
"""Time between two bytes of a deliberately slow server, in seconds."""
FLOOD_S = 0.002
"""Time between two pieces of a flood, in seconds."""
MOST_S = 120.0
"""Time after which every behaviour ends, even if the client never hangs up, in seconds."""


@dataclass
class Asked:
    """One request as a behaviour receives it."""

    behaviour: str
    method: str
    path: str
    """Path without the behaviour's name."""
    headers: dict[str, str]
    body: bytes


@dataclass
class Peer:
    """The connection on which a behaviour answers."""

    sock: socket.socket
    stopped: threading.Event
    elsewhere: str
    """URL of a second server, to which no client may be redirected."""
    until: float = field(default_factory=lambda: time.monotonic() + MOST_S)

    def send(self, content: bytes) -> None:
        self.sock.sendall(content)

    def answer(
        self, body: bytes | str, *, status: str = "200 OK", headers: Mapping[str, str] | None = None
    ) -> None:
        content = body.encode() if isinstance(body, str) else body
        given = {"Content-Type": "text/plain", "Content-Length": str(len(content))} | dict(
            headers or {}
        )
        self.head(status, given)
        self.send(content)

    def head(self, status: str, headers: Mapping[str, str]) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.send(f"HTTP/1.1 {status}\r\nConnection: close\r\n{lines}\r\n".encode("latin-1"))

    def forever(self, piece: bytes, *, every_s: float = 0.0) -> None:
        while not self.stopped.is_set() and time.monotonic() < self.until:
            self.send(piece)
            if every_s:
                self.stopped.wait(every_s)

    def silence(self) -> None:
        self.stopped.wait(MOST_S)


Behaviour = Callable[[Peer, Asked], None]


@dataclass
class Server:
    """A running server; `asked` lists every request in order."""

    port: int
    asked: list[Asked] = field(default_factory=list)
    elsewhere: Server | None = None

    def url(self, behaviour: str, *, user: str = "") -> str:
        at = f"{user}@" if user else ""
        return f"http://{at}127.0.0.1:{self.port}/{behaviour}"


@contextlib.contextmanager
def hostile_server(**more: Behaviour) -> Iterator[Server]:
    """Serve all behaviours, and `more`, until the end of the block."""
    with _listening(more, "") as other, _listening(more, other.url("elsewhere")) as server:
        server.elsewhere = other
        yield server


@contextlib.contextmanager
def _listening(more: Mapping[str, Behaviour], elsewhere: str) -> Iterator[Server]:
    behaviours, stopped = {**METRICS, **OPENAI, **more}, threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError, ValueError):
                asked = _read(self.rfile)
                server.asked.append(asked)
                peer = Peer(self.request, stopped, elsewhere)
                behaviours.get(asked.behaviour, _not_there)(peer, asked)

        def finish(self) -> None:
            with contextlib.suppress(OSError):
                super().finish()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads, listener.block_on_close = True, False
        server = Server(port=listener.server_address[1])
        thread = threading.Thread(target=listener.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            stopped.set()
            listener.shutdown()
            thread.join()


def _read(stream: Any) -> Asked:
    method, target, _ = stream.readline().decode("latin-1").split(" ", 2)
    headers = {}
    while (line := stream.readline().decode("latin-1").strip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = stream.read(int(headers.get("content-length", 0)))
    _, behaviour, *rest = target.split("/")
    return Asked(behaviour, method, "/" + "/".join(rest), headers, body)


def _not_there(peer: Peer, asked: Asked) -> None:
    peer.answer("not found", status="404 Not Found")


@functools.cache
def bomb() -> bytes:
    """Return 4 GiB of spaces as 4 MiB of gzip, without its end."""
    packer, block = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS), b" " * (1 << 20)
    first, second = (packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + second * 4095


# Metrics


ROUNDS = "driftscope_rounds_completed_total 10.0\n"


def page_of(text: str) -> Behaviour:
    """Return a behaviour that answers with a text."""
    return lambda peer, _: peer.answer(text)


def _sent(
    first: bytes = b"", forever: bytes = b"", every_s: float = 0.0, **headers: str
) -> Behaviour:
    """Return a behaviour that sends a head (unless `first` is one), `first` and, for ever, a
    piece."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    def answer(peer: Peer, asked: Asked) -> None:
        if not first.startswith(b"HTTP/") and not forever.startswith(b"HTTP/"):
            peer.head("200 OK", named)
        peer.send(first)
        if forever:
            peer.forever(forever, every_s=every_s)

    return answer


def _histogram(*buckets: str) -> Behaviour:
    name = "driftscope_acceptance_length"
    lines = "".join(f"{name}_bucket{bucket}\n" for bucket in buckets)
    return page_of(f"{ROUNDS}# TYPE {name} histogram\n{lines}{name}_sum 20.0\n{name}_count 10.0\n")


def _gzip_bomb(peer: Peer, asked: Asked) -> None:
    peer.answer(bomb(), headers={"Content-Encoding": "gzip"})


def _short_gzip(peer: Peer, asked: Asked) -> None:
    peer.answer(gzip.compress(ROUNDS.encode() * 50)[:-12], headers={"Content-Encoding": "gzip"})


def _redirect(peer: Peer, asked: Asked) -> None:
    to = f"{peer.elsewhere}{asked.path}"
    peer.answer("", status="307 Temporary Redirect", headers={"Location": to})


def _redirect_loop(peer: Peer, asked: Asked) -> None:
    to = f"/{asked.behaviour}{asked.path}"
    peer.answer("", status="302 Found", headers={"Location": to})


_ENDLESS = _sent(forever=b"# a comment without an end, again and again\n" * 1000)
_SLOW_HEAD = _sent(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a", DRIP_S)

METRICS: dict[str, Behaviour] = {
    "elsewhere": lambda peer, _: peer.answer(ROUNDS),
    "more-accepted": page_of(
        ROUNDS + "driftscope_tokens_accepted_total 9\ndriftscope_tokens_verified_total 3\n"
    ),
    "k-nan": page_of(f"{ROUNDS}driftscope_draft_tokens_configured NaN\n"),
    "bucket-without-le": _histogram('{a="b"} 10.0'),
    "bucket-le-word": _histogram('{le="many"} 10.0', '{le="+Inf"} 10.0'),
    "bucket-le-nan": _histogram('{le="NaN"} 10.0'),
    "bucket-nan": _histogram('{le="1.0"} NaN', '{le="+Inf"} NaN'),
    "bucket-inf": _histogram('{le="1.0"} 3.0', '{le="+Inf"} +Inf'),
    "bucket-falling": _histogram('{le="1.0"} 10.0', '{le="+Inf"} -3.0'),
    "no-labels": page_of(
        ROUNDS + "driftscope_steps_undrafted_total 4.0\ndriftscope_probe_sampling_rate_ratio 1\n"
    ),
    "long-line": page_of(
        ROUNDS + "driftscope_rounds_reached_total{" + 'a="b",' * 100_000 + "} 1\n"
    ),
    "long-label": page_of(
        ROUNDS + 'driftscope_steps_undrafted_total{driftscope_reason="' + "a" * 6000 + '"} 1\n'
    ),
    "odd-lines": page_of(ROUNDS + "driftscope_rounds_reached_total{\n}{}{}\n\x00\n"),
    "many-samples": page_of(
        "".join(
            f'driftscope_rounds_reached_total{{driftscope_depth="{n}"}} 1\n' for n in range(200_000)
        )
    ),
    "not-text": lambda peer, _: peer.answer(bytes(range(256)) * 10),
    "gzip-bomb": _gzip_bomb,
    "endless": _ENDLESS,
    "byte-by-byte": _sent(forever=b"#", every_s=DRIP_S, Content_Length="100000"),
    "slow-head": _SLOW_HEAD,
    "continues": _sent(forever=b"HTTP/1.1 100 Continue\r\n\r\n", every_s=DRIP_S),
    "many-headers": _sent(b"HTTP/1.1 200 OK\r\n", b"X-More: " + b"a" * 1000 + b"\r\n"),
    "broken-chunks": _sent(b"zz\r\nno length\r\n", Transfer_Encoding="chunked"),
    "short-body": _sent(ROUNDS.encode(), Content_Length="100000"),
    "short-gzip": _short_gzip,
    "silent": lambda peer, _: peer.silence(),
    "hangs-up": lambda *_: None,
    "no-http": lambda peer, _: peer.send(b"220 smtp \x1b[2J\x07 ready\r\n"),
    "raw-reason": lambda peer, _: peer.answer("", status="500 \x1b[31mF\x9b2J"),
    "redirect": _redirect,
    "redirect-loop": _redirect_loop,
    "odd-coding": lambda peer, _: peer.answer("x", headers={"Content-Encoding": "br\x1b[2J"}),
}
"""Behaviours that `watch URL` and other readers of one page meet."""


# An OpenAI-compatible server that misbehaves in one way.


MODELS = {"object": "list", "data": [{"id": "hostile", "object": "model", "max_model_len": 4096}]}


def _event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def _said(text: str) -> dict[str, Any]:
    delta = {"delta": {"content": text}, "text": text}
    return {"id": "chatcmpl-1", "choices": [{"index": 0, **delta, "finish_reason": None}]}


def _ending(**last: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    choices = [{"index": 0, "delta": {}, "text": "", "finish_reason": "stop"}]
    return {"id": "chatcmpl-1", "choices": choices, "usage": usage, **last}


def _stream(*events: Any) -> Behaviour:
    """Return a behaviour that sends the events and a proper end."""
    return _sent(b"".join(map(_event, (*events, b"[DONE]"))), Content_Type="text/event-stream")


def _flood(piece: bytes, every_s: float = FLOOD_S) -> Behaviour:
    """Return a behaviour that streams endlessly, with pauses in which a client in the same process
    can read."""
    return _but(CHAT_AT, _sent(forever=piece, every_s=every_s, Content_Type="text/event-stream"))


def _json(value: Any, *, status: str = "200 OK") -> Behaviour:
    text = value if isinstance(value, str) else json.dumps(value)
    return lambda peer, _: peer.answer(text, status=status)


WELL = {
    "/v1/models": _json(MODELS),
    "/version": _json({"version": "0.0"}),
    "/metrics": _json('vllm:cache_config_info{num_gpu_blocks="10",block_size="16"} 1.0\n'),
    "/tokenize": _json({"tokens": [1, 2, 3], "token_strs": ["<s>", "a", "b"]}),
    "/v1/chat/completions": _stream(_said("a"), _said("b"), _ending()),
    "/v1/completions": _stream(_said("a"), _said("b"), _ending()),
}
"""Behaviour of a server without a fault, by path."""
MODELS_AT, CHAT_AT = "/v1/models", "/v1/chat/completions"


def _but(path: str, behaviour: Behaviour) -> Behaviour:
    """Return a behaviour whose only fault is at `path`."""
    faulty = {**WELL, path: behaviour}
    return lambda peer, asked: faulty.get(asked.path, _not_there)(peer, asked)


def _models(value: Any) -> Behaviour:
    return _but(MODELS_AT, _json(value))


def _answers(*events: Any) -> Behaviour:
    return _but(CHAT_AT, _stream(*events))


def _echo(peer: Peer, asked: Asked) -> None:
    """Refuse the request, and repeat the key."""
    words = f"invalid key: {asked.headers.get('authorization', '')}"
    peer.answer(json.dumps({"error": {"message": words}}), status="401 Unauthorized")


def _echo_in_part(peer: Peer, asked: Asked) -> None:
    """Answer with a piece of the key wherever a text is recorded."""
    part = asked.headers.get("authorization", "").partition(" ")[2][2:-2]
    events = (_said("a") | {"id": f"cmpl-{part}"}, _ending(), {"error": {"message": part}})
    _sent(b"".join(map(_event, events)))(peer, asked)


def _deep(depth: int) -> str:
    return "[" * depth + "]" * depth


_CALL = {"index": 0, "function": {"arguments": "a"}}

OPENAI: dict[str, Behaviour] = {
    "well": _but("", _not_there),
    "endless-answer": _flood(_event(_said("abc ")) * 500),
    "endless-text": _flood(_event(_said("abc " * 4000))),
    "endless-calls": _flood(_event({"choices": [{"delta": {"tool_calls": [_CALL]}}]}) * 500),
    "endless-comments": _flood(b": still here\n\n", DRIP_S),
    "comment-flood": _flood(b":\n" * 32_000),
    "small-lines": _flood(b"data: {}\n" * 7000),
    "loris-answer": _flood(b"d", DRIP_S),
    "loris-head": _but(CHAT_AT, _SLOW_HEAD),
    "hanging-answer": _but(CHAT_AT, lambda peer, _: peer.silence()),
    "answer-bomb": _but(CHAT_AT, _gzip_bomb),
    "metrics-endless": _but("/metrics", _ENDLESS),
    "metrics-digits": _but(
        "/metrics",
        _json('vllm:cache_config_info{num_gpu_blocks="²",block_size="' + "9" * 5000 + '"} 1.0\n'),
    ),
    "version-deep": _but("/version", _json(_deep(100_000))),
    "version-long": _but("/version", _json({"version": "v" * 1_000_000})),
    "models-deep": _but(MODELS_AT, _json(_deep(100_000))),
    "models-bad": _models({"data": [{"id": 7}, "x", None]}),
    "models-length": _models({"data": [{"id": "hostile", "max_model_len": 1 << 70}]}),
    "models-control": _models({"data": [{"id": "\x1b[2J\u202e\ud800"}]}),
    "tokenize-odd": _but("/tokenize", _json({"tokens": ["a", None, {}], "token_strs": 3})),
    "histogram-huge": _answers(
        _said("a"),
        _ending(metrics={"speculative_decoding": {"acceptance_histogram": [3_000_000_000, 1]}}),
    ),
    "usage-types": _answers(_said("a"), _ending(usage={"prompt_tokens": "3"})),
    "answer-deep": _answers(_deep(100_000).encode()),
    "error-deep": _answers(b'{"error": {"message": ' + _deep(900).encode() + b"}}"),
    "refusal-deep": _but(CHAT_AT, _json('{"error": ' + _deep(900) + "}", status="400 Bad Request")),
    "retry-nan": _but(
        CHAT_AT,
        lambda peer, _: peer.answer("{}", status="503 Busy", headers={"Retry-After": "nan"}),
    ),
    "redirect-prompt": _but(CHAT_AT, _redirect),
    "redirect-models": _but(MODELS_AT, _redirect),
    "key-echo": _but(CHAT_AT, _echo),
    "key-echo-part": _but(CHAT_AT, _echo_in_part),
    "key-echo-models": _but(MODELS_AT, _echo),
}
"""Behaviours that `replay URL` meets; each answers everything but one thing correctly."""
