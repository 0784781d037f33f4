"""The drafter: EAGLE-3 and EAGLE-3.1, one step of many chains at once.

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

from driftscope_probes.reference.config import DecoderConfig, DrafterConfig
from driftscope_probes.reference.layers import MLP, Attention, RMSNorm, Rotary, at_least_float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Keys and values [B, N, S, D] of the verified slots 0..S-1."""

    keys: Tensor
    values: Tensor

    def append(self, other: Context) -> Context:
        """This context with later slots behind it."""
        return Context(
            keys=torch.cat([self.keys, other.keys], 2),
            values=torch.cat([self.values, other.values], 2),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainKeys:
    """Keys and values that the chains made themselves: one [B, N, A, D] per depth from 2 on."""

    keys: tuple[Tensor, ...] = ()
    values: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """One depth of A chains.

    `prenorm` [B, A, H]: the residual stream after the MLP; `postnorm`: after the final norm, what
    `lm_head` reads; `fed`: what the next depth gets, one of the two. `attention`
    [B, N, A, S + d - 1]: softmax over the context slots, then over the chain's own, in order.
    """

    prenorm: Tensor
    postnorm: Tensor
    fed: Tensor
    attention: Tensor
    chain_keys: ChainKeys


class DrafterLayer(nn.Module):
    """The parameters under the prefix `midlayer.`; attention reads embedding and hidden state."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config, 2 * config.hidden_size)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def attention_input(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        """Two [B, S, H] -> [B, S, 2H]."""
        return torch.cat([self.input_layernorm(embedding), self.hidden_norm(hidden)], -1)


class Drafter(nn.Module):
    """One decoder layer over the target's captured states, with an output head of its own."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        layer = config.layer
        size, count = layer.hidden_size, len(config.aux_layers)
        self.config = config
        self.fc = nn.Linear(count * size, size, bias=False)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(size, layer.rms_norm_eps) for _ in range(count))
        self.midlayer = DrafterLayer(layer)
        self.norm = RMSNorm(size, layer.rms_norm_eps)
        self.lm_head = nn.Linear(size, layer.vocab_size, bias=False)
        self.rotary = Rotary(layer)

    def normed_aux(self, aux: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """The captured states, each [..., H], after `fc_norm`; None without one (EAGLE-3)."""
        if not self.config.fc_norm:
            return None
        return tuple(norm(x) for norm, x in zip(self.fc_norm, aux, strict=True))

    def fuse(self, aux: Sequence[Tensor]) -> Tensor:
        """Captured states, one [..., H] per layer -> the hidden state [..., H] of depth 1."""
        fused: Tensor = self.fc(torch.cat(list(self.normed_aux(aux) or aux), -1))
        return fused

    def context(self, embedding: Tensor, fused: Tensor, start: int = 0) -> Context:
        """Keys and values of the verified slots start..start+S-1.

        `embedding` [B, S, H] is of each slot's NEXT token, `fused` [B, S, H] what `fuse` gave.
        """
        positions = torch.arange(start, start + fused.shape[1])
        x = self.midlayer.attention_input(embedding, fused)
        keys, values = self.midlayer.self_attn.keys_values(x, self.rotary, positions)
        return Context(keys=keys, values=values)

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
        layer = self.midlayer
        positions = anchors + depth - 1
        x = layer.attention_input(embedding, hidden)
        queries = layer.self_attn.queries(x, self.rotary, positions)
        if depth > 1:
            keys, values = layer.self_attn.keys_values(x, self.rotary, positions)
            chain_keys = ChainKeys(
                keys=(*chain_keys.keys, keys), values=(*chain_keys.values, values)
            )
        attention = self._attention(queries, anchors, context, chain_keys)
        mixed = _mix(attention.to(context.values.dtype), context, chain_keys)
        residual = hidden + layer.self_attn.output(mixed)
        prenorm = residual + layer.mlp(layer.post_attention_layernorm(residual))
        postnorm = self.norm(prenorm)
        return StepOutput(
            prenorm=prenorm,
            postnorm=postnorm,
            fed=postnorm if self.config.norm_output else prenorm,
            attention=attention,
            chain_keys=chain_keys,
        )

    def _attention(
        self, queries: Tensor, anchors: Tensor, context: Context, chain_keys: ChainKeys
    ) -> Tensor:
        """Softmax of q.k / sqrt(D) over slots 0..p and the chain's own; 0 on slots after p."""
        queries = queries * self.config.layer.head_dim**-0.5
        slots = torch.arange(context.keys.shape[2])
        scores = queries @ context.keys.transpose(-1, -2)
        scores = scores.masked_fill(slots > anchors[:, None], float("-inf"))
        own = [(queries * keys).sum(-1, keepdim=True).to(scores.dtype) for keys in chain_keys.keys]
        return torch.cat([scores, *own], -1).to(at_least_float32(scores.dtype)).softmax(-1)


def _mix(attention: Tensor, context: Context, chain_keys: ChainKeys) -> Tensor:
    """Values weighted by `attention` [B, N, A, S + d - 1] -> [B, N, A, D]."""
    slots = context.values.shape[2]
    mixed = attention[..., :slots] @ context.values
    for own, values in enumerate(chain_keys.values, start=slots):
        mixed = mixed + attention[..., own : own + 1] * values
    return mixed
