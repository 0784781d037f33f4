"""An EAGLE-1 drafter for the shipped target, made in seconds for the answers to a few prompts.

`fc` is fitted by least squares: from the embedding of the next token and the target's final state
to the final state after it. All weights are then trained shortly, at the first depth only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from driftscope.inspect.reference.config import FINAL_STATE, DrafterConfig
from driftscope.inspect.reference.drafter import (
    ChainKeys,
    Drafter,
    Target,
    load_target,
    save_drafter,
)
from driftscope.inspect.trial.target import Passage, Teacher
from driftscope_lab.trio import encode, load_prompts, trio_path

PROMPTS = 8
STEPS, LEARNING_RATE = 160, 2e-3
PENALTY = 1e-2
"""Weight of the squared parameters, against that of a mean square of the data of 1."""


def prompt_texts() -> list[str]:
    """Return the prompts for whose answers the drafter is made."""
    return [each.in_distribution for each in load_prompts()[:PROMPTS]]


def eagle1_config(target: Target) -> DrafterConfig:
    """Return the config of a drafter of one layer."""
    layer = replace(target.config, num_hidden_layers=1)
    return DrafterConfig(
        layer=layer, aux_layers=(FINAL_STATE,), names_aux_layers=False, eagle1=True
    )


def eagle1_drafter(folder: Path) -> Path:
    """Write the drafter into `folder`, as the EAGLE repository does: without a head."""
    torch.manual_seed(0)
    path = trio_path() / "target"
    target, teacher = load_target(path), Teacher(path)
    prompts = {str(at): encode(text) for at, text in enumerate(prompt_texts())}
    passages = [*teacher.passages(prompts, {FINAL_STATE})]
    drafter = Drafter(eagle1_config(target))
    with torch.no_grad():
        drafter.fc.weight.copy_(_fitted(target, passages))
        drafter.lm_head.weight.copy_(teacher.head)
    fit(drafter, target, passages)
    save_drafter(drafter, folder, torch.float32)
    return folder


def _inputs(target: Target, passage: Passage, layer: int = FINAL_STATE) -> tuple[Tensor, Tensor]:
    """Return the embeddings of the next tokens and the states, [1, slots, H] each."""
    with torch.no_grad():
        return target.embed(passage.ids[None, 1:].clone()), passage.states[layer].clone()


@torch.no_grad()
def _fitted(target: Target, passages: Sequence[Passage]) -> Tensor:
    """Return the weight of `fc`, [H, 2H], of a drafter that has no layer."""
    inputs, outputs = list[Tensor](), list[Tensor]()
    for passage in passages:
        embedded, states = _inputs(target, passage)
        inputs.append(torch.cat([embedded, states], -1)[0, :-1])
        outputs.append(states[0, 1:])
    x, y = torch.cat(inputs).double(), torch.cat(outputs).double()
    size = PENALTY * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    return torch.linalg.solve(x.T @ x + size, x.T @ y).T.float()


def fit(drafter: Drafter, target: Target, passages: Sequence[Passage]) -> None:
    """Train the first depth, but for the output head, on the tokens that follow."""
    drafter.lm_head.requires_grad_(requires_grad=False)
    learned = [each for each in drafter.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=LEARNING_RATE)
    for at in range(STEPS):
        passage = passages[at % len(passages)]
        embedded, states = _inputs(target, passage, drafter.config.aux_layers[0])
        anchors = torch.arange(states.shape[1] - 1)
        step = drafter.step(
            embedding=embedded[:, anchors],
            hidden=states[:, anchors],
            depth=1,
            anchors=anchors,
            context=drafter.context(embedded, states),
            chain_keys=ChainKeys(),
        )
        loss = functional.cross_entropy(
            drafter.lm_head(step.postnorm)[0], passage.ids[anchors + 2].clone()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
