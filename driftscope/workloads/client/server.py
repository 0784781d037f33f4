"""Facts that the server under test reports about itself."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, Field

from driftscope.boundary.bounds import MAX_LABEL_CHARS, MAX_TOKENS
from driftscope.errors import DriftscopeError, PeerError, UsageError
from driftscope.workloads.client.server_access import API_KEY, Access
from driftscope.workloads.client.server_lookup import Lookup
from driftscope.workloads.suites.server_facts import Facts

MAX_MODELS = 4096
MAX_NAME_CHARS = 4096
"""Longest model name, in characters: some models are served under their path."""
_MOST_DIGITS = 12
_BLOCKS = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_PAIR = re.compile(r'(\w+)="([^"]*)"')


class _Model(BaseModel):
    id: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    max_model_len: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None


class _Models(BaseModel):
    data: Annotated[list[_Model], Field(max_length=MAX_MODELS)]


class _Version(BaseModel):
    version: Annotated[str, Field(max_length=MAX_LABEL_CHARS)]


async def look(lookup: Lookup, access: Access, model: str | None) -> Facts:
    """Return the facts that the server reports; raises DriftscopeError when it cannot be
    reached."""
    try:
        served = (
            await lookup.value(_Models, access.base.removeprefix(access.root) + "/models")
        ).data
    except PeerError as error:
        raise DriftscopeError(
            f"{access.base}: no OpenAI-compatible server answers there ({error.why}); start one, "
            f"or set {API_KEY} or --api-key-env if it wants a key"
        ) from error
    if model is None and not served:
        raise UsageError(f"{access.base}: the server names no model; give --model")
    chosen = model or served[0].id
    entry = next((entry for entry in served if entry.id == chosen), None)
    return Facts(
        url=access.base,
        model=chosen,
        max_model_len=None if entry is None else entry.max_model_len,
        version=await _version(lookup),
        kv_tokens=_kv_tokens(await _metrics(lookup)),
    )


async def _version(lookup: Lookup) -> str | None:
    try:
        return (await lookup.value(_Version, "/version")).version
    except PeerError:
        return None


async def _metrics(lookup: Lookup) -> str:
    try:
        return await lookup.text("/metrics")
    except PeerError:
        return ""


def _kv_tokens(metrics: str) -> int | None:
    """Return the KV cache size in tokens from vLLM's vllm:cache_config_info, one line per engine;
    None if it is missing or malformed."""
    total = 0
    for line in _BLOCKS.findall(metrics):
        labels = dict(_PAIR.findall(line))
        numbers = [labels.get("num_gpu_blocks", ""), labels.get("block_size", "")]
        if not all(n.isascii() and n.isdecimal() and len(n) <= _MOST_DIGITS for n in numbers):
            return None
        total += int(numbers[0]) * int(numbers[1])
    return total or None
