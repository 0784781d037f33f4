"""One drafted chain and everything measured on it: the ground truth of what a probe records.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from driftscope.inspect.reference.config import DEFAULT_N_SINK
from driftscope.inspect.reference.drafter import ChainKeys, Context, Drafter, Edit, StepOutput
from driftscope.inspect.reference.layers import Embeds, Target, at_least_float32
from driftscope.trace.records import edges_of
from driftscope.vocabulary import (
    BY_DEPTH,
    DISTANCE_MASS,
    GENERATED_MASS,
    PROMPT_MASS,
    SELF_MASS,
    SINK_MASS,
)

MASSES = (SINK_MASS, PROMPT_MASS, GENERATED_MASS, SELF_MASS)
PER_DEPTH = BY_DEPTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One chain of K drafted tokens. Tuples over depth have K entries, starting with depth 1.

    `position` is p. `token_ids[d-1]`, drafted at depth d, predicts token p+1+d; it is the target's
    id of the token, whatever the drafter's vocabulary. With several layers the masses have one
    entry per depth and layer, depth-major; `distance_mass` has one per depth, layer and bin.
    `in_rms` is the RMS of the hidden state that enters the first layer (at depth 1 the output of
    `fc`, whose RMS is `fc_rms`), `prenorm_rms` of the residual stream after the last MLP,
    `postnorm_rms` of that stream after the final norm, `fed_rms` of the state fed to the next
    depth. `aux_rms` has one entry per captured target layer, at slot p; `aux_norm_rms` has the RMS
    of the same states after `norm_before_fc` and `fc_norm`, None without either. `top1` is the
    largest probability of the drafter's softmax, over its own vocabulary; `entropy` is in nats. An
    EAGLE-1 drafter and an MTP head capture no layer and fuse at every depth: `aux_rms` and `fc_rms`
    are None, and `in_rms` is that of the state beside the embedding. An EAGLE-1 drafter has no
    final norm either: `postnorm_rms` is None.
    """

    position: int
    prompt_tokens: int
    token_ids: tuple[int, ...]
    sink_mass: tuple[float, ...]
    prompt_mass: tuple[float, ...]
    generated_mass: tuple[float, ...]
    self_mass: tuple[float, ...]
    distance_mass: tuple[float, ...]
    in_rms: tuple[float, ...]
    prenorm_rms: tuple[float, ...]
    postnorm_rms: tuple[float, ...] | None
    fed_rms: tuple[float, ...]
    top1: tuple[float, ...]
    entropy: tuple[float, ...]
    aux_rms: tuple[float, ...] | None
    aux_norm_rms: tuple[float, ...] | None
    fc_rms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """Results of one depth of A chains, each [A]; `masses` [A, 4, layers], see `class_masses`;
    `distances` [A, layers, bins], see `distance_masses`."""

    token_ids: Tensor
    masses: Tensor
    distances: Tensor
    in_rms: Tensor
    prenorm_rms: Tensor
    postnorm_rms: Tensor
    fed_rms: Tensor
    top1: Tensor
    entropy: Tensor


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


@torch.no_grad()
def draft_chains(
    target: Target,
    drafter: Drafter,
    *,
    anchors: Tensor,
    next_ids: Tensor,
    aux: tuple[Tensor, ...],
    context: Context,
    prompt_tokens: int,
    k: int,
    n_sink: int,
) -> list[Chain]:
    """Draft K tokens greedily from each anchor, all anchors at once.

    `anchors` [A] are the positions p of the chains and `next_ids` [A] the known tokens p+1; `aux`
    holds one [1, A, H] tensor of captured states per layer, at slot p; `context` covers at least
    the slots 0..max p.
    """
    fused = drafter.fuse(aux)
    steps = chain_steps(
        target,
        drafter,
        hidden=fused,
        token_ids=next_ids,
        anchors=anchors,
        context=context,
        k=k,
    )
    depths = [
        _measure(step, anchors, prompt_tokens, context.slots, n_sink=n_sink, k=k) for step in steps
    ]
    chains = _assemble(depths, anchors, aux, drafter.normed_aux(aux), fused, prompt_tokens)
    if not drafter.config.reads_final_state:
        return chains
    chains = [replace(chain, aux_rms=None, fc_rms=None) for chain in chains]
    if not drafter.config.eagle1:
        return chains
    return [replace(chain, postnorm_rms=None) for chain in chains]


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


