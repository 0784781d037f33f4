"""Regions of the answers of requests that ended.

They are found on the writer's thread, once per request. Written against
vllm.v1.structured_output and vllm.v1.request, 0.27 to 0.32.
"""

from __future__ import annotations

import math
import time
from typing import Any

from driftscope.regions.answer_regions import CONSTRAINTS, AnswerRegions, answer_regions
from driftscope.regions.token_texts import TokenTexts

AT_END_S = 2.0
"""Longest time for regions once the engine stops, in seconds. vLLM kills an engine core 5 s after
it asked it to end, and a thousand tokens take about 1 ms."""


class RequestRegions:
    """Regions of the answers of one engine core, with the tokenizer that vLLM loaded for it."""

    def __init__(self, scheduler: Any) -> None:
        self._manager = getattr(scheduler, "structured_output_manager", None)
        self._texts: TokenTexts | None = None
        self._until = math.inf

    def hurry(self) -> None:
        """Return None for answers from AT_END_S on, because the engine stops."""
        self._until = time.monotonic() + AT_END_S

    def of(self, request: Any, structured: str | None) -> AnswerRegions | None:
        """Return the regions of the answer of a request that ended, whole or not; None if the
        engine core has no tokenizer (`skip_tokenizer_init`), or no time left."""
        texts = self._token_texts()
        if texts is None or time.monotonic() > self._until:
            return None
        prompt = request.prompt_token_ids or ()
        answer = list(request.output_token_ids)
        return answer_regions(
            texts,
            prompt,
            answer,
            constraint=CONSTRAINTS.get(structured or ""),
            from_start=self._constrains_thinking(),
        )

    def _constrains_thinking(self) -> bool:
        """Return whether vLLM constrains an answer from its first token on: without a reasoning
        parser it does not know what thinking is."""
        return getattr(self._manager, "reasoner_cls", "unknown") is None

    def _token_texts(self) -> TokenTexts | None:
        if self._texts is None:
            tokenizer = getattr(self._manager, "tokenizer", None)
            self._texts = None if tokenizer is None else TokenTexts(tokenizer)
        return self._texts
