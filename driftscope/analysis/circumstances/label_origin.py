"""Origin of a workload label: the traffic, or a suite that `driftscope replay` sent.

A suite sends the same text in ways that cost acceptance on purpose. Its conditions are compared
with each other, never with the traffic's labels or with another suite's conditions.
"""

from __future__ import annotations

from collections.abc import Iterable

from driftscope.vocabulary import REPLAY_LABEL

TRAFFIC = ""
"""Origin of the labels that clients gave."""


def origin_of(label: str) -> str:
    """Return the suite that a label names, as the beginning of the label, or TRAFFIC."""
    if not label.startswith(REPLAY_LABEL):
        return TRAFFIC
    suite, _, condition = label.removeprefix(REPLAY_LABEL).partition("/")
    return f"{REPLAY_LABEL}{suite}/" if condition else TRAFFIC


def origins(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the different origins of `labels`, the traffic first."""
    return tuple(sorted({origin_of(label) for label in labels}))