def _measure(
    step: ChainStep, anchors: Tensor, prompt_tokens: int, slots: int, *, n_sink: int, k: int
) -> Depth:
    """Measure one depth."""
    output = step.output
    log_probs = step.logits.to(at_least_float32(step.logits.dtype)).log_softmax(-1)
    probs = log_probs.exp()
    masses = [class_masses(one[0], slots, prompt_tokens, n_sink) for one in output.attention]
    distances = [
        distance_masses(one[0], anchors, step.depth, n_sink, k) for one in output.attention
    ]
    return Depth(
        token_ids=step.token_ids,
        masses=torch.stack(masses, dim=-1),
        distances=torch.stack(distances, dim=1),
        in_rms=rms(step.hidden[0]),
        prenorm_rms=rms(output.prenorm[0]),
        postnorm_rms=rms(output.postnorm[0]),
        fed_rms=rms(output.fed[0]),
        top1=probs.amax(-1),
        entropy=-(probs * log_probs).sum(-1),
    )


def _assemble(
    depths: list[Depth],
    anchors: Tensor,
    aux: tuple[Tensor, ...],
    normed_aux: tuple[Tensor, ...] | None,
    fused: Tensor,
    prompt_tokens: int,
) -> list[Chain]:
    """Turn [A] per depth into one record per anchor."""
    columns = {
        name: _rows(torch.stack([getattr(depth, name) for depth in depths], 1))
        for name in PER_DEPTH
    }
    masses = torch.stack([depth.masses for depth in depths], 2).flatten(2)
    columns |= {name: _rows(masses[:, index]) for index, name in enumerate(MASSES)}
    distances = torch.stack([depth.distances for depth in depths], 1).flatten(1)
    columns[DISTANCE_MASS] = _rows(distances)
    tokens = torch.stack([depth.token_ids for depth in depths], 1).tolist()
    aux_rms, fc_rms = _over_layers(aux), rms(fused[0]).tolist()
    aux_norm_rms = _over_layers(normed_aux) if normed_aux else None
    return [
        Chain(
            position=position,
            prompt_tokens=prompt_tokens,
            token_ids=tuple(tokens[row]),
            aux_rms=aux_rms[row],
            aux_norm_rms=aux_norm_rms[row] if aux_norm_rms else None,
            fc_rms=fc_rms[row],
            **{name: rows[row] for name, rows in columns.items()},
        )
        for row, position in enumerate(anchors.tolist())
    ]


def _over_layers(aux: tuple[Tensor, ...]) -> list[tuple[float, ...]]:
    """Return the RMS of each captured layer, one tuple per anchor."""
    return _rows(torch.stack([rms(layer[0]) for layer in aux], 1))


def _rows(values: Tensor) -> list[tuple[float, ...]]:
    return [tuple(row) for row in values.tolist()]


@torch.no_grad()
def replay(
    target: Target,
    drafter: Drafter,
    tokens: Sequence[int],
    prompt_tokens: int,
    anchors: Sequence[int],
    k: int,
    n_sink: int = DEFAULT_N_SINK,
) -> list[Chain]:
    """Draft K tokens from each anchor p, given the true tokens 0..p+1 before it.

    The replay is teacher-forced and vectorised over the anchors. It repeats what a run drafted at
    position p of the same tokens, and computes in the dtype of the models.

    Raises ValueError for an anchor whose next token is not among `tokens`.
    """
    if not anchors:
        return []
    if min(anchors) < 0 or max(anchors) > len(tokens) - 2:
        raise ValueError(
            f"anchors must lie in 0..{len(tokens) - 2}: the token after each is needed; "
            f"got {min(anchors)}..{max(anchors)}"
        )
    ids = torch.tensor([list(tokens)])
    positions = torch.tensor(list(anchors))
    aux = target(ids[:, :-1], aux_layers=drafter.config.aux_layers).aux
    return draft_chains(
        target,
        drafter,
        anchors=positions,
        next_ids=ids[0, positions + 1],
        aux=tuple(layer[:, positions] for layer in aux),
        context=drafter.context(drafter.embed(ids[:, 1:], target), drafter.fuse(aux)),
        prompt_tokens=prompt_tokens,
        k=k,
        n_sink=n_sink,
    )
