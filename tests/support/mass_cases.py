"""What the cases of attention masses have in common, whoever measures them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from driftscope_probes.torch_masses import Chains, sink_mask


def chains_of(
    k: int, positions: Sequence[int], prompts: Sequence[int], sinks: Sequence[int], **more: Any
) -> Chains:
    """Return chains of `k` tokens whose first query is at these positions."""
    return Chains(
        k=k,
        position=torch.tensor(positions),
        prompt_tokens=torch.tensor(prompts),
        sink_slots=torch.tensor(sinks, dtype=torch.int64),
        is_sink=sink_mask(tuple(sinks)),
        **more,
    )


def on_host(chains: Chains) -> Chains:
    """Return the same with NumPy arrays."""
    return replace(
        chains,
        position=chains.position.numpy(),
        prompt_tokens=chains.prompt_tokens.numpy(),
        sink_slots=chains.sink_slots.numpy(),
        is_sink=chains.is_sink.numpy(),
    )
