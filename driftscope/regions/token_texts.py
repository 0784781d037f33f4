"""Texts of single tokens, so that a place in a text can be traced back to its token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from driftscope.regions.markers import CLOSING, OPENED_BY

_SPACE = "\u2581"
"""SentencePiece's mark for a space before a piece, which decoding a single token drops."""


_MARKS = frozenset((*OPENED_BY, *CLOSING))


class TokenTexts:
    """Texts of a tokenizer's tokens; each id is decoded once."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer`: has `decode`, `convert_ids_to_tokens` and `all_special_ids`, as tokenizers
        of transformers and vLLM have, and may have `added_tokens_decoder`."""
        self._tokenizer = tokenizer
        self._special = frozenset(_special_ids(tokenizer))
        self._texts: dict[int, str] = {}

    def of(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token; bytes that are no whole character become U+FFFD."""
        known = self._texts
        try:
            return [known[each] for each in ids]
        except KeyError:
            for each in set(ids) - known.keys():
                known[each] = self._decoded(each)
            return [known[each] for each in ids]

    def is_special(self, token: int) -> bool:
        """Return whether the token is special, or a mark of `markers` that is one token."""
        return token in self._special

    def _decoded(self, token: int) -> str:
        text = str(self._tokenizer.decode([token], skip_special_tokens=False))
        piece = self._tokenizer.convert_ids_to_tokens([token])[0]
        if isinstance(piece, str) and piece.startswith(_SPACE) and not text.startswith(" "):
            return f" {text}"
        return text


def _special_ids(tokenizer: Any) -> Iterator[int]:
    yield from map(int, tokenizer.all_special_ids)
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    for token, each in added.items():
        if getattr(each, "special", False) or str(each) in _MARKS:
            yield int(token)
