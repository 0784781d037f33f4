"""A target and two drafters small enough to ship, whose data card is `weights/README.md`.

>>> from driftscope_lab.trio import load_prompts, trio_path
>>> sorted(path.name for path in trio_path().iterdir() if path.is_dir())
['eagle3', 'eagle31', 'target']
>>> len(load_prompts())
64

Imports no torch; `encode` imports `tokenizers` when first called.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from driftscope_lab.trio.prompts import CONDITIONS, Condition, TrioPrompt, read_prompts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["CONDITIONS", "Condition", "Prompt", "encode", "load_prompts", "trio_path"]


def trio_path() -> Path:
    """Return the folder of the shipped trio: `target`, `eagle3`, `eagle31` and `prompts.json`."""
    return Path(__file__).parent / "weights"


def load_prompts() -> list[TrioPrompt]:
    """Return the held-out prompts."""
    return read_prompts(trio_path())


def encode(text: str) -> list[int]:
    """Return the token ids of `text`, which contains its special tokens; nothing is added."""
    ids: list[int] = _tokenizer().encode(text, add_special_tokens=False).ids
    return ids


@functools.cache
def _tokenizer() -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(trio_path() / "target" / "tokenizer.json"))
