"""Runs of healthy and broken drafters on the reference engine, on the same prompts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from driftscope.inspect.reference.config import EOS_ID
from driftscope.inspect.reference.drafter import Target, load_target
from driftscope.inspect.reference.engine import Generation, ReferenceRun, Round
from driftscope_lab.trio import encode, load_prompts
from verification.broken.batched_rounds import batched_rounds
from verification.broken.faults import FAULTS, Fault, healthy_models, models
from verification.truth import continue_greedily

K, REQUESTS, MAX_TOKENS = 4, 36, 24
"""Size of the runs: enough rounds to identify a dead drafter with certainty, and to show the
mildest fault."""


class FaultyRun(ReferenceRun):
    """A run whose engine may deviate from its manifest.

    The target answers identically with every drafter, so that each answer is computed once.
    """

    def __init__(self, run: Path, target: Path, drafter: Path, *, fault: Fault | None) -> None:
        super().__init__(run, target, drafter, k=K)
        self._answering = _loaded(target)
        if fault and fault.engine:
            fault.engine(self._drafter)

    def _generated(
        self, prompt_ids: Sequence[int], max_tokens: int, on_round: Callable[[Round], None]
    ) -> Generation:
        answer = continue_greedily(self._answering, tuple(prompt_ids), max_tokens + K + 1)
        greedy = answer[len(prompt_ids) :]
        return batched_rounds(
            self._target, self._drafter, prompt_ids, greedy, max_tokens, K, on_round, EOS_ID
        )


@functools.cache
def _loaded(target: Path) -> Target:
    return load_target(target, torch.float32)


def record(run: Path, name: str, folder: Path) -> Path:
    """Record the healthy drafter or the fault of that name into `run`; models go to `folder`."""
    torch.set_num_threads(1)
    fault = FAULTS.get(name)
    target, drafter = models(folder, fault) if fault else healthy_models(folder, name)
    prompts = [encode(prompt.in_distribution) for prompt in load_prompts()[:REQUESTS]]
    with torch.inference_mode(), FaultyRun(run, target, drafter, fault=fault) as engine:
        for ids in prompts:
            engine.generate(ids, max_tokens=MAX_TOKENS, label="in distribution")
    return run
