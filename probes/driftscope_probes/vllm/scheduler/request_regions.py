"""Regions of the answers of finished requests.

Everything here runs on the writer's thread, once per finished request. Written against
vllm.v1.structured_output and vllm.v1.request, 0.27 to 0.32.
"""

from __future__ import annotations

from typing import Any

from driftscope.regions.answer_regions import AnswerRegions, answer_regions
from driftscope.regions.token_texts import TokenTexts

JSON = ("json", "json_object")
"""Constraints of `RequestRow.structured` under which an answer is JSON."""


class RequestRegions:
    """Regions of the answers of one engine core, with the tokenizer that vLLM loaded for it."""

    def __init__(self, scheduler: Any) -> None:
        self._manager = getattr(scheduler, "structured_output_manager", None)
        self._texts: TokenTexts | None = None

    def of(self, request: Any, structured: str | None) -> AnswerRegions | None:
        """Return the regions of a finished request's answer; None if the engine core has no
        tokenizer (`skip_tokenizer_init`)."""
        texts = self._token_texts()
        if texts is None:
            return None
        prompt = request.prompt_token_ids or ()
        answer = list(request.output_token_ids)
        return answer_regions(texts, prompt, answer, is_json=structured in JSON)

    def _token_texts(self) -> TokenTexts | None:
        if self._texts is None:
            tokenizer = getattr(self._manager, "tokenizer", None)
            self._texts = None if tokenizer is None else TokenTexts(tokenizer)
        return self._texts
