"""Tokens of an answer that repeat an earlier passage of its prompt or of itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PASSAGE = 8
"""Number of tokens in a row that have to occur before."""
_SEED = 0x5DEECE66D


def copied_tokens(prompt: Sequence[int], answer: Sequence[int]) -> NDArray[np.bool_]:
    """Return, for each token of the answer, whether it lies in PASSAGE tokens of the answer in a
    row that occur earlier in the prompt or the answer; [answer tokens], bool.

    Passages are compared by a hash of 64 bits.
    """
    tokens = np.concatenate([np.asarray(prompt, np.int64), np.asarray(answer, np.int64)])
    copied = np.zeros(len(tokens) + 1, dtype=np.int64)
    if len(answer) >= PASSAGE and len(tokens) > PASSAGE:
        starts = np.flatnonzero(_occurred_before(tokens))
        starts = starts[starts >= len(prompt)]
        np.add.at(copied, starts, 1)
        np.add.at(copied, starts + PASSAGE, -1)
    return np.asarray(np.cumsum(copied[:-1])[len(prompt) :] > 0)


def _occurred_before(tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return, for each passage, whether an equal one begins before it; [tokens - PASSAGE + 1]."""
    weights = np.random.default_rng(_SEED).integers(
        2**63, size=(PASSAGE, 2), dtype=np.uint64
    ) | np.uint64(1)
    with np.errstate(over="ignore"):
        words = tokens.astype(np.uint64) + np.uint64(1)
        hashes = np.zeros(len(tokens) - PASSAGE + 1, dtype=np.uint64)
        for place in range(PASSAGE):
            there = words[place : place + len(hashes)] * weights[place, 0]
            hashes += (there ^ (there >> np.uint64(29))) * weights[place, 1]
    order = np.argsort(hashes, kind="stable")
    repeated = np.zeros(len(hashes), dtype=bool)
    repeated[order[1:]] = hashes[order[1:]] == hashes[order[:-1]]
    return repeated
