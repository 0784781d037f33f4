"""Drafts from positions of the target's answers at once, and sums what is seen along the chains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from driftscope.inspect.inside import InsideSums
from driftscope.inspect.reference.chain import (
    ChainChange,
    ChainStep,
    chain_steps,
    class_masses,
    distance_masses,
    rms,
)
from driftscope.inspect.reference.config import DEFAULT_N_SINK
from driftscope.inspect.reference.drafter import Context, Drafter, StepOutput
from driftscope.inspect.reference.layers import Embeds
from driftscope.inspect.trial.target import Passage

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


class ChainSums:
    """Sums over the chains of one prompt, a depth at a time."""

    def __init__(self, anchors: Tensor, k: int) -> None:
        """`anchors` [A] are the positions from which K tokens are drafted."""
        self._anchors, self._k = anchors, k
        self._accepted = torch.ones(len(anchors), device=anchors.device)
        self._bins = list[Tensor]()
        names = ("sink", "own", "fed", "reached", "sure", "right")
        self._columns: dict[str, list[float]] = {name: [] for name in names}

    def add(self, step: StepOutput, logits: Tensor, slots: int, matches: Tensor) -> None:
        """Add the next depth: its `logits` [A, vocabulary], the number of verified slots, and which
        tokens are the target's, [A]."""
        depth = len(self._bins) + 1
        away = [
            distance_masses(one[0], self._anchors, depth, DEFAULT_N_SINK, self._k)
            for one in step.attention
        ]
        # The prompt's and the output's share are not needed, so that their border is any.
        classes = [class_masses(one[0], slots, 0, DEFAULT_N_SINK) for one in step.attention]
        by_class = torch.stack(classes).mean(0).sum(0)
        top1 = logits.float().softmax(-1).amax(-1)
        self._bins.append(torch.stack(away).mean(0).sum(0))
        for name, value in (
            ("sink", by_class[0]),
            ("own", by_class[-1]),
            ("fed", rms(step.fed[0]).sum()),
            ("reached", self._accepted.sum()),
            ("sure", (top1 * self._accepted).sum()),
            ("right", (matches * self._accepted).sum()),
        ):
            self._columns[name].append(float(value))
        self._accepted = self._accepted * matches

    def sums(self) -> InsideSums:
        """Return the sums over all depths."""
        visible = (self._anchors + 1).clamp(max=DEFAULT_N_SINK) / (self._anchors + 1)
        return InsideSums(
            chains=len(self._anchors),
            bins=torch.stack(self._bins).double().cpu().numpy(),
            even=float(visible.sum()),
            **self._columns,
        )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A passage as the drafter knows it before any chain."""

    drafter: Drafter
    target: Embeds
    passage: Passage
    fused: Tensor
    """State of `fc` at each slot, [1, S - 1, H]."""
    context: Context

    @classmethod
    @torch.inference_mode()
    def of(cls, drafter: Drafter, target: Embeds, passage: Passage) -> Prefix:
        """Run the drafter over the whole passage."""
        fused = drafter.fuse([passage.states[layer] for layer in drafter.config.aux_layers])
        context = drafter.context(drafter.embed(passage.ids[None, 1:], target), fused)
        return cls(drafter=drafter, target=target, passage=passage, fused=fused, context=context)

    def steps(
        self, anchors: Tensor, k: int, change: ChainChange | None = None
    ) -> Iterator[tuple[ChainStep, Tensor]]:
        """Draft K tokens greedily from the slots `anchors` [A], given the true tokens before each;
        yield each depth with the target's tokens there, [A]."""
        ids = self.passage.ids
        for step in chain_steps(
            self.target,
            self.drafter,
            hidden=self.fused[:, anchors],
            token_ids=ids[anchors + 1],
            anchors=anchors,
            context=self.context,
            k=k,
            change=change,
        ):
            yield step, ids[anchors + 1 + step.depth]

    def figures(self, step: ChainStep) -> Tensor:
        """Return the means of FIGURES over the positions of one depth, [figures]."""
        slots, prompt = self.context.slots, self.passage.prompt_tokens
        output = step.output
        masses = [class_masses(one[0], slots, prompt, DEFAULT_N_SINK) for one in output.attention]
        columns: Sequence[Tensor] = (
            rms(output.prenorm[0]),
            rms(output.fed[0]),
            step.logits.float().softmax(-1).amax(-1),
            *torch.stack(masses).mean(0).unbind(-1),
        )
        return torch.stack([column.mean() for column in columns])


@torch.inference_mode()
def draft(
    drafter: Drafter, target: Embeds, passage: Passage, k: int, *, measured: bool = False
) -> Drafted:
    """Draft K tokens greedily from each position of the answer, given the true tokens before it."""
    anchors, prefix = passage.anchors(k), Prefix.of(drafter, target, passage)
    matches, probabilities, figures = list[Tensor](), list[Tensor](), list[Tensor]()
    inside = ChainSums(anchors, k)
    for step, right in prefix.steps(anchors, k):
        matches.append(step.token_ids == right)
        probabilities.append(_probability(drafter, step.logits, right))
        if measured:
            figures.append(prefix.figures(step))
            inside.add(step.output, step.logits, prefix.context.slots, matches[-1])
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
