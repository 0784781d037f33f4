"""Training rows: line-aligned pieces of the corpus, each in the chat template."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from driftscope_lab.training.corpus import SourceFile
from driftscope_lab.training.tokenizer import newline_ids
from driftscope_lab.trio import template

Ids = npt.NDArray[np.int64]

TEMPLATE_TOKENS = 40
"""Approximate number of tokens that the template takes in a row."""
HEAD_SHARE = (0.1, 0.6)
"""Range of the share of a piece given to the model as the user's code; the rest is the answer."""
FIRST_LINES = 20
"""Number of first lines at one of which a file's pieces start, so that epochs cut differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedFile:
    """A file's token ids, and the positions of tokens that start a line."""

    path: str
    held_out: bool
    ids: Ids
    line_starts: Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One piece of a file: `head` is the user's code, `body` its continuation.

    `last`: whether the file ends with the body.
    """

    path: str
    head: Ids
    body: Ids
    last: bool


class RowMaker:
    """Cuts the encoded corpus into rows of equal length."""

    def __init__(self, tokenizer: Tokenizer, files: Sequence[SourceFile]) -> None:
        self._tokenizer = tokenizer
        self._special = {token: index for index, token in enumerate(template.SPECIAL_TOKENS)}
        newlines = np.array(newline_ids(tokenizer))
        self._files = [self._encoded(file, newlines) for file in files]

    def tokens(self, held_out: bool) -> int:
        """Return the number of corpus tokens on one side of the split."""
        return sum(len(file.ids) for file in self._files if file.held_out is held_out)

    def pieces(self, length: int, held_out: bool, rng: random.Random) -> Iterator[Piece]:
        """Yield pieces of about `length` tokens including their template, files in random order."""
        files = [file for file in self._files if file.held_out is held_out]
        rng.shuffle(files)
        for file in files:
            yield from _cut(file, length - TEMPLATE_TOKENS, rng)

    def prompt(self, path: str, head: Ids) -> list[int]:
        """Return the chat template up to the assistant's turn, as token ids."""
        bos, system, user, assistant, end = (self._special[t] for t in template.SPECIAL_TOKENS[:5])
        instruction = self._encode(f"\n{template.SYSTEM_TEXT}")
        request = self._encode(f"\n{template.request(path)}")
        return [bos, system, *instruction, end, user, *request, *head.tolist(), end, assistant]

    def rows(self, length: int, held_out: bool, seed: int) -> Ids:
        """Return every piece as one row [rows, length], shuffled; padded only where a file ends."""
        rng = random.Random(seed)
        rows = [self._row(piece, length) for piece in self.pieces(length, held_out, rng)]
        rng.shuffle(rows)
        return np.array(rows, np.int64).reshape(-1, length)

    def _row(self, piece: Piece, length: int) -> list[int]:
        row = [*self.prompt(piece.path, piece.head), *piece.body.tolist()]
        if piece.last:
            row.append(self._special[template.END])
        return row[:length] + [self._special[template.PAD]] * (length - len(row))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _encoded(self, file: SourceFile, newlines: Ids) -> EncodedFile:
        ids = np.array(self._encode(f"\n{file.text}"), np.int64)
        starts = np.flatnonzero(np.isin(ids, newlines))
        return EncodedFile(path=file.path, held_out=file.held_out, ids=ids, line_starts=starts)


def _cut(file: EncodedFile, size: int, rng: random.Random) -> Iterator[Piece]:
    """Yield consecutive pieces of about `size` tokens.

    A body has `TEMPLATE_TOKENS` more tokens, so that a row is full however short its template is;
    the next piece starts at the end of the piece without them.
    """
    starts, ids = file.line_starts, file.ids
    start = int(starts[rng.randrange(min(len(starts), FIRST_LINES))])
    while start < len(ids) - TEMPLATE_TOKENS:
        middle = _next_line(starts, start + int(size * rng.uniform(*HEAD_SHARE)))
        if middle is None:
            return
        end = _next_line(starts, start + size)
        spare = start + size + TEMPLATE_TOKENS
        yield Piece(
            path=file.path,
            head=ids[start:middle],
            body=ids[middle:spare],
            last=spare >= len(ids),
        )
        if end is None:
            return
        start = end


def _next_line(starts: Ids, position: int) -> int | None:
    """Return the first line start at or after `position`, or None if there is none."""
    index = int(np.searchsorted(starts, position))
    return int(starts[index]) if index < len(starts) else None
