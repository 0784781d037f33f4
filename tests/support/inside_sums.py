"""Sums inside a drafter along the chains of prompts, simulated."""

from __future__ import annotations

import numpy as np

from driftscope.inspect.inside import InsideSums
from driftscope.trace.records import edges_of

CHAINS = 30


def inside_sums(
    number: int, k: int = 4, *, shift: float = 0.0, growth: float = 1.0, seed: int = 0
) -> list[InsideSums]:
    """Return prompts whose near places get `shift` more of the attention at depth `k`, and whose
    state is `growth` times as large there; no draft reaches the last depth."""
    random = np.random.default_rng(seed)
    out = list[InsideSums]()
    for _ in range(number):
        first = np.full(len(edges_of(k)), 0.02)
        first[-1] = 0.6 - first[:-1].sum()
        bins = np.tile(first, (k, 1)) + random.normal(0, 0.002, (k, len(first)))
        moved = shift * np.linspace(0, 1, k)
        bins[:, 0] += moved
        bins[:, -1] -= moved
        sizes = np.geomspace(1.0, growth, k) * (1 + random.normal(0, 0.01, k))
        reached = [*np.linspace(CHAINS, 10, k - 1), 0.0] if k > 1 else [float(CHAINS)]
        out.append(
            InsideSums(
                chains=CHAINS,
                bins=bins * CHAINS,
                sink=[0.4 * CHAINS] * k,
                own=[0.0, *(bins[1:, 0] * CHAINS)],
                even=0.02 * CHAINS,
                fed=[*(sizes * CHAINS)],
                reached=reached,
                sure=[0.8 * each for each in reached],
                right=[0.5 * each for each in reached],
            )
        )
    return out
