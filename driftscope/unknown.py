"""The answer to input of a kind that is not known: it is not judged by the rules of another kind.

Every room gives this one record: what was recognised and what was not, the nearest known kind and
what the input lacks of it, and how to have the kind known. A command that ends with it has the exit
code EXIT_UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Input of a kind that is not known."""

    what: str
    """The input, in a few words."""
    instead: str
    """The consequence: what is done with the input."""
    recognised: Sequence[str] = ()
    not_recognised: Sequence[str] = ()
    nearest: str = ""
    """Nearest known kind, and what the input has and lacks of it; "" if none is near."""
    adding: str
    """How to have the kind known."""

    def __str__(self) -> str:
        """Return the answer in one sentence."""
        return f"{self.what} is of no known kind: {'; '.join((self.instead, *self.details))}"

    @property
    def details(self) -> Sequence[str]:
        """The parts of the sentence after its first words."""
        return tuple(self._details())

    def _details(self) -> Iterator[str]:
        if self.recognised:
            yield f"recognised: {', '.join(self.recognised)}"
        if self.not_recognised:
            yield f"not recognised: {', '.join(self.not_recognised)}"
        if self.nearest:
            yield f"nearest is {self.nearest}"
        yield f"to have it known: {self.adding}"


def nearest_kind(kinds: Iterable[tuple[str, Sequence[str]]], has: Callable[[str], bool]) -> str:
    """Return in words the kind of whose marks the input has the largest share, and of several the
    one with the most marks, with those that it has and lacks; "" if it has none of any kind.
    `kinds`: names, and marks."""
    best: tuple[float, int, str] = (0.0, 0, "")
    for name, marks in kinds:
        there = [mark for mark in marks if has(mark)]
        absent = [mark for mark in marks if mark not in there]
        lacks = f"lacks {', '.join(absent)}" if absent else "and differs otherwise"
        if there:
            words = f"{name}: has {', '.join(there)}, {lacks}"
            best = max(best, (len(there) / len(marks), len(there), words))
    return best[-1]
