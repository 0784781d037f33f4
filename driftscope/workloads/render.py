"""Prompts as token ids, by the server's own tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import openai

from driftscope.errors import DriftscopeError, UsageError
from driftscope.workloads.prompt import Prompt
from driftscope.workloads.server import Facts, root
from driftscope.workloads.transforms.roles import written

AT_ONCE = 8
BOS_TOKENS = frozenset(
    {"<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", "[BOS]", "<｜begin▁of▁sentence｜>"}
)
"""How the BOS of Llama 2 and Mistral, Llama 3 and 4, Gemma, LFM, GLM-like and DeepSeek models is
written. Qwen and gpt-oss templates have none."""


class Renderer:
    """Asks the server's /tokenize, which vLLM and SGLang have."""

    def __init__(self, client: openai.AsyncOpenAI, facts: Facts) -> None:
        self._client, self._facts = client, facts
        self._room = asyncio.Semaphore(AT_ONCE)

    async def tokens(self, prompt: Prompt) -> list[int] | None:
        """Token ids of a prompt that says how it is rendered; None: it has no BOS to leave out."""
        assert prompt.raw is not None
        chat, first = await self._templated(prompt)
        bos = chat[:1] if first in BOS_TOKENS else []
        if not bos and not prompt.raw.bos:
            return None
        if prompt.raw.template == "server":
            return chat if prompt.raw.bos else chat[1:]
        text = written(prompt.raw.template, prompt.messages)
        body = await self._ask({"prompt": text, "add_special_tokens": False})
        return [*(bos if prompt.raw.bos else []), *body["tokens"]]

    async def count(self, text: str) -> int:
        """Tokens of a text."""
        return len((await self._ask({"prompt": text, "add_special_tokens": False}))["tokens"])

    async def _templated(self, prompt: Prompt) -> tuple[list[int], str]:
        """The tokens by the model's chat template, and how the first is written."""
        body: dict[str, Any] = {
            "messages": list(prompt.messages),
            "add_generation_prompt": True,
            "return_token_strs": True,
        }
        if prompt.tools:
            body["tools"] = list(prompt.tools)
        found = await self._ask(body)
        return found["tokens"], (found.get("token_strs") or [""])[0]

    async def _ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        async with self._room:
            try:
                found: Any = await self._client.post(
                    f"{root(self._client)}/tokenize",
                    body={"model": self._facts.model, **body},
                    cast_to=object,
                )
            except openai.OpenAIError as error:
                raise _no_tokenizer(self._facts.url, str(error)) from error
        if not isinstance(found, dict) or not isinstance(found.get("tokens"), list):
            raise _no_tokenizer(self._facts.url, "no tokens in its answer")
        return found


async def rendered(renderer: Renderer, prompts: Sequence[Prompt]) -> dict[int, list[int] | None]:
    """Token ids by position in `prompts`, of those that say how they are rendered."""
    wanted = [number for number, prompt in enumerate(prompts) if prompt.raw is not None]
    if any(prompts[number].is_text for number in wanted):
        raise UsageError("a prompt of plain text has no chat template to leave out")
    found = await asyncio.gather(*(renderer.tokens(prompts[number]) for number in wanted))
    return dict(zip(wanted, found, strict=True))


def _no_tokenizer(url: str, why: str) -> DriftscopeError:
    return DriftscopeError(
        f"{url}: its /tokenize does not say how it renders a prompt ({why}); this suite needs it, "
        "as vLLM has it"
    )
