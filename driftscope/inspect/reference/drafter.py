"""The reference drafter: EAGLE-1, 3 and 3.1 with their options, and MTP heads as MiMo's; one step
of many chains at once.

Slot i pairs the target's captured hidden states of token i with the embedding of token i+1. The
chain anchored at slot p queries, at depth d (1-based), from slot p+d-1 and sees the slots 0..p+d-1:
slots up to p contain the target's true states, later slots the chain's own. Training, replay and
generation all run these methods.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from driftscope.inspect.reference.config import DrafterConfig
from driftscope.inspect.reference.layers import (
    MLP,
    Embeds,
    GroupedQueryAttention,
    LatentAttention,
    RMSNorm,
    Rotary,
    at_least_float32,
    causal_attention,
)
from driftscope.trace.records import edges_of


@dataclass(frozen=True, slots=True)
class Slots:
    """Keys and values [B, N, S, D] of some slots in one layer. With latent attention the size of
    values differs."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The verified slots 0..S-1, one entry per layer."""

    layers: tuple[Slots, ...]

    @property
    def slots(self) -> int:
        """Number of slots S."""
        return self.layers[0].keys.shape[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainKeys:
    """Keys and values computed by the chains: per layer one [B, N, A, D] per depth from 2 on."""

    layers: tuple[tuple[Slots, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """One depth of A chains.

    `prenorm` [B, A, H] is the residual stream after the MLP; `postnorm` is that stream after the
    final norm, the input of `lm_head`; `fed` is the one of the two that the next depth gets.
    `attention` [B, N, A, S + d - 1] per layer is the softmax over the context slots, then over the
    chain's own slots, in order.
    """

    prenorm: Tensor
    postnorm: Tensor
    fed: Tensor
    attention: tuple[Tensor, ...]
    chain_keys: ChainKeys


Edit = Callable[[int, Tensor], Tensor]
"""Function from the index of a layer and its attention, like `StepOutput.attention`, to another
attention of the same shape, whose rows sum to 1."""


class LaterLayer(nn.Module):
    """A layer after the first, under the prefix `layers.`; it reads only the residual stream."""

    def __init__(self, config: DrafterConfig, inputs: int = 1) -> None:
        super().__init__()
        layer = config.layer
        size, eps = layer.hidden_size, layer.rms_norm_eps
        self.self_attn = _projections(config, inputs * size)
        self.mlp = MLP(layer, bias=config.mlp_bias)
        self.input_layernorm = RMSNorm(size, eps)
        self.post_attention_layernorm = RMSNorm(size, eps)

    def enter(self, embedding: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return attention's input, and the residual stream [B, S, H] that it is added to."""
        return self.input_layernorm(hidden), hidden

    def leave(self, residual: Tensor, heads: Tensor) -> Tensor:
        """Return the residual stream [B, S, H] after attention, heads [B, N, S, D], and MLP."""
        residual = residual + self.self_attn.output(heads)
        mixed: Tensor = residual + self.mlp(self.post_attention_layernorm(residual))
        return mixed


class FirstLayer(LaterLayer):
    """The layer under the prefix `midlayer.`: attention reads embedding and hidden state."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config, inputs=2)
        self.hidden_norm = RMSNorm(config.layer.hidden_size, config.layer.rms_norm_eps)
        self._norm_before_residual = config.norm_before_residual

    def enter(self, embedding: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of attention, [B, S, 2H], and the residual stream [B, S, H]."""
        normed = self.hidden_norm(hidden)
        x = torch.cat([self.input_layernorm(embedding), normed], -1)
        return x, normed if self._norm_before_residual else hidden


class UnnormedLayer(LaterLayer):
    """The first layer of an EAGLE-1 drafter: attention reads the output of `fc` as it is."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        del self.input_layernorm

    def enter(self, embedding: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the input of attention and the residual stream, the same [B, S, H]."""
        return hidden, hidden


class ReferenceDrafter(nn.Module):
    """Decoder layers over the target's captured states, with a separate output head."""

    d2t: Tensor

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        layer, inputs = config.layer, len(config.aux_layers) * config.aux_size
        size, eps = layer.hidden_size, layer.rms_norm_eps
        inputs += size if config.reads_final_state else 0
        self.config = config
        if config.target_hidden_size:
            self.embed_tokens = nn.Embedding(layer.vocab_size, size)
        self.fc = nn.Linear(inputs, size, bias=config.fc_bias)
        if config.norm_before_fc:
            self.input_norm = RMSNorm(inputs, eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(config.aux_size, eps) for _ in config.aux_layers)
        if config.mtp:
            self.token_layernorm, self.hidden_layernorm = RMSNorm(size, eps), RMSNorm(size, eps)
        first = UnnormedLayer if config.eagle1 else FirstLayer
        self.midlayer = LaterLayer(config) if config.mtp else first(config)
        later = range(1, layer.num_hidden_layers)
        self.layers = nn.ModuleDict({str(index): LaterLayer(config) for index in later})
        self.norm = nn.Identity() if config.eagle1 else RMSNorm(size, eps)
        vocabulary = config.draft_vocab_size or layer.vocab_size
        self.lm_head = nn.Linear(size, vocabulary, bias=False)
        if config.draft_vocab_size:
            self.register_buffer("d2t", torch.zeros(vocabulary, dtype=torch.long))
        self.rotary = Rotary(layer)

    def embed(self, ids: Tensor, target: Embeds) -> Tensor:
        """Embed target token ids [...] to [..., H], by the drafter's embedding or the target's."""
        if not self.config.target_hidden_size:
            return target.embed(ids)
        embedded: Tensor = self.embed_tokens(ids)
        return embedded

    def target_ids(self, ids: Tensor) -> Tensor:
        """Convert ids from the drafter's vocabulary to the target's, by differences in `d2t`."""
        return ids + self.d2t[ids] if self.config.draft_vocab_size else ids

    def normed_aux(self, aux: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """Return the captured states, each [..., H], as `fc` reads them; None if it reads them raw.

        After `norm_before_fc` they are the chunks of the one normed concatenation.
        """
        if not (self.config.norm_before_fc or self.config.fc_norm):
            return None
        if self.config.norm_before_fc:
            aux = self.input_norm(torch.cat(list(aux), -1)).chunk(len(aux), -1)
        if self.config.fc_norm:
            aux = [norm(x) for norm, x in zip(self.fc_norm, aux, strict=True)]
        return tuple(aux)

    def fuse(self, aux: Sequence[Tensor]) -> Tensor:
        """Combine captured states, one [..., H] per layer, into depth 1's state [..., H]. That of
        an EAGLE-1 drafter or MTP head is the one state as it is."""
        if self.config.reads_final_state:
            (state,) = aux
            return state
        fused: Tensor = self.fc(torch.cat(list(self.normed_aux(aux) or aux), -1))
        return fused

    def context(self, embedding: Tensor, fused: Tensor) -> Context:
        """Return the context of S verified slots: `embedding` [B, S, H] belongs to each slot's NEXT
        token, `fused` [B, S, H] is the output of `fuse`."""
        positions = torch.arange(fused.shape[1], device=fused.device)
        if self.config.mtp:  # engines hide the token of the first slot from it
            embedding = embedding * (positions > 0)[:, None]
        hidden, layers = self._with_embedding(embedding, fused), list[Slots]()
        for layer in self._layers():
            x, residual = layer.enter(embedding, hidden)
            slots = Slots(*layer.self_attn.keys_values(x, self.rotary, positions))
            layers.append(slots)
            if len(layers) < self.config.layer.num_hidden_layers:
                queries = layer.self_attn.queries(x, self.rotary, positions)
                mixed = causal_attention(queries, slots.keys, slots.values)
                hidden = layer.leave(residual, mixed)
        return Context(layers=tuple(layers))

    def step(
        self,
        *,
        embedding: Tensor,
        hidden: Tensor,
        depth: int,
        anchors: Tensor,
        context: Context,
        chain_keys: ChainKeys,
        edit: Edit | None = None,
    ) -> StepOutput:
        """Run depth `depth` of the chains anchored at slots `anchors` [A].

        `embedding` [B, A, H] belongs to the newest token of each chain; `hidden` [B, A, H] is
        `fuse`'s output at depth 1 and the previous `fed` after it. `edit` replaces the attention
        of each layer before values are read.
        """
        positions = anchors + depth - 1
        hidden = self._with_embedding(embedding, hidden)
        attention, owns = list[Tensor](), list[tuple[Slots, ...]]()
        for index, layer in enumerate(self._layers()):
            x, residual = layer.enter(embedding, hidden)
            queries = layer.self_attn.queries(x, self.rotary, positions)
            slots, own = context.layers[index], chain_keys.layers[index] if depth > 2 else ()
            if depth > 1:
                own = (*own, Slots(*layer.self_attn.keys_values(x, self.rotary, positions)))
            weights = self._attention(queries, anchors, slots, own)
            weights = weights if edit is None else edit(index, weights)
            hidden = layer.leave(residual, _mix(weights.to(slots.values.dtype), slots, own))
            attention.append(weights)
            owns.append(own)
        postnorm = self.norm(hidden)
        return StepOutput(
            prenorm=hidden,
            postnorm=postnorm,
            fed=postnorm if self.config.norm_output else hidden,
            attention=tuple(attention),
            chain_keys=ChainKeys(layers=tuple(owns)),
        )

    def _with_embedding(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        """Return what enters the first layer beside the embedding, [B, S, H]."""
        if not self.config.reads_final_state:
            return hidden
        if self.config.mtp:
            inputs = self.hidden_layernorm(hidden), self.token_layernorm(embedding)
        else:
            inputs = embedding, hidden
        both: Tensor = self.fc(torch.cat(inputs, -1))
        return both

    def _layers(self) -> tuple[LaterLayer, ...]:
        """Return all layers, in the order of the network."""
        return (self.midlayer, *self.layers.values())  # type: ignore[arg-type]

    def _attention(
        self, queries: Tensor, anchors: Tensor, context: Slots, own: tuple[Slots, ...]
    ) -> Tensor:
        """Return the softmax of q.k / sqrt(D) over slots 0..p and the chain's own; 0 after p."""
        queries = queries * queries.shape[-1] ** -0.5
        slots = torch.arange(context.keys.shape[2], device=context.keys.device)
        scores = queries @ context.keys.transpose(-1, -2)
        scores = scores.masked_fill(slots > anchors[:, None], float("-inf"))
        chain = [(queries * one.keys).sum(-1, keepdim=True).to(scores.dtype) for one in own]
        return torch.cat([scores, *chain], -1).to(at_least_float32(scores.dtype)).softmax(-1)


def _projections(config: DrafterConfig, input_size: int) -> GroupedQueryAttention | LatentAttention:
    if config.latent:
        return LatentAttention(config.layer, config.latent, input_size)
    return GroupedQueryAttention(
        config.layer,
        input_size,
        qk_norm=config.qk_norm,
        bias=config.attention_bias,
        output_bias=config.output_bias,
    )


def _mix(attention: Tensor, context: Slots, own: tuple[Slots, ...]) -> Tensor:
    """Return the values weighted by `attention` [B, N, A, S + d - 1], as [B, N, A, D]."""
    slots = context.values.shape[2]
    mixed = attention[..., :slots] @ context.values
    for at, one in enumerate(own, start=slots):
        mixed = mixed + attention[..., at : at + 1] * one.values
    return mixed


FIRST, REFERENCE = "layers.0.", "midlayer."
"""Names of the first layer in files of some formats, and in the reference drafter."""


def reference_name(name: str) -> str:
    """Return the name in the reference drafter of a tensor in a file; some formats call the first
    layer `layers.0.`."""
    return REFERENCE + name.removeprefix(FIRST) if name.startswith(FIRST) else name


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
    drafter: ReferenceDrafter,
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
