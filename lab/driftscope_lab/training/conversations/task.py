"""Shape of the functions that make an exchange, and what several of them need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from driftscope_lab.training.conversations.material import Material
from driftscope_lab.trio.conversation import Exchange

Task = Callable[[Random, Material], Exchange]
"""Function that makes an exchange of one kind."""


def some_words(rng: Random, material: Material, least: int, most: int) -> list[str]:
    """Return between `least` and `most` words, drawn with repetition."""
    return rng.choices(material.words, k=rng.randint(least, most))


def different_words(rng: Random, material: Material, count: int) -> list[str]:
    """Return `count` different words."""
    return rng.sample(material.words, count)


def one_of(rng: Random, wordings: Sequence[str]) -> str:
    """Return one of several wordings of the same request."""
    return wordings[rng.randrange(len(wordings))]
