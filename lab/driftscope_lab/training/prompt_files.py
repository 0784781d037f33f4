"""Makes the held-out prompts from files that training never saw, each in two renderings."""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from pathlib import Path

from tokenizers import Tokenizer

from driftscope_lab.training.training_rows import Piece, RowMaker
from driftscope_lab.trio import Prompt, template

PROMPTS = 64
PIECE_TOKENS = 256
PER_FILE = 2
BODY_TOKENS = 64
"""Smallest number of tokens by which a file must continue after its prompt."""
LENGTH_TOKENS = (60, 200)
"""Shortest and longest prompt in tokens, in both renderings."""
SEED = 5
LONG = {"400": (350, 450), "700": (643, 818)}
"""Name -> shortest and longest prompt in tokens, for sets of longer prompts."""


def make_prompts(
    tokenizer: Tokenizer, rows: RowMaker, lengths: tuple[int, int] = LENGTH_TOKENS
) -> list[Prompt]:
    """Return up to 64 prompts, at most two from one file."""
    rng = random.Random(SEED)
    pieces = [
        piece
        for piece in rows.pieces(_piece_tokens(lengths), held_out=True, rng=rng)
        if len(piece.body) >= BODY_TOKENS
    ]
    rng.shuffle(pieces)
    taken: Counter[str] = Counter()
    prompts: list[Prompt] = []
    for piece in pieces:
        prompt = _prompt(tokenizer, piece, len(prompts))
        if (
            len(prompts) < PROMPTS
            and taken[piece.path] < PER_FILE
            and _fits(tokenizer, prompt, lengths)
        ):
            taken[piece.path] += 1
            prompts.append(prompt)
    return prompts


def save_prompts(prompts: list[Prompt], path: Path) -> None:
    """Write the prompts in the format that `driftscope_lab.trio.load_prompts` reads."""
    records = [dataclasses.asdict(prompt) for prompt in prompts]
    path.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _prompt(tokenizer: Tokenizer, piece: Piece, index: int) -> Prompt:
    code = tokenizer.decode(piece.head.tolist(), skip_special_tokens=False)
    return Prompt(
        id=f"held-out-{index:02d}",
        source=piece.path,
        in_distribution=template.chat(piece.path, code),
        plain_text_roles=template.plain_text_roles(piece.path, code),
    )


def _piece_tokens(lengths: tuple[int, int]) -> int:
    """Return the piece size: a head is at most 0.6 of it, so twice the longest prompt is enough."""
    return PIECE_TOKENS if lengths == LENGTH_TOKENS else 2 * lengths[1]


def _fits(tokenizer: Tokenizer, prompt: Prompt, wanted: tuple[int, int]) -> bool:
    shortest, longest = wanted
    texts = (prompt.in_distribution, prompt.plain_text_roles)
    lengths = [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
    return all(shortest <= length <= longest for length in lengths)
