"""Tokens of an answer that a drafter cannot draft, counted by kind of text."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from driftscope.ablate.vocabulary_coverage import RegionTokens
from driftscope.inspect.reference.drafter import Drafter
from driftscope.inspect.trial.passages import Passage
from driftscope.regions import AnswerRegions, TokenTexts, answer_regions
from driftscope.vocabulary import Region


class DraftVocabulary:
    """The tokens that a drafter can draft, beside the tokenizer of its target."""

    def __init__(self, drafter: Drafter, tokenizer: Any) -> None:
        """`tokenizer`: as `TokenTexts` needs it."""
        self._texts = TokenTexts(tokenizer)
        self._known: NDArray[np.int64] | None = None
        """Ids of the target's vocabulary; None for the whole vocabulary."""
        if size := drafter.config.draft_vocab_size:
            own = torch.arange(size, device=drafter.d2t.device)
            self._known = drafter.target_ids(own).cpu().numpy()

    def count(self, passage: Passage) -> RegionTokens:
        """Return the tokens of the answer and those that are lacking, by region."""
        ids: list[int] = passage.ids.tolist()
        prompt, answer = ids[: passage.prompt_tokens], ids[passage.prompt_tokens :]
        regions = _by_token(answer_regions(self._texts, prompt, answer), len(answer))
        absent = np.zeros(len(answer), bool)
        if self._known is not None:
            absent = ~np.isin(answer, self._known)
        return {
            Region.ALL[code]: (int((regions == code).sum()), int(absent[regions == code].sum()))
            for code in np.unique(regions).tolist()
        }


def _by_token(regions: AnswerRegions, tokens: int) -> NDArray[np.int64]:
    """Return the code of each token's region, [tokens]. An answer without text is all template."""
    if not regions.starts:
        return np.full(tokens, Region.ALL.index(Region.TEMPLATE))
    at = np.searchsorted(regions.starts, np.arange(tokens), side="right") - 1
    codes: NDArray[np.int64] = np.array(regions.codes, np.int64)[at.clip(0)]
    return codes
