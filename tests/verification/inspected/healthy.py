"""Healthy drafters: the shipped ones, in other formats, rounded, and trained on.

Training continues the shipped drafters on text that the target writes to the prompts that are not
used for the trial, at several seeds and rates: other weights, right wiring.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from support.checkpoints import (
    State,
    as_speculators,
    changed,
    own_vocabulary,
    own_vocabulary_config,
    speculators_names,
)

from driftscope.inspect.reference.drafter import load_drafter, load_target, save_drafter
from driftscope.inspect.reference.engine import generate
from driftscope_lab.training.train_drafters import draft_loss, teach
from driftscope_lab.trio import Prompt, encode, load_prompts, trio_path
from verification.inspected.planted import EAGLE3, EAGLE31

DEPTHS, DECAY, LENGTH, ROWS = 3, 0.8, 160, 8
STEPS = 12
"""Steps of training: enough to move every weight, few enough for a CPU."""


def healthy(folder: Path, seeds: int) -> Iterator[tuple[str, str, Path]]:
    """Yield name, kind and folder of healthy drafters; `seeds` re-trained ones of each kind."""
    for name in (EAGLE3, EAGLE31):
        yield "as shipped", name, trio_path() / name
        yield "int8 rounding", name, changed(folder / f"{name}-int8", name, weights=_rounded)
        yield (
            "own vocabulary",
            name,
            changed(
                folder / f"{name}-own", name, config=own_vocabulary_config, weights=own_vocabulary
            ),
        )
        yield (
            "speculators format",
            name,
            changed(
                folder / f"{name}-spec", name, config=as_speculators, weights=speculators_names
            ),
        )
    rows = text_of(load_prompts()[32:]) if seeds else torch.empty(0)
    for seed in range(seeds):
        for name in (EAGLE3, EAGLE31):
            yield (
                f"trained on, seed {seed}",
                name,
                trained(folder / f"{name}-{seed}", name, seed, rows),
            )


def _rounded(state: State) -> None:
    """Round each row of the matrices to 8 bits."""
    for name, tensor in state.items():
        if tensor.dim() == 2:
            step = tensor.float().abs().amax(-1, keepdim=True) / 127
            state[name] = ((tensor.float() / step).round() * step).to(tensor.dtype)


def text_of(prompts: Sequence[Prompt]) -> torch.Tensor:
    """Return rows [prompts, LENGTH] of prompts with the target's answers."""
    target, drafter = load_target(trio_path() / "target"), load_drafter(trio_path() / EAGLE31)
    made = []
    for prompt in prompts:
        ids = encode(prompt.in_distribution)
        answer = generate(target, drafter, ids, LENGTH, 5).token_ids
        made.append(torch.tensor([*ids, *answer][-LENGTH:]))
    return torch.stack(made)


def noisy(folder: Path, name: str, seed: int, share: float) -> Path:
    """Write a drafter whose weights have noise of a share of their own size, tensor by tensor."""
    generator = torch.Generator().manual_seed(seed)

    def shaken(state: State) -> None:
        for key, tensor in state.items():
            wide = tensor.float()
            noise = torch.randn(wide.shape, generator=generator) * wide.square().mean().sqrt()
            state[key] = (wide + share * noise).to(tensor.dtype)

    return changed(folder, name, weights=shaken)


def trained(folder: Path, name: str, seed: int, rows: torch.Tensor) -> Path:
    """Write a drafter that was trained on for STEPS steps, at a rate that follows from the seed."""
    target, drafter = load_target(trio_path() / "target"), load_drafter(trio_path() / name)
    generator = torch.Generator().manual_seed(seed)
    rate = (1e-4, 3e-4, 1e-3)[seed % 3]
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=rate)
    factors = [1.0] * len(drafter.config.aux_layers)
    drafter.train()
    for _ in range(STEPS):
        batch = rows[torch.randperm(len(rows), generator=generator)[:ROWS]]
        loss = draft_loss(drafter, factors, teach(target, batch), depths=DEPTHS, decay=DECAY).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_drafter(drafter.eval(), folder)
    return folder
