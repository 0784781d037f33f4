"""The server under test: where it is, what it serves, what it says of itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import openai

from driftscope.errors import DriftscopeError, UsageError
from driftscope.workloads.wire import tls

API_KEY = "OPENAI_API_KEY"
NO_KEY = "none"
"""Servers without keys take any; the openai client wants one."""
LOOK_S = 15.0
"""Longest time for what is asked about the server itself."""
_BLOCKS = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_PAIR = re.compile(r'(\w+)="([^"]*)"')
_FAILURES = (openai.OpenAIError, OSError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a server; None: it does not say."""

    url: str
    """Without user and password."""
    model: str
    max_model_len: int | None = None
    """Longest prompt and answer together, tokens."""
    version: str | None = None
    kv_tokens: int | None = None
    """Tokens that its KV cache holds, those of the drafter included."""
    characters_per_token: float = 4.0
    """Of driftscope's filler text; 4, the rule of thumb for English, where it has no /tokenize."""

    def to_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)


def base_url(url: str) -> str:
    """The API's root, ending in /v1 where `url` names no path; raises UsageError."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url}: no server's URL; give one such as http://127.0.0.1:8000")
    path = parts.path.rstrip("/") or "/v1"
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def connect(url: str) -> openai.AsyncOpenAI:
    """A client of the server at `url`. It never retries: the replay does, and counts."""
    return openai.AsyncOpenAI(
        base_url=base_url(url),
        api_key=os.environ.get(API_KEY) or NO_KEY,
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(verify=tls()),
    )


async def look(client: openai.AsyncOpenAI, model: str | None) -> Facts:
    """What the server says of itself; raises DriftscopeError when it cannot be reached."""
    quick = client.with_options(timeout=LOOK_S)
    url = _public(str(client.base_url))
    try:
        served = [entry async for entry in quick.models.list()]
    except _FAILURES as error:
        raise DriftscopeError(
            f"{url}: no OpenAI-compatible server answers there ({error.__cause__ or error}); start "
            f"one, or set {API_KEY} if it wants a key"
        ) from error
    names = [entry.id for entry in served]
    if model is None and not names:
        raise UsageError(f"{url}: it names no model; give --model")
    chosen = model or names[0]
    entry = next((entry for entry in served if entry.id == chosen), None)
    length = getattr(entry, "max_model_len", None)
    version = await _json(quick, "version")
    kv_tokens = _kv_tokens(await _text(quick, "metrics"))
    return Facts(
        url=url,
        model=chosen,
        max_model_len=length if isinstance(length, int) else None,
        version=str(version["version"]) if "version" in version else None,
        kv_tokens=kv_tokens,
    )


def root(client: openai.AsyncOpenAI) -> str:
    """The server's own root, above its /v1."""
    return str(client.base_url).rstrip("/").removesuffix("/v1")


async def _json(client: openai.AsyncOpenAI, path: str) -> Mapping[str, Any]:
    try:
        value = await client.get(f"{root(client)}/{path}", cast_to=object)
    except _FAILURES:
        return {}
    return value if isinstance(value, dict) else {}


async def _text(client: openai.AsyncOpenAI, path: str) -> str:
    try:
        return str(await client.get(f"{root(client)}/{path}", cast_to=str))
    except _FAILURES:
        return ""


def _kv_tokens(metrics: str) -> int | None:
    """From vLLM's vllm:cache_config_info, one line per engine."""
    total = 0
    for line in _BLOCKS.findall(metrics):
        said = dict(_PAIR.findall(line))
        blocks, size = said.get("num_gpu_blocks", ""), said.get("block_size", "")
        if not blocks.isdigit() or not size.isdigit():
            return None
        total += int(blocks) * int(size)
    return total or None


def _public(url: str) -> str:
    parts = urlsplit(url)
    netloc = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, netloc, parts.path.rstrip("/"), "", ""))
