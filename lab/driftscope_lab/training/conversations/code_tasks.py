"""Exchanges about code: continuing, writing, renaming and changing it."""

from __future__ import annotations

import keyword
import re
from random import Random

from driftscope_lab.training.conversations.material import Function, Material
from driftscope_lab.training.conversations.task import different_words, one_of
from driftscope_lab.trio.conversation import Exchange

ANSWER_LINES = 16
"""Largest number of lines of code that an answer continues."""
_NAME = re.compile(r"\b[a-z_]{3,}\b")
_NOT_RENAMED = frozenset(keyword.kwlist) | {"self"}


def continue_code(rng: Random, material: Material) -> Exchange:
    """Return a file's lines and the lines that follow them."""
    file = rng.choice(material.files)
    lines = file.text.splitlines()
    start = rng.randrange(max(1, len(lines) - 24))
    middle = start + rng.randint(4, 14)
    head, body = lines[start:middle], lines[middle : middle + ANSWER_LINES]
    wording = one_of(rng, ("Continue {}:", "Continue the file {}:"))
    return Exchange(
        request=wording.format(file.path) + "\n" + "\n".join(head),
        answer="\n".join(body) or "# end of file",
    )


def write_function(rng: Random, material: Material) -> Exchange:
    """Return a description of a function and its source in a fence."""
    one = rng.choice(material.functions)
    wording = one_of(rng, ("Write the function `{}`. {}", "Write `{}` in Python. {}"))
    return Exchange(
        request=wording.format(one.name, _first_paragraph(one)), answer=_fenced(one.source)
    )


def rename(rng: Random, material: Material) -> Exchange:
    """Return a function, and the same function with another name for one of its variables."""
    one = rng.choice(material.functions)
    old, new = _renaming(rng, material, one)
    changed = re.sub(rf"\b{old}\b", new, one.source)
    wording = one_of(rng, ("Rename `{}` to `{}`:", "Change the name `{}` to `{}`:"))
    return Exchange(
        request=wording.format(old, new) + "\n" + _fenced(one.source), answer=_fenced(changed)
    )


def change_as_diff(rng: Random, material: Material) -> Exchange:
    """Return a function, and a diff that renames one of its variables."""
    one = rng.choice(material.functions)
    old, new = _renaming(rng, material, one)
    lines = []
    for line in one.source.splitlines():
        changed = re.sub(rf"\b{old}\b", new, line)
        lines += [f" {line}"] if changed == line else [f"-{line}", f"+{changed}"]
    wording = one_of(rng, ("Rename `{}` to `{}`, as a diff:", "Give a diff from `{}` to `{}`:"))
    return Exchange(
        request=wording.format(old, new) + "\n" + _fenced(one.source),
        answer="```diff\n" + "\n".join(lines) + "\n```",
    )


def _renaming(rng: Random, material: Material, one: Function) -> tuple[str, str]:
    names = sorted(set(_NAME.findall(one.source)) - _NOT_RENAMED) or [one.name]
    return rng.choice(names), "_".join(different_words(rng, material, rng.randint(1, 2)))


def _first_paragraph(one: Function) -> str:
    return " ".join(one.doc.split("\n\n")[0].split())[:300]


def _fenced(source: str) -> str:
    return f"```python\n{source}\n```"
