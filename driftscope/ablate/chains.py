"""Drafts from positions of the target's answer under one intervention.

To hide slots and to divide their attention among the others equals a mask before the softmax, and
to scale a set of slots to a share equals one offset of its logits per head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from driftscope.ablate.intervention import Attention, Intervention, Size
from driftscope.inspect.reference.chain import ChainStep, rms
from driftscope.inspect.reference.config import DEFAULT_N_SINK
from driftscope.inspect.reference.drafter import Edit
from driftscope.inspect.trial.drafting import Prefix

NEAREST_SLOTS = 64
"""Number of slots that LAST_SLOTS leaves visible, the query's own among them."""
_LEAST = 1e-30


class AttentionEdit:
    """Edits the attention of one chain, depth after depth."""

    def __init__(self, kind: Attention, anchors: Tensor, context_slots: int, n_sink: int) -> None:
        """`anchors` [A] are the chains' slots, and `n_sink` is the number of slots in the sink
        set."""
        self._kind = kind
        self._anchors = anchors
        self._context = context_slots
        self._n_sink = n_sink
        self._first: dict[int, Tensor] = {}
        """Share of the sink set at depth 1 by layer, [B, N, A, 1]."""

    def at(self, depth: int) -> Edit:
        """Return the edit of one depth."""

        def edit(layer: int, weights: Tensor) -> Tensor:
            if self._kind is Attention.RESTORE_SINK:
                return self._with_first_share(layer, weights)
            kept = weights * self._seen(depth, weights.shape[-1])
            return kept / kept.sum(-1, keepdim=True).clamp_min(_LEAST)

        return edit

    def _seen(self, depth: int, slots: int) -> Tensor:
        """Return which slots are seen, [A or 1, slots]; slots of the context come first."""
        at = torch.arange(slots, device=self._anchors.device)
        if self._kind is Attention.HIDE_CHAIN:
            return (at < self._context)[None]
        if self._kind is Attention.HIDE_SINK:
            return (at >= self._n_sink)[None]
        own = self._anchors[:, None] + 1 + at - self._context
        position = torch.where(at < self._context, at, own)
        return position > self._anchors[:, None] + depth - 1 - NEAREST_SLOTS

    def _with_first_share(self, layer: int, weights: Tensor) -> Tensor:
        sink = weights[..., : self._n_sink].sum(-1, keepdim=True)
        first = self._first.setdefault(layer, sink)
        others = weights[..., self._n_sink :] * ((1 - first) / (1 - sink).clamp_min(_LEAST))
        return torch.cat(
            [weights[..., : self._n_sink] * (first / sink.clamp_min(_LEAST)), others], -1
        )


_LEAST_RMS = 1e-12


class IntervenedChain:
    """Changes the chains of one passage as an intervention asks.

    With `right_states` the state of depth d is what `fc` makes of the target's states at the
    position before the one that is drafted; with `right_tokens` the token of that position is the
    target's.
    """

    def __init__(self, intervention: Intervention, prefix: Prefix, anchors: Tensor) -> None:
        """`anchors` [A] are the slots from which the chains start."""
        kind, slots = intervention.attention, prefix.context.slots
        self._made, self._prefix, self._anchors = intervention, prefix, anchors
        self._edit = AttentionEdit(kind, anchors, slots, DEFAULT_N_SINK) if kind else None
        self._first: Tensor | None = None
        """RMS of the state after depth 1, [1, A]."""

    def edit(self, depth: int) -> Edit | None:
        """Return the edit of attention at a depth."""
        return self._edit.at(depth) if self._edit else None

    def fed(self, step: ChainStep) -> tuple[Tensor, Tensor]:
        """Return the tokens [A] and the state [1, A, H] that the next depth reads."""
        at = self._anchors + step.depth
        tokens = self._prefix.passage.ids[at + 1] if self._made.right_tokens else step.token_ids
        return tokens, self._prefix.fused[:, at] if self._made.right_states else self._state(step)

    def _state(self, step: ChainStep) -> Tensor:
        output = step.output
        if self._made.size is Size.NORMED:
            return output.postnorm
        size = rms(output.fed)
        if self._first is None:
            self._first = size
        elif self._made.size is Size.PINNED:
            return output.fed * (self._first / size.clamp_min(_LEAST_RMS))[..., None]
        return output.fed


