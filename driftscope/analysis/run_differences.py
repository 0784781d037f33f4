"""Ways in which two runs differ apart from their figures; if there are several, none of them
explains a difference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from driftscope.analysis.figures.rounds import UNPAIRED, Side
from driftscope.analysis.number_words import listed
from driftscope.trace.manifest import Manifest, Model

SOME = 0.05
"""Smallest share of the rounds for which a number of drafted tokens counts as a K of the run: close
to a length limit a few rounds draft fewer tokens than K."""
DRAFTER = "drafter"
"""Name of the difference that a comparison is usually about."""
TARGET = "target"
_MIMO = "MiMoMTP"
"""Begin of the head's architecture: MiMoMTPModel in vLLM, MiMoMTP in SGLang."""
_STATE_OF_MIMO = {"vllm": "before its final norm", "sglang": "after its final norm"}
"""State of the target that an engine gives to MiMo's MTP head. Sources: mimo.py of vLLM 0.32 and of
SGLang 0.5.23."""


def unlike(a: Manifest, b: Manifest, sides: tuple[Side, Side], pairing: str) -> tuple[str, ...]:
    """Return the ways in which two runs differ, each with both values."""
    warm = [", ".join(f"{value:g}" for value in side.temperatures) for side in sides]
    both_warm = warm[0] != warm[1] and all(warm)
    runners = [f"{manifest.engine} {manifest.runner}" for manifest in (a, b)]
    drafted = [_drafted(side) for side in sides]
    properties = [
        ("temperature", warm if both_warm else None),
        ("runner", runners if runners[0] != runners[1] else None),
        ("K", drafted if drafted[0] != drafted[1] else None),
        ("prompts", [] if pairing == UNPAIRED else None),
        ("captured layers", _captured(a, b)),
        ("the target's state that MiMo's head reads", _head_states(a, b)),
        (DRAFTER, _names(a, b, DRAFTER) if models_differ(a, b, DRAFTER) else None),
        (TARGET, _names(a, b, TARGET) if models_differ(a, b, TARGET) else None),
    ]
    return tuple(_with_values(name, values) for name, values in properties if values is not None)


def unlike_servers(a: Manifest, b: Manifest, pairing: str) -> tuple[str, ...]:
    """Return the ways in which two servers differ, of which at most one speculates."""
    runners = [f"{manifest.engine} {manifest.runner}" for manifest in (a, b)]
    properties = [
        ("runner", runners if runners[0] != runners[1] else None),
        ("prompts", [] if pairing == UNPAIRED else None),
        (TARGET, _names(a, b, TARGET) if models_differ(a, b, TARGET) else None),
    ]
    return tuple(_with_values(name, values) for name, values in properties if values is not None)


def _names(a: Manifest, b: Manifest, part: str) -> list[str]:
    models = (getattr(manifest, part) for manifest in (a, b))
    return [model.name if model else "none" for model in models]


def _drafted(side: Side) -> str:
    """Return K, or several K with their shares of the rounds in tenths: a different mix of the same
    K gives a different acceptance length."""
    by_length = side.rounds.lengths.sum(axis=0)
    shares = by_length / max(by_length.sum(), 1)
    some = np.flatnonzero(shares >= SOME).tolist()
    if len(some) < 2:
        return f"{side.rounds.k}"
    return listed([f"{k} in {max(round(10 * shares[k]), 1)} of 10 rounds" for k in some])


def _captured(a: Manifest, b: Manifest) -> list[str] | None:
    """Return the captured target layers of both runs, if one drafter gets different ones: engines
    number those of a checkpoint differently, and the manifest counts alike for all."""
    layers = [list(manifest.aux_layers) for manifest in (a, b)]
    if not all(layers) or layers[0] == layers[1] or models_differ(a, b, DRAFTER):
        return None
    return [", ".join(map(str, numbers)) for numbers in layers]


def _head_states(a: Manifest, b: Manifest) -> list[str] | None:
    """Return which state of the target the MTP head of both runs reads, if engines differ in it."""
    drafters = [manifest.drafter for manifest in (a, b)]
    if not all(drafter and drafter.architecture.startswith(_MIMO) for drafter in drafters):
        return None
    states = [_STATE_OF_MIMO.get(manifest.engine, "") for manifest in (a, b)]
    return states if all(states) and states[0] != states[1] else None


def models_differ(a: Manifest, b: Manifest, part: str) -> bool:
    """Whether the models of two runs differ; `part` is DRAFTER or TARGET. Two engines complete one
    checkpoint's config in different ways, so that between engines the weights decide."""
    mine, theirs = getattr(a, part), getattr(b, part)
    if mine is None or theirs is None:
        return mine is not theirs
    if a.engine != b.engine and mine.weights_digest and theirs.weights_digest:
        return bool(mine.weights_digest != theirs.weights_digest)
    return differ(mine, theirs)


def differ(a: Model, b: Model) -> bool:
    """Whether two models differ: by their config and, if known, their weights, otherwise by
    name."""
    if a.config_digest != b.config_digest:
        return True
    if a.weights_digest and b.weights_digest:
        return a.weights_digest != b.weights_digest
    return a.name != b.name


def doubt(things: Sequence[str]) -> str | None:
    """Return the warning about `things`; None if there is none, or only the drafter."""
    if len(things) > 1:
        return (
            f"these runs differ in more than one thing: {listed(things)}; no difference in their "
            "figures can be attributed to one of these alone"
        )
    if not things or things[0].startswith(DRAFTER):
        return None
    return (
        f"these runs differ in their {things[0]}: that, not the drafter, may explain a difference "
        "in their figures"
    )


def _with_values(name: str, values: Sequence[str]) -> str:
    return f"{name} ({' against '.join(values)})" if values and values[0] != values[1] else name
