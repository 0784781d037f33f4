"""Runs of healthy and broken drafters on the reference engine, on the same prompts."""

from __future__ import annotations

from pathlib import Path

import torch

from driftscope.inspect.reference.run import ReferenceRun
from driftscope_lab.trio import encode, load_prompts
from verification.broken.faults import FAULTS, Fault, healthy_models, models

K, REQUESTS, MAX_TOKENS = 4, 36, 24
"""Size of the runs: enough rounds to identify a dead drafter with certainty, and to show the
mildest fault."""


class _FaultyRun(ReferenceRun):
    """A run whose engine may deviate from its manifest."""

    def __init__(self, run: Path, target: Path, drafter: Path, *, fault: Fault | None) -> None:
        super().__init__(run, target, drafter, k=K)
        if fault and fault.engine:
            fault.engine(self._drafter)


def record(run: Path, name: str, folder: Path) -> Path:
    """Record the healthy drafter or the fault of that name into `run`; models go to `folder`."""
    torch.set_num_threads(1)
    fault = FAULTS.get(name)
    target, drafter = models(folder, fault) if fault else healthy_models(folder, name)
    prompts = [encode(prompt.in_distribution) for prompt in load_prompts()[:REQUESTS]]
    with torch.inference_mode(), _FaultyRun(run, target, drafter, fault=fault) as engine:
        for ids in prompts:
            engine.generate(ids, max_tokens=MAX_TOKENS, label="in distribution")
    return run
