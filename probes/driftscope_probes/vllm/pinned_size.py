"""Drafts under `pin-size`: the state fed to each deeper pass keeps its RMS of depth 1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from driftscope_probes.taps.tapped_model import TappedModel

_LEAST_RMS = 1e-12


@contextmanager
def size_pinned(holder: Any, rows: torch.Tensor) -> Iterator[None]:
    """Scale the state that `holder.model` returns for the next depth to its RMS after depth 1, as
    Size.PINNED does offline.

    `rows` [B]: rows of the first forward whose states are fed; later forwards have a row per
    request, perhaps followed by padding.
    """
    model, first = holder.model, list[torch.Tensor]()

    def pinned(drafter: Any, *args: Any, **kwargs: Any) -> Any:
        last, fed = drafter(*args, **kwargs)
        if not first:
            first.append(_rms(fed[rows]))
            return last, fed
        own, scaled = fed[: len(rows)], fed.clone()
        scaled[: len(rows)] = own.float() * (first[0] / _rms(own).clamp_min(_LEAST_RMS))
        return last, scaled

    holder.model = TappedModel(model, pinned)
    try:
        yield
    finally:
        holder.model = model


def _rms(states: torch.Tensor) -> torch.Tensor:
    """Return [B, 1] float32."""
    return states.float().square().mean(-1, keepdim=True).sqrt()
