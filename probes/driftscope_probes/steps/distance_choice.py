"""Chooses the recorded steps whose chains carry masses by distance."""

from __future__ import annotations

import numpy as np

CHOICES = 4093
"""Number of choices drawn in advance, after which they repeat: a prime, so that it has no common
divisor with the interval at which steps are recorded."""


def distance_choices(every: int, seed: int = 0) -> bytes:
    """Return [CHOICES] 1 or 0: whether a recorded step carries masses by distance, by the step's
    number modulo CHOICES; one step in `every` on average, none if it is 0.

    The choice depends on nothing but the step's number, so that tensor-parallel ranks make the same
    one, and the table costs a recorded step no call.
    """
    draws = np.random.default_rng(seed).random(CHOICES)
    return (draws * every < bool(every)).astype(np.uint8).tobytes()
