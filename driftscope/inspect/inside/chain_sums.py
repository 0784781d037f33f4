"""Sums what happens inside a drafter over the chains of one prompt."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from driftscope.inspect.inside.inside_sums import InsideSums
from driftscope.inspect.reference.chain import class_masses, distance_masses, rms
from driftscope.inspect.reference.drafter import StepOutput
from driftscope.inspect.reference.replay import DEFAULT_N_SINK


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