@dataclass(frozen=True, slots=True, kw_only=True)
class AblatedDraft:
    """Drafts of one passage from A positions."""

    matches: Tensor
    """Whether each drafted token is the target's, [A, K]."""
    figures: Tensor
    """Means over the positions of `trial.drafting.FIGURES`, [K, figures]."""
    rejections: Tensor
    """A row for each chain that ends before K, [rejections, 2]: the rank that the drafter gives to
    the target's token, 0 if it cannot draft it; and the probability of the drafted token as a share
    of that of the target's own, 0 unless it is the target's second choice."""


@torch.inference_mode()
def ablated_draft(
    prefix: Prefix, k: int, intervention: Intervention, anchors: Tensor
) -> AblatedDraft:
    """Draft K tokens greedily from the slots `anchors` [A], given the true tokens before each."""
    matches, figures, rejections = list[Tensor](), list[Tensor](), list[Tensor]()
    change = IntervenedChain(intervention, prefix, anchors)
    going_on = torch.ones(len(anchors), dtype=torch.bool, device=anchors.device)
    for step, right in prefix.steps(anchors, k, change):
        matches.append(step.token_ids == right)
        figures.append(prefix.figures(step))
        ends = (going_on & ~matches[-1]).nonzero()[:, 0]
        # The rows of the chains `ends` [R], whose tokens are not those of `right` [A].
        logits, passage = step.logits[ends].float(), prefix.passage
        known = prefix.drafter.target_ids(torch.arange(logits.shape[-1], device=logits.device))
        is_right = known == right[ends][:, None]
        own = torch.where(is_right, logits, -torch.inf).amax(-1, keepdim=True)
        rank = torch.where(is_right.any(-1), 1 + (logits > own).sum(-1), 0)
        closeness = torch.zeros(len(ends), device=logits.device)
        if passage.runner_up is not None and passage.closeness is not None:
            at = anchors[ends] + 1 + step.depth - passage.prompt_tokens
            second = step.token_ids[ends] == passage.runner_up[at]
            closeness = torch.where(second, passage.closeness[at], 0.0)
        rejections.append(torch.stack([rank.to(closeness), closeness], 1))
        going_on &= matches[-1]
    return AblatedDraft(
        matches=torch.stack(matches, 1),
        figures=torch.stack(figures),
        rejections=torch.cat(rejections),
    )


LEAST_NGRAM, MOST_NGRAM = 2, 5
"""Lengths of an n-gram that is looked up, vLLM's `prompt_lookup_min` and `prompt_lookup_max`."""


def looked_up(ids: Tensor, anchors: Tensor, k: int) -> Tensor:
    """Return whether each token that n-gram lookup drafts is the target's, [A, K].

    At each of `anchors` [A] the next token is known, as it is to a drafter. The longest n-gram that
    ends with it is looked up, and what followed its earliest occurrence is drafted.
    """
    matches = torch.zeros((len(anchors), k), dtype=torch.bool, device=ids.device)
    for row, anchor in enumerate(anchors.tolist()):
        known = anchor + 2
        for n in range(min(MOST_NGRAM, known - 1), LEAST_NGRAM - 1, -1):
            found = (ids[: known - 1].unfold(0, n, 1) == ids[known - n : known]).all(-1).nonzero()
            if len(found):
                drafted = ids[int(found[0]) + n : known][:k]
                matches[row, : len(drafted)] = drafted == ids[known : known + len(drafted)]
                break
    return matches


def better_of(first: Tensor, second: Tensor) -> Tensor:
    """Return, row by row, the matches [A, K] that are accepted further."""
    accepted = [matches.long().cumprod(-1).sum(-1) for matches in (first, second)]
    return torch.where((accepted[1] > accepted[0])[:, None], second, first)
