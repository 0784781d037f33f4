"""Inspections made from simulated rounds, for tests of what is shown and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from support.checkpoints import TARGET, Config, captured, changed

from driftscope.boundary.json_document import INSPECTION, text
from driftscope.inspect.inspection import Inspection, inspect_files
from driftscope.inspect.trial.inside import InsideSums, inside_of
from driftscope.inspect.trial.result import DrafterChange, Trial, Tried, acceptance_of, gain
from driftscope.inspect.trial.verdict import verdict
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
                sure=[0.8 * depth for depth in reached],
                right=[0.5 * depth for depth in reached],
            )
        )
    return out


K, PROMPTS, ROUNDS = 4, 24, 20
MASSES = "sink_mass", "prompt_mass", "generated_mass", "self_mass"
FIGURES = ("prenorm_rms", "fed_rms", "top1", *MASSES)


def rounds(rate: float, seed: int) -> list[list[int]]:
    """Return accepted tokens by round and prompt, at a rate that varies by prompt."""
    source = np.random.default_rng(seed)
    rates = np.clip(rate + np.random.default_rng(1).normal(0, 0.1, PROMPTS), 0.05, 0.95)
    hits = source.random((PROMPTS, ROUNDS, K)) < rates[:, None, None]
    found: list[list[int]] = hits.cumprod(axis=2).sum(axis=2).tolist()
    return found


def broken(folder: Path, name: str = "broken", mistake: str = "norm_output is wrong") -> Inspection:
    """Return the inspection of a drafter with a flag that is wrong, and that one repair helps."""

    def config(fields: Config) -> None:
        captured(1, 2, 3)(fields)  # SGLang counts layers that begin at 1 differently: a note
        fields["norm_output"] = False

    path = changed(folder / name, config=config)
    base, fixed, other = rounds(0.3, 2), rounds(0.7, 3), rounds(0.3, 4)
    tried = tuple(
        Tried(
            change=DrafterChange(
                id=key, change=f'"{key}": true', mistake=mistake, fields={key: True}
            ),
            acceptance=acceptance_of(tried, K),
            gain=gain(base, tried, 2),
            prompts=PROMPTS,
        )
        for key, tried in (("norm_output", fixed), ("norm_before_residual", other))
    )
    trial = Trial(
        prompts=PROMPTS,
        k=K,
        acceptance=acceptance_of(base, K),
        figures={
            **dict.fromkeys(FIGURES, (0.25, 0.24, 0.23, 0.22)),
            "self_mass": (0, 0.1, 0.1, 0.2),
        },
        inside=inside_of(inside_sums(PROMPTS, K)),
        tried=tried,
    )
    inspection = inspect_files(str(path), str(TARGET))
    return inspection.with_results(tuple(verdict(trial)), trial)


def inspection_document(
    folder: Path, rates: tuple[float, ...], seed: int = 1, **other: Any
) -> Path:
    """Write an inspection whose drafter accepts at these conditional rates."""
    hits = np.random.default_rng(seed).random((32, 15, len(rates))) < rates
    accepted = acceptance_of(hits.cumprod(axis=2).sum(axis=2).tolist(), len(rates))
    trial = {"prompts": 32, "k": len(rates), "acceptance": accepted}
    path = folder / "inspection.json"
    path.write_text(text(INSPECTION, {"drafter": "drafter", "trial": trial, **other}))
    return path
