"""Kinds of text of simulated answers: blocks of equal length, each of one region."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.simulate.truth import Truth

from driftscope.vocabulary import Language, Region

Ints = NDArray[np.int64]
CODE = (Language.RUST, Language.PYTHON)
"""Languages of blocks of code: of every second block, and of the others."""
NEAR = 4
"""First tokens of a block, which `Truth.boundary` shifts."""


def kinds_of_blocks(truth: Truth, replica: int, prompt: Ints, kind: Ints, rounds: Ints) -> Ints:
    """Return the place in `truth.regions` of each block of each answer, [requests, blocks]."""
    most = (int(rounds.max()) + 1) * (truth.k + 1) // truth.block_tokens + 2
    usual = tuple(share for share, _ in truth.regions.values())
    shares = np.array([each.text or usual for each in truth.prompts])
    ends = np.cumsum(shares / shares.sum(axis=1, keepdims=True), axis=1)[:, :-1]
    random = np.random.default_rng((truth.prompts_seed, replica, 9))
    drawn = random.random((int(prompt.max()) + 1, most))[prompt]
    kinds = (drawn[:, :, None] >= ends[kind][:, None, :]).sum(axis=2)
    if truth.in_order:  # about a third of an answer that accepts half of its drafts
        blocks = rounds * (1 + truth.k / 2) / truth.block_tokens
        last = len(truth.regions) - 1
        kinds = np.where(np.arange(most) >= 2 / 3 * blocks[:, None], last, kinds % last)
    return np.asarray(kinds)


def kind_of(truth: Truth, kinds: Ints, token: Ints) -> Ints:
    """Return the place in `truth.regions` of the text that rounds draft from `token` of their
    answer, [rows]; `kinds` are those of the blocks of the rows' answers, [rows, blocks]."""
    block = token // truth.block_tokens
    return np.asarray(np.take_along_axis(kinds, block[:, None], axis=1)[:, 0])


def shift_of(truth: Truth, kinds: Ints, token: Ints) -> NDArray[np.float64]:
    """Return the logit shift of rounds by `kind_of`, [rows]."""
    shift = np.array([shift for _, shift in truth.regions.values()])[kind_of(truth, kinds, token)]
    near = (token % truth.block_tokens < NEAR) & (token >= truth.block_tokens)
    return np.asarray(shift + truth.boundary * near)


def region_columns(truth: Truth, kinds: Ints, output: Ints) -> dict[str, Any]:
    """Return the columns of request rows about regions."""
    if not truth.regions:
        return {}
    codes = np.array([Region.ALL.index(name) for name in truth.regions])[kinds]
    code = np.where(np.arange(kinds.shape[1]) % 2, *map(Language.ALL.index, CODE))
    languages = np.where(codes == Region.ALL.index(Region.CODE), code, 0)
    starts = [list(range(0, max(int(n), 1), truth.block_tokens)) for n in output]
    return {
        "region_starts": starts,
        "region_codes": _lists(codes, starts),
        "region_languages": _lists(languages, starts),
        "region_boundaries": [mine[1:] for mine in starts],
        "region_copies": [[] for _ in starts],
    }


def _lists(values: Ints, starts: list[list[int]]) -> list[list[int]]:
    """Return as many values of each row, [requests, blocks], as its answer has blocks."""
    return [row[: len(mine)].tolist() for row, mine in zip(values, starts, strict=True)]
