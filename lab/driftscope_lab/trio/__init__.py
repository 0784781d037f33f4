"""A target and two drafters small enough to ship, trained by `driftscope_lab.training.train`.

>>> from driftscope_lab.trio import load_prompts, trio_path
>>> sorted(path.name for path in trio_path().iterdir() if path.is_dir())
['eagle3', 'eagle31', 'target']
>>> len(load_prompts())
64

Imports no torch; `encode` imports `tokenizers` when first called.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["CONDITIONS", "Condition", "Prompt", "encode", "load_prompts", "trio_path"]

Condition = Literal["in_distribution", "plain_text_roles"]
CONDITIONS: tuple[Condition, ...] = ("in_distribution", "plain_text_roles")
"""The two renderings of a prompt: the chat template, and its roles written out in plain text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A held-out prompt; both texts contain special tokens, `source` is a corpus path."""

    id: str
    source: str
    in_distribution: str
    plain_text_roles: str

    def text(self, condition: Condition) -> str:
        """Return the rendering for `condition`."""
        return self.in_distribution if condition == "in_distribution" else self.plain_text_roles


def trio_path() -> Path:
    """Return the folder of the shipped trio: `target`, `eagle3`, `eagle31` and `prompts.json`."""
    return Path(__file__).parent / "weights"


def load_prompts(folder: Path | None = None) -> list[Prompt]:
    """Return the held-out prompts of the shipped trio, or of a trio trained into `folder`."""
    text = ((folder or trio_path()) / "prompts.json").read_text(encoding="utf-8")
    return [Prompt(**record) for record in json.loads(text)]


def encode(text: str, folder: Path | None = None) -> list[int]:
    """Return the token ids of `text`, which contains its special tokens; nothing is added.

    Uses the shipped tokenizer, or that of a trio trained into `folder`.
    """
    ids: list[int] = _tokenizer(folder or trio_path()).encode(text, add_special_tokens=False).ids
    return ids


@functools.cache
def _tokenizer(folder: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "target" / "tokenizer.json"))
