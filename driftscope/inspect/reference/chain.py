"""Chains drafted by a reference drafter, and what is measured on them.

With p the last verified slot, the query of depth d (1-based) is slot p+d-1 and sees slots 0..p+d-1.
Its attention, averaged over heads, falls into classes that sum to 1: sink = [0, n_sink), prompt =
[n_sink, P), generated = [P, p], self = [p+1, p+d-1]. The reference drafters have no learned sink
bias, so there is no null class here. Attention outside the sink is also sorted by distance from the
query, into the bins of `driftscope.trace.records`. RMS is ||x||_2 / sqrt(dim), as in
arXiv 2605.09992.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from driftscope.inspect.reference.drafter import ChainKeys, Context, Drafter, Edit, StepOutput
from driftscope.inspect.reference.layers import Embeds, at_least_float32
from driftscope.trace.records import edges_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainStep:
    """One depth of A chains: `hidden` [1, A, H] enters it, `logits` [A, vocabulary] leave it, and
    `token_ids` [A] are drafted, in the target's vocabulary."""

    depth: int
    hidden: Tensor
    output: StepOutput
    logits: Tensor
    token_ids: Tensor


class ChainChange(Protocol):
    """A change of chains while they are drafted."""

    def edit(self, depth: int) -> Edit | None:
        """Return the edit of attention at a depth."""
        ...

    def fed(self, step: ChainStep) -> tuple[Tensor, Tensor]:
        """Return the tokens [A] and the state [1, A, H] that the next depth reads."""
        ...


def chain_steps(
    target: Embeds,
    drafter: Drafter,
    *,
    hidden: Tensor,
    token_ids: Tensor,
    anchors: Tensor,
    context: Context,
    k: int,
    change: ChainChange | None = None,
) -> Iterator[ChainStep]:
    """Draft K tokens greedily from the slots `anchors` [A], and yield each depth.

    `hidden` [1, A, H] is the output of `fuse` there, and `token_ids` [A] are the known tokens after
    them.
    """
    chain_keys = ChainKeys()
    for depth in range(1, k + 1):
        output = drafter.step(
            embedding=drafter.embed(token_ids, target)[None],
            hidden=hidden,
            depth=depth,
            anchors=anchors,
            context=context,
            chain_keys=chain_keys,
            edit=None if change is None else change.edit(depth),
        )
        logits = drafter.lm_head(output.postnorm)[0]
        step = ChainStep(
            depth=depth,
            hidden=hidden,
            output=output,
            logits=logits,
            token_ids=drafter.target_ids(logits.argmax(-1)),
        )
        yield step
        token_ids, hidden = (step.token_ids, output.fed) if change is None else change.fed(step)
        # A table of wrong differences can lead past the vocabulary.
        token_ids = token_ids.clamp(0, drafter.config.layer.vocab_size - 1)
        chain_keys = output.chain_keys


def class_masses(attention: Tensor, slots: int, prompt_tokens: int, n_sink: int) -> Tensor:
    """Sum attention [N, A, slots + d - 1] to [A, 4] by class, averaged over heads.

    The classes are sink, prompt, generated and self. Slots after p hold 0, so classes can be cut
    without regard to p. If the prompt is shorter than the sink set, the sink set takes precedence
    and the classes still sum to 1.
    """
    mean = attention.mean(0)
    sink_end = min(n_sink, slots)
    prompt_end = min(max(prompt_tokens, n_sink), slots)
    edges = (0, sink_end, prompt_end, slots, mean.shape[-1])
    return torch.stack([mean[:, i:j].sum(-1) for i, j in itertools.pairwise(edges)], -1)


def distance_masses(attention: Tensor, anchors: Tensor, depth: int, n_sink: int, k: int) -> Tensor:
    """Sum attention [N, A, slots + depth - 1] to [A, bins] by distance, averaged over heads.

    The query of depth d has the own slot p + d - 1. After the context, whose slots after p hold 0,
    come the chain's own slots p + 1, ..., p + d - 1. Slots of the sink set up to p are left out.
    """
    mean = attention.mean(0)
    device = anchors.device
    context = torch.arange(mean.shape[-1] - (depth - 1), device=device).expand(len(anchors), -1)
    chain = anchors[:, None] + torch.arange(1, depth, device=device)
    slot = torch.cat((context, chain), 1)
    is_sink = (slot < n_sink) & (slot <= anchors[:, None])
    away = (anchors + depth - 1)[:, None] - slot
    edges = (*edges_of(k), math.inf)
    counted = [(away >= low) & (away < high) & ~is_sink for low, high in itertools.pairwise(edges)]
    return torch.stack([(mean * inside).sum(-1) for inside in counted], -1)


def rms(x: Tensor) -> Tensor:
    """Return ||x||_2 / sqrt(dim) over the last axis."""
    return x.to(at_least_float32(x.dtype)).square().mean(-1).sqrt()
