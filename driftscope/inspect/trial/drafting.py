"""Drafts from every position of the target's answers at once, and counts what would be accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from driftscope.inspect.inside.chain_sums import ChainSums
from driftscope.inspect.inside.inside_sums import InsideSums
from driftscope.inspect.reference.chain import class_masses, rms
from driftscope.inspect.reference.drafter import ChainKeys, Drafter, StepOutput
from driftscope.inspect.reference.replay import DEFAULT_N_SINK
from driftscope.inspect.reference.target import Embeds
from driftscope.inspect.trial.passages import Passage

FIGURES = (
    "prenorm_rms",
    "fed_rms",
    "top1",
    "sink_mass",
    "prompt_mass",
    "generated_mass",
    "self_mass",
)
"""Figures by depth that are measured on the drafter as it is, in the order of `Drafted.figures`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """Drafts of one passage from A positions."""

    accepted: Tensor
    """Leading drafted tokens that are the target's, [A]."""
    probability: Tensor
    """Sum over the depths that a draft reaches of the probability that the drafter gives to the
    target's token there, [A]. It follows from the same chains as `accepted` and varies less: a
    draft that is nearly right counts nearly 1."""
    figures: Tensor | None
    """Mean over the positions, [K, figures]; None if not measured."""
    inside: InsideSums | None = None
    """Sums over the positions; None if not measured."""

    def rounds(self) -> list[int]:
        """Return the accepted tokens of each round that an engine would make: the first starts at
        the end of the prompt, and each other one after what the one before produced."""
        accepted, at, lengths = self.accepted.tolist(), 0, list[int]()
        while at < len(accepted):
            lengths.append(accepted[at])
            at += accepted[at] + 1
        return lengths


@torch.inference_mode()
def draft(
    drafter: Drafter, target: Embeds, passage: Passage, k: int, *, measured: bool = False
) -> Drafted:
    """Draft K tokens greedily from each position of the answer, given the true tokens before it."""
    anchors, ids = passage.anchors(k), passage.ids
    fused = drafter.fuse([passage.states[layer] for layer in drafter.config.aux_layers])
    context = drafter.context(drafter.embed(ids[None, 1:], target), fused)
    hidden, newest, chain_keys = fused[:, anchors], ids[anchors + 1], ChainKeys()
    matches, probabilities, figures = list[Tensor](), list[Tensor](), list[Tensor]()
    inside = ChainSums(anchors, k)
    for depth in range(1, k + 1):
        step = drafter.step(
            embedding=drafter.embed(newest, target)[None],
            hidden=hidden,
            depth=depth,
            anchors=anchors,
            context=context,
            chain_keys=chain_keys,
        )
        logits = drafter.lm_head(step.postnorm)[0]
        newest, right = drafter.target_ids(logits.argmax(-1)), ids[anchors + 1 + depth]
        matches.append(newest == right)
        probabilities.append(_probability(drafter, logits, right))
        if measured:
            figures.append(figures_of(step, logits, context.slots, passage.prompt_tokens))
            inside.add(step, logits, context.slots, matches[-1])
        # A table of wrong differences can lead past the vocabulary.
        newest = newest.clamp(0, drafter.config.layer.vocab_size - 1)
        hidden, chain_keys = step.fed, step.chain_keys
    accepted = torch.stack(matches, 1).int().cumprod(1)
    reached = torch.cat([torch.ones_like(accepted[:, :1]), accepted[:, :-1]], 1)
    return Drafted(
        accepted=accepted.sum(1),
        probability=(reached * torch.stack(probabilities, 1)).sum(1),
        figures=torch.stack(figures) if measured else None,
        inside=inside.sums() if measured else None,
    )


def _probability(drafter: Drafter, logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the probability of the target's tokens [A], 0 for those that cannot be drafted."""
    probabilities = logits.float().softmax(-1)
    drafted = drafter.target_ids(torch.arange(logits.shape[-1], device=logits.device))
    return (probabilities * (drafted == tokens[:, None])).sum(-1)


def figures_of(step: StepOutput, logits: Tensor, slots: int, prompt_tokens: int) -> Tensor:
    """Return the means of FIGURES over the positions of one depth, [figures]."""
    masses = [class_masses(one[0], slots, prompt_tokens, DEFAULT_N_SINK) for one in step.attention]
    columns: Sequence[Tensor] = (
        rms(step.prenorm[0]),
        rms(step.fed[0]),
        logits.softmax(-1).amax(-1),
        *torch.stack(masses).mean(0).unbind(-1),
    )
    return torch.stack([column.mean() for column in columns])
