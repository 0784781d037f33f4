"""The drafter: EAGLE-3 and EAGLE-3.1 with their options, one step of many chains at once.

Slot i pairs the target's captured hidden states of token i with the embedding of token i+1. The
chain anchored at slot p asks, at depth d (1-based), from slot p+d-1, and sees the slots 0..p+d-1:
those up to p as the target's true states make them, those after it as the chain made them.
Training, replay and generation all run these methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from driftscope.inspect.reference.config import DrafterConfig
from driftscope.inspect.reference.layers import MLP, Attention, RMSNorm, Rotary, at_least_float32
from driftscope.inspect.reference.target import Target, causal_attention


@dataclass(frozen=True, slots=True)
class Slots:
    """Keys and values [B, N, S, D] of some slots in one layer."""

    keys: Tensor
    values: Tensor

    def append(self, other: Slots) -> Slots:
        """These slots and later ones behind them."""
        return Slots(
            torch.cat([self.keys, other.keys], 2), torch.cat([self.values, other.values], 2)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The verified slots 0..S-1, one entry per layer."""

    layers: tuple[Slots, ...]

    @property
    def slots(self) -> int:
        """S."""
        return self.layers[0].keys.shape[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainKeys:
    """What the chains made themselves: per layer one [B, N, A, D] per depth from 2 on."""

    layers: tuple[tuple[Slots, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """One depth of A chains.

    `prenorm` [B, A, H]: the residual stream after the MLP; `postnorm`: after the final norm, what
    `lm_head` reads; `fed`: what the next depth gets, one of the two. `attention`, per layer
    [B, N, A, S + d - 1]: softmax over the context slots, then over the chain's own, in order.
    """

    prenorm: Tensor
    postnorm: Tensor
    fed: Tensor
    attention: tuple[Tensor, ...]
    chain_keys: ChainKeys


class LaterLayer(nn.Module):
    """A layer behind the first, under the prefix `layers.`: reads the residual stream alone."""

    def __init__(self, config: DrafterConfig, inputs: int = 1) -> None:
        super().__init__()
        layer = config.layer
        size, eps = layer.hidden_size, layer.rms_norm_eps
        self.self_attn = Attention(layer, inputs * size, qk_norm=config.qk_norm)
        self.mlp = MLP(layer)
        self.input_layernorm = RMSNorm(size, eps)
        self.post_attention_layernorm = RMSNorm(size, eps)

    def enter(self, embedding: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """What attention reads, and the residual stream [B, S, H] that it adds to."""
        return self.input_layernorm(hidden), hidden

    def leave(self, residual: Tensor, heads: Tensor) -> Tensor:
        """The residual stream [B, S, H] behind attention, whose heads are [B, N, S, D], and MLP."""
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
        """Attention reads [B, S, 2H]."""
        normed = self.hidden_norm(hidden)
        x = torch.cat([self.input_layernorm(embedding), normed], -1)
        return x, normed if self._norm_before_residual else hidden


class Drafter(nn.Module):
    """Decoder layers over the target's captured states, with an output head of their own."""

    d2t: Tensor

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        layer, inputs = config.layer, len(config.aux_layers) * config.aux_size
        size, eps = layer.hidden_size, layer.rms_norm_eps
        self.config = config
        if config.target_hidden_size:
            self.embed_tokens = nn.Embedding(layer.vocab_size, size)
        self.fc = nn.Linear(inputs, size, bias=False)
        if config.norm_before_fc:
            self.input_norm = RMSNorm(inputs, eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(config.aux_size, eps) for _ in config.aux_layers)
        self.midlayer = FirstLayer(config)
        later = range(1, layer.num_hidden_layers)
        self.layers = nn.ModuleDict({str(index): LaterLayer(config) for index in later})
        self.norm = RMSNorm(size, eps)
        vocabulary = config.draft_vocab_size or layer.vocab_size
        self.lm_head = nn.Linear(size, vocabulary, bias=False)
        if config.draft_vocab_size:
            self.register_buffer("d2t", torch.zeros(vocabulary, dtype=torch.long))
        self.rotary = Rotary(layer)

    def embed(self, ids: Tensor, target: Target) -> Tensor:
        """Target token ids [...] -> [..., H]; by an embedding of its own, or the target's."""
        if not self.config.target_hidden_size:
            return target.embed(ids)
        embedded: Tensor = self.embed_tokens(ids)
        return embedded

    def target_ids(self, ids: Tensor) -> Tensor:
        """Ids in the drafter's vocabulary -> in the target's; `d2t` holds the differences."""
        return ids + self.d2t[ids] if self.config.draft_vocab_size else ids

    def normed_aux(self, aux: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """The captured states, each [..., H], as `fc` reads them; None if it reads them raw.

        After `norm_before_fc` these are the chunks of the one normed concatenation.
        """
        if not (self.config.norm_before_fc or self.config.fc_norm):
            return None
        if self.config.norm_before_fc:
            aux = self.input_norm(torch.cat(list(aux), -1)).chunk(len(aux), -1)
        if self.config.fc_norm:
            aux = [norm(x) for norm, x in zip(self.fc_norm, aux, strict=True)]
        return tuple(aux)

    def fuse(self, aux: Sequence[Tensor]) -> Tensor:
        """Captured states, one [..., H] per layer -> the hidden state [..., H] of depth 1."""
        fused: Tensor = self.fc(torch.cat(list(self.normed_aux(aux) or aux), -1))
        return fused

    def context(self, embedding: Tensor, fused: Tensor, before: Context | None = None) -> Context:
        """The context `before`, if any, with the next S verified slots behind it.

        `embedding` [B, S, H] is of each slot's NEXT token, `fused` [B, S, H] what `fuse` gave.
        """
        start = before.slots if before else 0
        positions = torch.arange(start, start + fused.shape[1], device=fused.device)
        hidden, layers = fused, list[Slots]()
        for index, layer in enumerate(self._layers()):
            x, residual = layer.enter(embedding, hidden)
            slots = Slots(*layer.self_attn.keys_values(x, self.rotary, positions))
            slots = before.layers[index].append(slots) if before else slots
            layers.append(slots)
            if len(layers) < self.config.layer.num_hidden_layers:
                queries = layer.self_attn.queries(x, self.rotary, positions)
                mixed = causal_attention(queries, slots.keys, slots.values, positions)
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
    ) -> StepOutput:
        """Run depth `depth` of the chains anchored at slots `anchors` [A].

        `embedding` [B, A, H] is of the newest token of each chain, `hidden` [B, A, H] is `fuse`'s
        output at depth 1 and the previous `fed` after it.
        """
        positions = anchors + depth - 1
        attention, owns = list[Tensor](), list[tuple[Slots, ...]]()
        for index, layer in enumerate(self._layers()):
            x, residual = layer.enter(embedding, hidden)
            queries = layer.self_attn.queries(x, self.rotary, positions)
            slots, own = context.layers[index], chain_keys.layers[index] if depth > 2 else ()
            if depth > 1:
                own = (*own, Slots(*layer.self_attn.keys_values(x, self.rotary, positions)))
            weights = self._attention(queries, anchors, slots, own)
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

    def _layers(self) -> tuple[LaterLayer, ...]:
        """All layers, in the order of the network."""
        return (self.midlayer, *self.layers.values())  # type: ignore[arg-type]

    def _attention(
        self, queries: Tensor, anchors: Tensor, context: Slots, own: tuple[Slots, ...]
    ) -> Tensor:
        """Softmax of q.k / sqrt(D) over slots 0..p and the chain's own; 0 on slots after p."""
        queries = queries * self.config.layer.head_dim**-0.5
        slots = torch.arange(context.keys.shape[2], device=context.keys.device)
        scores = queries @ context.keys.transpose(-1, -2)
        scores = scores.masked_fill(slots > anchors[:, None], float("-inf"))
        chain = [(queries * one.keys).sum(-1, keepdim=True).to(scores.dtype) for one in own]
        return torch.cat([scores, *chain], -1).to(at_least_float32(scores.dtype)).softmax(-1)


def _mix(attention: Tensor, context: Slots, own: tuple[Slots, ...]) -> Tensor:
    """Values weighted by `attention` [B, N, A, S + d - 1] -> [B, N, A, D]."""
    slots = context.values.shape[2]
    mixed = attention[..., :slots] @ context.values
    for at, one in enumerate(own, start=slots):
        mixed = mixed + attention[..., at : at + 1] * one.values
    return mixed
