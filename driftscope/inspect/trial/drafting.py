"""Drafts from every position of the target's answers at once, and counts what would be accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from driftscope.inspect.inside import InsideSums
from driftscope.inspect.reference.chain import class_masses, distance_masses, rms
from driftscope.inspect.reference.config import DEFAULT_N_SINK
from driftscope.inspect.reference.drafter import ChainKeys, Drafter, StepOutput
from driftscope.inspect.reference.layers import Embeds
from driftscope.inspect.trial.target import Passage


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """One depth of the chains of a prompt. `bins` [bins] is the attention by distance, `sink` and
    `own` that on the sink and on the chain itself, `fed` the RMS of the state fed forward, each
    summed over all A chains; `reached`, `sure` and `right` are the number of chains that are
    accepted up to here, and of these the summed confidence and the number whose token is right."""

    bins: Tensor
    sink: float
    own: float
    fed: float
    reached: float
    sure: float
    right: float


class ChainSums:
    """Sums over the chains of one prompt, a depth at a time."""

    def __init__(self, anchors: Tensor, k: int) -> None:
        """`anchors` [A] are the positions from which K tokens are drafted."""
        self._anchors, self._k = anchors, k
        self._accepted = torch.ones(len(anchors), device=anchors.device)
        self._depths = list[Depth]()

    def add(self, step: StepOutput, logits: Tensor, slots: int, matches: Tensor) -> None:
        """Add the next depth: its `logits` [A, vocabulary], the number of verified slots, and which
        tokens are the target's, [A]."""
        depth = len(self._depths) + 1
        away = [
            distance_masses(one[0], self._anchors, depth, DEFAULT_N_SINK, self._k)
            for one in step.attention
        ]
        # The prompt's and the output's share are not needed, so that their border is any.
        classes = [class_masses(one[0], slots, 0, DEFAULT_N_SINK) for one in step.attention]
        by_class = torch.stack(classes).mean(0).sum(0)
        top1 = logits.float().softmax(-1).amax(-1)
        self._depths.append(
            Depth(
                bins=torch.stack(away).mean(0).sum(0),
                sink=float(by_class[0]),
                own=float(by_class[-1]),
                fed=float(rms(step.fed[0]).sum()),
                reached=float(self._accepted.sum()),
                sure=float((top1 * self._accepted).sum()),
                right=float((matches * self._accepted).sum()),
            )
        )
        self._accepted = self._accepted * matches

    def sums(self) -> InsideSums:
        """Return the sums over all depths."""
        names = ("sink", "own", "fed", "reached", "sure", "right")
        columns = {name: [getattr(each, name) for each in self._depths] for name in names}
        visible = (self._anchors + 1).clamp(max=DEFAULT_N_SINK) / (self._anchors + 1)
        return InsideSums(
            chains=len(self._anchors),
            bins=torch.stack([each.bins for each in self._depths]).double().cpu().numpy(),
            even=float(visible.sum()),
            **columns,
        )


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
