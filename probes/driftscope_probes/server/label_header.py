"""Workload label, session and question as HTTP headers, for clients that cannot change a body.

Use `vllm serve ... --middleware driftscope_probes.server.label_header.LabelHeader`; `driftscope
serve` adds this option itself.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from driftscope_probes.engine import LABEL, PAIR, SESSION

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Message, Receive, Any], Awaitable[None]]

HEADERS = {
    b"x-driftscope-label": LABEL,
    b"x-session-id": SESSION,
    b"x-driftscope-pair": PAIR,
}
"""Header and the name of the argument that it becomes."""
PATHS = ("/v1/completions", "/v1/chat/completions")
"""Endpoints whose requests have `vllm_xargs` in every supported version of vLLM."""


class LabelHeader:
    """ASGI middleware that copies X-Driftscope-Label to vllm_xargs["driftscope_label"] of the body,
    X-Session-Id to "driftscope_session" and X-Driftscope-Pair to "driftscope_pair".

    An argument in the body takes precedence. A request without these headers, or whose body is not
    a JSON object, passes unchanged.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Any) -> None:
        """Handle one request."""
        names = _names(scope)
        if not names:
            await self._app(scope, receive, send)
            return
        messages = [await receive()]
        while messages[-1]["type"] == "http.request" and messages[-1].get("more_body", False):
            messages.append(await receive())
        if messages[-1]["type"] == "http.request":  # otherwise the client has disconnected
            body = b"".join(message.get("body", b"") for message in messages)
            body = _with_labels(body, names)
            scope = {**scope, "headers": _sized(scope["headers"], len(body))}
            messages = [{"type": "http.request", "body": body, "more_body": False}]
        waiting = iter(messages)

        async def replay() -> Message:
            message = next(waiting, None)
            return await receive() if message is None else message

        await self._app(scope, replay, send)


def _names(scope: Message) -> dict[str, str]:
    """Return the arguments that the headers of a request become; {} for other requests."""
    if scope["type"] != "http" or scope.get("method") != "POST":
        return {}
    headers = {name.lower(): value for name, value in scope.get("headers", ())}
    path = str(scope.get("path", "")).removeprefix(str(scope.get("root_path", "")))
    if path not in PATHS or b"content-encoding" in headers:
        return {}
    given = {
        name: bytes(headers.get(header, b"")).decode("utf-8", "replace").strip()
        for header, name in HEADERS.items()
    }
    return {name: value for name, value in given.items() if value}


def _with_labels(body: bytes, names: dict[str, str]) -> bytes:
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return body  # vLLM reports what is wrong with it
    if not isinstance(request, dict):
        return body
    arguments = request.get("vllm_xargs") or {}
    if not isinstance(arguments, dict):
        return body
    request["vllm_xargs"] = {**names, **arguments}
    return json.dumps(request).encode()


def _sized(headers: Any, length: int) -> list[tuple[bytes, bytes]]:
    """Return the headers for a body of `length` bytes that is sent in one piece."""
    framing = (b"content-length", b"transfer-encoding")
    kept = [(name, value) for name, value in headers if name.lower() not in framing]
    return [*kept, (b"content-length", str(length).encode())]
