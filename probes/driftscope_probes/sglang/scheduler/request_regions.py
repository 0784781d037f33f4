"""Regions of the answers of finished requests, with the tokenizer of SGLang's scheduler.

Everything here runs on the writer's thread, once per finished request. Written against
sglang.srt.managers.schedule_batch, 0.5.23.
"""

from __future__ import annotations

from typing import Any

from driftscope.regions.answer_regions import CONSTRAINTS, AnswerRegions, answer_regions
from driftscope.regions.token_texts import TokenTexts


class RequestRegions:
    """Regions of the answers of one scheduler."""

    def __init__(self) -> None:
        self._tokenizer: Any = None
        self._texts: TokenTexts | None = None

    def of(self, tokens: Any, structured: str | None) -> AnswerRegions | None:
        """Return the regions of an answer given as RequestTokens; None if the scheduler has no
        tokenizer (`skip_tokenizer_init`)."""
        if tokens.tokenizer is None:
            return None
        if self._texts is None or self._tokenizer is not tokens.tokenizer:
            self._tokenizer, self._texts = tokens.tokenizer, TokenTexts(tokens.tokenizer)
        prompt, answer = tokens.prompt_token_ids, list(tokens.output_token_ids)
        constraint = CONSTRAINTS.get(structured or "")
        return answer_regions(self._texts, prompt, answer, constraint=constraint)
