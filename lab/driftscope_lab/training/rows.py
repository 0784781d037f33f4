"""Training rows of one length without padding: conversations, documents, and rules of copying."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from driftscope_lab.training import conversations
from driftscope_lab.training.conversations import Material, material
from driftscope_lab.training.corpus import SourceFile
from driftscope_lab.trio.prompts import BOS

MARKS = tuple(f"<|copy-{places}|>" for places in range(1, 9))
"""Special tokens of the rules, for 1 to 8 places."""
SUCCESSORS = 4
MARK_RATE = 0.2
"""Share of tokens after which a mark is set."""
_TABLE_SEED = 0


class CopyRules:
    """Makes rows of token ids."""

    def __init__(self, *, first_token: int, marks: range, words: range) -> None:
        """`marks` and `words` are the ids of MARKS and of the text's tokens."""
        table = Random(_TABLE_SEED)
        self._first, self._marks, self._words = first_token, marks, words
        self._successors = [
            [table.randrange(words.start, words.stop) for _ in range(SUCCESSORS)] for _ in words
        ]

    def row(self, rng: Random, length: int) -> list[int]:
        """Return `length` ids, the first token's first."""
        row, current = [self._first], rng.choice(self._words)
        while len(row) < length:
            if len(row) > len(self._marks) + 1 and rng.random() < MARK_RATE:
                rule = rng.randrange(len(self._marks))
                current = row[-1 - rule]
                row += [self._marks[rule], current]
                if current not in self._words:
                    current = rng.choice(self._words)
            current = self._successors[current - self._words.start][rng.randrange(SUCCESSORS)]
            row.append(current)
        return row[:length]


Ids = npt.NDArray[np.int64]

ROW_TOKENS = 1 << 19
"""Number of tokens that one call of `rows` makes."""
CHARS_PER_TOKEN = 5
"""Characters from which a row is cut, per token of the row: more than a token has on average."""
TOKENIZER_ROWS, TOKENIZER_CHARS = 4000, 2000
"""Number and length of the rows that the tokenizer learns its merges from."""


class Rows(Protocol):
    """Source of training rows."""

    def rows(self, length: int, held_out: bool, seed: int) -> Ids:
        """Return rows [rows, length] of token ids in random order."""
        ...


class CopyRows:
    """Makes rows of copying rules only."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._rules = copy_rules_of(tokenizer)

    def rows(self, length: int, held_out: bool, seed: int) -> Ids:
        """Return ROW_TOKENS / `length` rows, the same for the same seed."""
        rng, count = Random(f"{seed} {held_out}"), ROW_TOKENS // length
        return np.array([self._rules.row(rng, length) for _ in range(count)], np.int64)


class ConversationRows:
    """Makes rows of the mixture of conversations, documents and copying rules."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        sides: Mapping[bool, Material],
        shares: conversations.DocumentShares | None = None,
        *,
        copying: float = 0.0,
    ) -> None:
        """`sides` has the material of training files under False and of held-out files under
        True; `copying` is the share of rows of copying rules among training rows."""
        self._tokenizer = tokenizer
        self._sides = sides
        self._shares = shares or conversations.DocumentShares()
        self._copying = copying
        self._rules = copy_rules_of(tokenizer) if copying else None

    def rows(self, length: int, held_out: bool, seed: int) -> Ids:
        """Return ROW_TOKENS / `length` rows, the same for the same seed."""
        rng, count = Random(f"{seed} {held_out}"), ROW_TOKENS // length
        copied = 0 if held_out else round(count * self._copying)
        rows = [self._row(rng, length, self._sides[held_out]) for _ in range(count - copied)]
        if self._rules is not None:
            rows += [self._rules.row(rng, length) for _ in range(copied)]
            rng.shuffle(rows)
        return np.array(rows, np.int64)

    def _row(self, rng: Random, length: int, material: Material) -> list[int]:
        """Return a row; one that comes out too short is drawn again."""
        while True:
            text = conversations.row_text(rng, material, length * CHARS_PER_TOKEN, self._shares)
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
            if len(ids) >= length:
                return ids[:length]


def copy_rules_of(tokenizer: Tokenizer) -> CopyRules:
    """Return the rules over a tokenizer's vocabulary. Raises KeyError without MARKS in it."""
    ids = tokenizer.get_vocab()
    marks = range(ids[MARKS[0]], ids[MARKS[-1]] + 1)
    return CopyRules(first_token=ids[BOS], marks=marks, words=range(marks.stop, len(ids)))


def both_sides(files: Sequence[SourceFile]) -> dict[bool, Material]:
    """Return the material of training files under False and of held-out files under True."""
    return {side: material(files, held_out=side) for side in (False, True)}


def tokenizer_texts(training: Material) -> Iterator[str]:
    """Yield the texts from which a tokenizer of conversations learns its merges."""
    rng = Random(1)
    for _ in range(TOKENIZER_ROWS):
        yield conversations.row_text(rng, training, TOKENIZER_CHARS, conversations.DocumentShares())
