"""The states of one forward of the drafter: one row for each request of the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from driftscope_probes.kernels import Kernels

Rows = Callable[[torch.Tensor], torch.Tensor]
"""Function that picks the requests' rows out of a tensor."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardStates:
    """States of a forward, [requests, size] each; None: the drafter has no such state."""

    queries: tuple[torch.Tensor, ...]
    """Queries by layer, in order of depth in the network."""
    entering: torch.Tensor | None = None
    """Input of the first layer; of an EAGLE-1 drafter the state that `fc` reads."""
    prenorm: torch.Tensor | None = None
    postnorm: torch.Tensor | None = None
    fed: torch.Tensor | None = None
    """State that the next depth is fed with."""
    logits: torch.Tensor | None = None
    captured: torch.Tensor | None = None
    """Captured target layers, side by side."""
    captured_normed: tuple[torch.Tensor, ...] = ()
    """Captured layers after their norms: one tensor, or one for each layer."""

    def rows(self, wanted: torch.Tensor) -> ForwardStates:
        """Return the states of some requests only."""
        return self._each(lambda x: x.index_select(0, wanted))

    def _each(self, change: Rows) -> ForwardStates:
        changed: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                changed[field.name] = tuple(change(x) for x in value)
            elif value is not None:
                changed[field.name] = change(value)
        return replace(self, **changed)


def joined(parts: Sequence[ForwardStates]) -> ForwardStates:
    """Return the requests of several forwards, one after another."""
    values: dict[str, Any] = {}
    for field in fields(ForwardStates):
        columns = [getattr(part, field.name) for part in parts]
        if isinstance(columns[0], tuple):
            values[field.name] = tuple(torch.cat(each) for each in zip(*columns, strict=True))
        elif columns[0] is not None:
            values[field.name] = torch.cat(columns)
    return replace(parts[0], **values)


def pass_on(
    states: ForwardStates, kernels: Kernels, layers: Sequence[str], *, captured: int | None = None
) -> None:
    """Pass the states of the next depth to the kernels.

    `captured`: number of captured layers at depth 1; None at later depths.
    """
    if captured:
        _pass_captured(states, kernels, captured)
    # At later depths the input is the state that the depth before has fed.
    kernels.advance(None if captured is None else states.entering)
    for name, query in zip(layers, states.queries, strict=True):
        kernels.copy_query(name, query)
    outputs = (
        ("prenorm_rms", states.prenorm),
        ("postnorm_rms", states.postnorm),
        ("fed_rms", states.fed),
    )
    kernels.rms_of_outputs([(name, x) for name, x in outputs if x is not None])
    if states.logits is not None:
        kernels.confidence(states.logits, fleeting=True)


def _pass_captured(states: ForwardStates, kernels: Kernels, layers: int) -> None:
    if states.captured is not None:
        kernels.rms_of_chunks(states.captured, "aux_rms", layers)
    if states.entering is not None:
        kernels.rms_of_chunks(states.entering, "fc_rms", 1)
    normed = states.captured_normed
    for index, part in enumerate(normed):
        kernels.rms_of_chunks(part, "aux_norm_rms", layers if len(normed) == 1 else 1, index)
