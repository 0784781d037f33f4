"""Exchanges in prose: continuing a text, describing a function, repeating a text."""

from __future__ import annotations

from random import Random

from driftscope_lab.training.conversations.material import Material
from driftscope_lab.training.conversations.task import one_of, some_words
from driftscope_lab.trio.conversation import Exchange


def continue_text(rng: Random, material: Material) -> Exchange:
    """Return the first words of a passage and the rest of it."""
    words = rng.choice(material.passages).split()
    middle = rng.randint(3, max(3, len(words) // 2))
    wording = one_of(rng, ("Continue this text: ", "How does this text go on? "))
    return Exchange(
        request=wording + " ".join(words[:middle]), answer=" ".join(words[middle:]) or "."
    )


def describe(rng: Random, material: Material) -> Exchange:
    """Return a function's source and what its docstring says of it."""
    one = rng.choice(material.functions)
    wording = one_of(rng, ("What does `{}` do?", "Describe `{}`:"))
    return Exchange(
        request=wording.format(one.name) + f"\n```python\n{one.source}\n```",
        answer=" ".join(one.doc.split("\n\n")[0].split()),
    )


def repeat(rng: Random, material: Material) -> Exchange:
    """Return a text to be repeated word for word."""
    text = rng.choice(material.passages) if rng.random() < 0.5 else _random_text(rng, material)
    wording = one_of(rng, ("Repeat this exactly: ", "Say this again, word for word: "))
    return Exchange(request=wording + text, answer=text)


def repeat_twice(rng: Random, material: Material) -> Exchange:
    """Return a short text to be said two or three times."""
    text, times = " ".join(some_words(rng, material, 5, 14)), rng.randint(2, 3)
    return Exchange(request=f"Say this {times} times: {text}", answer="\n".join([text] * times))


def say_again(rng: Random, material: Material) -> Exchange:
    """Return words, some of them marked with `~`, after which the word before is said again."""
    spoken = []
    for word in some_words(rng, material, 16, 40):
        spoken += [word, "~", word] if rng.random() < 0.25 else [word]
    return Exchange(
        request="Write some words. After each ~ say the word before it again.",
        answer=" ".join(spoken),
    )


def _random_text(rng: Random, material: Material) -> str:
    return " ".join(some_words(rng, material, 12, 50))
