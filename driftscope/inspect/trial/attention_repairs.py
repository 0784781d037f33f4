"""Repairs of attention: rows in the layout of the other rotation, halves of the input exchanged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from driftscope.inspect.reference.latent_config import LatentConfig
from driftscope.inspect.trial.variant import Repair, Variant

_QUERIES, _CACHED = "q_b_proj.weight", "kv_a_proj_with_mqa.weight"
_PLAIN_INPUTS = ("q_proj", "k_proj", "v_proj")
_LATENT_INPUTS = ("q_a_proj", "kv_a_proj_with_mqa")
_FIRST = "midlayer.self_attn."


def attention_repairs(base: Variant) -> Iterator[Repair]:
    """Yield the repairs of attention's projections."""
    latent = base.config.latent
    yield _in_pairs(base, latent) if latent else _in_halves(base)
    if not base.config.reads_final_state:
        yield _halves(base, _LATENT_INPUTS if latent else _PLAIN_INPUTS)


def _in_halves(base: Variant) -> Repair:
    turned = tuple(f"{one}_proj.{kind}" for one in "qk" for kind in ("weight", "bias"))
    state = dict(base.state)
    for name in (each for each in base.state if each.endswith(turned)):
        heads = state[name].reshape(-1, base.config.layer.head_dim, *state[name].shape[1:])
        state[name] = torch.cat([heads[:, ::2], heads[:, 1::2]], 1).reshape(state[name].shape)
    return Repair(
        id="rope_layout",
        change="rows of q_proj and k_proj in halves, not in pairs",
        mistake="queries and keys are laid out for interleaved rotary positions",
        variant=replace(base, state=state),
        weights=True,
    )


def _in_pairs(base: Variant, latent: LatentConfig) -> Repair:
    state = dict(base.state)
    for name in state:
        if name.endswith(_QUERIES):
            heads = latent.qk_nope_head_dim + latent.qk_rope_head_dim
            state[name] = _paired(state[name], heads, latent.qk_nope_head_dim)
        elif name.endswith(_CACHED):
            state[name] = _paired(state[name], len(state[name]), latent.kv_lora_rank)
    return Repair(
        id="rope_layout",
        change="rotated rows of q_b_proj and kv_a_proj_with_mqa in pairs, not in halves",
        mistake="queries and keys are laid out for rotary positions in halves",
        variant=replace(base, state=state),
        weights=True,
    )


def _paired(rows: Tensor, head: int, plain: int) -> Tensor:
    """Return the rows with those after the first `plain` of each head in pairs, not in halves."""
    heads = rows.reshape(-1, head, rows.shape[-1])
    kept, turned = heads[:, :plain], heads[:, plain:]
    first, second = turned.chunk(2, 1)
    paired = torch.stack([first, second], 2).flatten(1, 2)
    return torch.cat([kept, paired], 1).reshape(rows.shape)


def _halves(base: Variant, parts: tuple[str, ...]) -> Repair:
    names = [f"{_FIRST}{part}.weight" for part in parts]
    halves = {name: torch.cat(base.state[name].chunk(2, -1)[::-1], -1) for name in names}
    return Repair(
        id="attention_halves",
        change=f"halves of the inputs of {', '.join(parts[:-1])} and {parts[-1]} exchanged",
        mistake="attention reads the state before the embedding, not after it",
        variant=replace(base, state={**base.state, **halves}),
        weights=True,
    )
