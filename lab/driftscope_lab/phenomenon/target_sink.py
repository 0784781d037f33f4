"""Measures whether the heads of a target have an attention sink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from driftscope.inspect.reference.drafter import Target, load_target
from driftscope.inspect.reference.layers import TargetLayer
from driftscope_lab.trio import encode, load_prompts
from driftscope_lab.trio.prompts import fitting, templated

HEAD_WITH_SINK = 0.3
"""Average weight on the first token from which on a head has a sink (arXiv 2410.10781)."""
FIRST_QUERY = 64
"""First query that is measured: earlier queries have too few slots for their weight on the first
slot to be meaningful; the same paper starts there."""
TARGET_TOKENS = 256
"""Context in which attention is measured, in tokens."""


@torch.no_grad()
def first_token_mass(target: Target, ids: Tensor) -> list[list[float]]:
    """Return the mean weight on slot 0 by layer and head, over queries from FIRST_QUERY on.

    `ids` [B, S] are the tokens. Raises ValueError if there is no such query.
    """
    if ids.shape[1] <= FIRST_QUERY:
        raise ValueError(f"{ids.shape[1]} tokens, more than {FIRST_QUERY} are needed")
    by_layer: list[list[float]] = []

    def look(layer: TargetLayer, arguments: tuple[Tensor, ...]) -> None:
        x, rotary, positions = arguments[:3]
        normed = layer.input_layernorm(x)
        queries = layer.self_attn.queries(normed, rotary, positions)  # type: ignore[arg-type]
        keys, _ = layer.self_attn.keys_values(normed, rotary, positions)  # type: ignore[arg-type]
        scores = queries @ keys.transpose(-1, -2) * target.config.head_dim**-0.5
        hidden = positions[None, :] > positions[:, None]
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        by_layer.append(weights[:, :, FIRST_QUERY:, 0].mean((0, 2)).tolist())

    handles = [layer.register_forward_pre_hook(look) for layer in target.model.layers]
    try:
        target(ids)
    finally:
        for handle in handles:
            handle.remove()
    return by_layer


def target_lines(weights: Path) -> Iterator[str]:
    """Yield the mean attention of the target's heads on the first token, by layer."""

    def tokens(text: str) -> list[int]:
        return encode(text, weights)

    def length(text: str) -> int:
        return len(tokens(text))

    rows = [
        tokens(templated(prompt.conversation(fitting(prompt, 2 * TARGET_TOKENS, length))))
        for prompt in load_prompts(weights)
    ]
    rows = [row[:TARGET_TOKENS] for row in rows]
    ids = torch.tensor([row for row in rows if len(row) == TARGET_TOKENS])
    mass = first_token_mass(load_target(weights / "target"), ids)
    upper = [head for layer in mass[len(mass) // 2 :] for head in layer]
    have = sum(head >= HEAD_WITH_SINK for head in upper)
    yield (
        f"Target: {have} of the {len(upper)} heads of its upper half give the first token at least "
        f"{HEAD_WITH_SINK} of their attention ({len(ids)} prompts of {TARGET_TOKENS} tokens)."
    )
    yield "| layer | attention on the first token, by head |"
    yield "|---|---|"
    for index, layer in enumerate(mass, start=1):
        yield f"| {index} | " + " ".join(f"{head:.2f}" for head in sorted(layer)[::-1]) + " |"
