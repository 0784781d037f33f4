"""Drafts from positions of the target's answer under one intervention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from driftscope.ablate.attention_edit import AttentionEdit
from driftscope.ablate.intervention import Intervention, Size
from driftscope.inspect.reference.chain import rms
from driftscope.inspect.reference.drafter import ChainKeys, Context, Drafter, StepOutput
from driftscope.inspect.reference.replay import DEFAULT_N_SINK
from driftscope.inspect.reference.target import Embeds
from driftscope.inspect.trial.drafting import figures_of
from driftscope.inspect.trial.passages import Passage

_LEAST_RMS = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class AblatedDraft:
    """Drafts of one passage from A positions."""

    matches: Tensor
    """Whether each drafted token is the target's, [A, K]."""
    tokens: Tensor
    """Drafted tokens in the target's vocabulary, [A, K]."""
    figures: Tensor
    """Means over the positions of `trial.drafting.FIGURES`, [K, figures]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A passage as the drafter knows it before any chain: the same for every intervention."""

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


@torch.inference_mode()
def ablated_draft(
    prefix: Prefix, k: int, intervention: Intervention, anchors: Tensor
) -> AblatedDraft:
    """Draft K tokens greedily from the slots `anchors` [A], given the true tokens before each.

    With `right_states` the state of depth d is what `fc` makes of the target's states at the
    position before the one that is drafted; with `right_tokens` the token of that position is the
    target's.
    """
    drafter, target, context = prefix.drafter, prefix.target, prefix.context
    ids, fused = prefix.passage.ids, prefix.fused
    edited = intervention.attention and AttentionEdit(
        intervention.attention, anchors, context.slots, DEFAULT_N_SINK
    )
    hidden, newest, chain_keys = fused[:, anchors], ids[anchors + 1], ChainKeys()
    first: Tensor | None = None
    matches, tokens, figures = list[Tensor](), list[Tensor](), list[Tensor]()
    for depth in range(1, k + 1):
        step = drafter.step(
            embedding=drafter.embed(newest, target)[None],
            hidden=hidden,
            depth=depth,
            anchors=anchors,
            context=context,
            chain_keys=chain_keys,
            edit=edited.at(depth) if edited else None,
        )
        logits = drafter.lm_head(step.postnorm)[0]
        guess = drafter.target_ids(logits.argmax(-1))
        right = ids[anchors + 1 + depth]
        matches.append(guess == right)
        tokens.append(guess)
        figures.append(
            figures_of(step, logits.float(), context.slots, prefix.passage.prompt_tokens)
        )
        newest = right if intervention.right_tokens else guess
        # A table of wrong differences can lead past the vocabulary.
        newest = newest.clamp(0, drafter.config.layer.vocab_size - 1)
        fed = _fed(step, intervention.size, first)
        first = rms(fed) if first is None else first
        hidden = fused[:, anchors + depth] if intervention.right_states else fed
        chain_keys = step.chain_keys
    return AblatedDraft(
        matches=torch.stack(matches, 1),
        tokens=torch.stack(tokens, 1),
        figures=torch.stack(figures),
    )


def _fed(step: StepOutput, size: Size | None, first: Tensor | None) -> Tensor:
    """Return the state for the next depth; `first` is the RMS after depth 1, [B, A]."""
    if size is Size.NORMED:
        return step.postnorm
    if size is Size.PINNED and first is not None:
        return step.fed * (first / rms(step.fed).clamp_min(_LEAST_RMS))[..., None]
    return step.fed
