"""Prompts as token ids from the server's own tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from driftscope.boundary.http_peer import Limits
from driftscope.errors import DriftscopeError, PeerError, UsageError
from driftscope.workloads.client.server import LOOK_S, Lookup
from driftscope.workloads.suites.prompts import Facts, Prompt
from driftscope.workloads.suites.transforms import written

AT_ONCE = 8
LIMITS = Limits(seconds=LOOK_S, octets=8 << 20)
"""Limits for the tokens of one prompt: more than a million tokens fit."""
MAX_TOKEN_ID = (1 << 31) - 1
BOS_TOKENS = frozenset(
    {"<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", "[BOS]", "<｜begin▁of▁sentence｜>"}
)
"""Spellings of the BOS token in Llama 2 and Mistral, Llama 3 and 4, Gemma, LFM, GLM-like and
DeepSeek models. Qwen and gpt-oss templates have none."""


class _Tokenized(BaseModel):
    tokens: list[Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]]
    token_strs: list[str] | None = None


class Renderer:
    """Uses the server's /tokenize endpoint, which vLLM and SGLang have."""

    def __init__(self, lookup: Lookup, facts: Facts) -> None:
        self._lookup, self._facts = lookup, facts
        self._room = asyncio.Semaphore(AT_ONCE)

    async def tokens(self, prompt: Prompt) -> list[int] | None:
        """Return the token ids of a prompt that specifies its rendering; None if the prompt asks to
        leave out a BOS that the template does not have."""
        assert prompt.raw is not None  # noqa: S101  the caller picks such prompts
        chat, first = await self._templated(prompt)
        bos = chat[:1] if first in BOS_TOKENS else []
        if not bos and not prompt.raw.bos:
            return None
        if prompt.raw.template == "server":
            return chat if prompt.raw.bos else chat[1:]
        text = written(prompt.raw.template, prompt.messages)
        body = await self._ask({"prompt": text, "add_special_tokens": False})
        return [*(bos if prompt.raw.bos else []), *body.tokens]

    async def count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len((await self._ask({"prompt": text, "add_special_tokens": False})).tokens)

    async def _templated(self, prompt: Prompt) -> tuple[list[int], str]:
        """Return the tokens from the model's chat template, and the spelling of the first one."""
        body: dict[str, Any] = {
            "messages": list(prompt.messages),
            "add_generation_prompt": True,
            "return_token_strs": True,
        }
        if prompt.tools:
            body["tools"] = list(prompt.tools)
        rendering = await self._ask(body)
        return rendering.tokens, (rendering.token_strs or [""])[0]

    async def _ask(self, body: Mapping[str, Any]) -> _Tokenized:
        async with self._room:
            try:
                return await self._lookup.value(
                    _Tokenized, "/tokenize", {"model": self._facts.model, **body}, LIMITS
                )
            except PeerError as error:
                raise _no_tokenizer(self._facts.url, error.why) from error


async def rendered(renderer: Renderer, prompts: Sequence[Prompt]) -> dict[int, list[int] | None]:
    """Return the token ids of the prompts that specify their rendering, by position in
    `prompts`."""
    wanted = [number for number, prompt in enumerate(prompts) if prompt.raw is not None]
    if any(prompts[number].is_text for number in wanted):
        raise UsageError("a prompt of plain text has no chat template to leave out")
    token_lists = await asyncio.gather(*(renderer.tokens(prompts[number]) for number in wanted))
    return dict(zip(wanted, token_lists, strict=True))


def _no_tokenizer(url: str, why: str) -> DriftscopeError:
    return DriftscopeError(
        f"{url}: its /tokenize does not return how a prompt is rendered ({why}); this suite needs "
        "an endpoint like vLLM's"
    )
