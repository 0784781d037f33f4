"""Measures whether a target has an attention sink, and whether its drafters lose it with depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from driftscope.inspect.reference.model import Target
from driftscope.inspect.reference.replay import DEFAULT_N_SINK
from driftscope.inspect.reference.target import TargetLayer
from driftscope_lab.evaluation.figures import PromptRecord, loss_by_depth, summarize
from driftscope_probes.masses.sink_search import SINK_FACTOR, SINK_SHARE

HEAD_SHARE = 0.3
"""Average weight on the first token above which a head has a sink (arXiv 2410.10781)."""
FIRST_QUERY = 64
"""First query that is measured: earlier queries have too few slots for their weight on the first
slot to be meaningful; the same paper starts there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSink:
    """The sink mass of one drafter over depth, in one condition.

    `kept` is the mass at the last depth as a share of the mass at the first. `has_one`: whether
    there is a sink to lose at depth 1.
    """

    drafter: str
    condition: str
    mass: tuple[float, ...]
    kept: float
    kept_interval: tuple[float, float]
    has_one: bool

    @property
    def loses(self) -> bool:
        """Whether the loss is more than chance."""
        return self.has_one and self.kept_interval[1] < 1.0

    def words(self) -> str:
        """Return a summary in one line."""
        low, high = self.kept_interval
        figures = f"{self.mass[0]:.3f} at depth 1, {self.mass[-1]:.3f} at {len(self.mass)}"
        kept = f"keeps {self.kept:.2f} ({low:.2f} to {high:.2f})"
        if not self.has_one:
            kept = "no sink to lose"
        else:
            kept += ": loses it" if self.loses else ": keeps it"
        return f"{self.drafter}, {self.condition}: sink mass {figures}; {kept}"


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


def formed(mass: Sequence[Sequence[float]]) -> bool:
    """Return whether any head of the target has a sink."""
    return max(max(layer) for layer in mass) > HEAD_SHARE


def _least(records: Sequence[PromptRecord]) -> float:
    """Return the smallest mass of the sink slots that counts as a sink, see
    `driftscope_probes.masses.sink_search`: a share of all attention, and a multiple of their share
    if attention were even over the prompt's slots."""
    slots = sum(one.prompt_tokens for one in records) / len(records)
    return max(SINK_SHARE, SINK_FACTOR * DEFAULT_N_SINK / slots)


def drafter_sinks(records: Sequence[PromptRecord]) -> list[DrafterSink]:
    """Return each drafter in each condition of the records, in the order of the records."""
    sinks = []
    for condition in dict.fromkeys(one.condition for one in records):
        for drafter in dict.fromkeys(one.drafter for one in records):
            chosen = [r for r in records if (r.condition, r.drafter) == (condition, drafter)]
            if not chosen:
                continue
            mass = summarize(chosen).means["sink_mass"]
            kept, interval = loss_by_depth(chosen, "sink_mass")
            sinks.append(
                DrafterSink(
                    drafter=drafter,
                    condition=condition,
                    mass=mass,
                    kept=kept,
                    kept_interval=interval,
                    has_one=mass[0] >= _least(chosen),
                )
            )
    return sinks
