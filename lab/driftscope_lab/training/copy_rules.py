"""Rows of made-up text with marks after which an earlier token is copied, with no other task.

The text between the marks follows a table of four successors a token, which a model learns without
attention. After the mark of rule n the token that stands n places before the mark is copied; a
copied mark asks for nothing. Heads that copy have nothing to do elsewhere, and give their attention
to the first token there: a sink forms by training, as with the bigram-backcopy task of arXiv
2410.13835.
"""

from __future__ import annotations

from random import Random

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
