"""The loss of the drafters: the target's predictions for a batch, and a drafter's distance from
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from driftscope.inspect.reference.chain import rms
from driftscope.inspect.reference.config import PAD_ID
from driftscope.inspect.reference.drafter import ChainKeys, StepOutput
from driftscope.inspect.reference.model import Drafter, Target
from driftscope_lab.training import recipe
from driftscope_lab.training.compute import autocast


@dataclass(frozen=True, slots=True, kw_only=True)
class Teaching:
    """The target's output for a batch `ids` [B, S]: embeddings, captured states, and the
    log-probabilities [B, S, vocabulary] of the token after each token."""

    ids: Tensor
    embeddings: Tensor
    aux: tuple[Tensor, ...]
    log_probs: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLoss:
    """The loss and its figures. `loss` is minimised. Per depth, `agreement` is the share of slots
    where drafter and target prefer the same token, and `prenorm_rms` is a mean over slots."""

    loss: Tensor
    agreement: list[float]
    prenorm_rms: list[float]


@torch.no_grad()
def teach(target: Target, ids: Tensor, aux_layers: Sequence[int] = recipe.AUX_LAYERS) -> Teaching:
    """Run the target over a batch."""
    with autocast(ids.device):
        output = target(ids, aux_layers=aux_layers)
        logits = target.logits(output.hidden)
    return Teaching(
        ids=ids,
        embeddings=target.embed(ids),
        aux=output.aux,
        log_probs=logits.float().log_softmax(-1),
    )


def draft_loss(
    drafter: Drafter, aux_factors: Sequence[float], teaching: Teaching, *, depths: int, decay: float
) -> DraftLoss:
    """Run the training-time test: from every slot at once, draft `depths` deep on the true tokens.

    The loss is the sum over depth of decay^(depth-1) times the cross-entropy against the target's
    distribution. Captured states are multiplied by `aux_factors` first.
    """
    total = torch.zeros((), device=teaching.ids.device)
    agreement, prenorm_rms = [], []
    with autocast(teaching.ids.device):
        scaled = [aux * by for aux, by in zip(teaching.aux, aux_factors, strict=True)]
        steps = _unrolled(drafter, scaled, teaching.embeddings, depths)
        for depth, step in enumerate(steps, start=1):
            entropy, same = _compared(drafter.lm_head(step.postnorm), teaching, depth)
            total = total + decay ** (depth - 1) * entropy
            agreement.append(same)
            prenorm_rms.append(rms(step.prenorm.detach()).mean().item())
    return DraftLoss(loss=total, agreement=agreement, prenorm_rms=prenorm_rms)


def _unrolled(
    drafter: Drafter, aux: Sequence[Tensor], embeddings: Tensor, depths: int
) -> Iterator[StepOutput]:
    """Yield each depth of the chains of all slots; slot i is anchored at token i of the batch."""
    slots = embeddings.shape[1] - 1 - depths
    hidden = drafter.fuse([layer[:, :slots] for layer in aux])
    context = drafter.context(embeddings[:, 1 : 1 + slots], hidden)
    chain_keys = ChainKeys()
    for depth in range(1, depths + 1):
        step = drafter.step(
            embedding=embeddings[:, depth : depth + slots],
            hidden=hidden,
            depth=depth,
            anchors=torch.arange(slots, device=embeddings.device),
            context=context,
            chain_keys=chain_keys,
        )
        yield step
        hidden, chain_keys = step.fed, step.chain_keys


def _compared(logits: Tensor, teaching: Teaching, depth: int) -> tuple[Tensor, float]:
    """Return cross-entropy (nats) and top-token agreement: means over unpadded slots."""
    logits = logits.float()
    window = slice(depth, depth + logits.shape[1])
    wanted = teaching.log_probs[:, window]
    counted = teaching.ids[:, window] != PAD_ID
    entropy = -(wanted.exp() * logits.log_softmax(-1)).sum(-1)
    same = logits.argmax(-1) == wanted.argmax(-1)
    return entropy[counted].mean(), same[counted].float().mean().item()
