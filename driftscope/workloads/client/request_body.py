"""The JSON body of a planned request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from driftscope.workloads.suites.prompt import Prompt

STREAM = {"stream": True, "stream_options": {"include_usage": True}}
CHAT, TEXT = "/chat/completions", "/completions"


def body_of(
    prompt: Prompt, model: str, settings: Mapping[str, Any], tokens: list[int] | None = None
) -> dict[str, Any]:
    """Return the JSON body of a request.

    `tokens`: token ids of a prompt that is sent as rendered, see
    `driftscope.workloads.client.prompt_tokens`.
    """
    body: dict[str, Any] = {"model": model, **STREAM, **settings, **prompt.options}
    if tokens is not None:
        return {**body, "prompt": tokens}
    if prompt.text is not None:
        return {**body, "prompt": prompt.text}
    body["messages"] = list(prompt.messages)
    if prompt.tools:
        body["tools"] = list(prompt.tools)
    return body


def path_of(body: Mapping[str, Any]) -> str:
    """Return the endpoint that accepts `body`, below the server's /v1."""
    return CHAT if "messages" in body else TEXT
