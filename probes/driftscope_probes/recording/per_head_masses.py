"""Memory for attention masses by head, allocated on first use."""

from __future__ import annotations

from typing import Any

import torch

from driftscope.vocabulary import MASSES
from driftscope_probes.base.chain_buffers import Layout
from driftscope_probes.base.host_ring import HostRing, Landing


class PerHeadMasses:
    """[R, depths * layers * heads * 5] on the device, with a separate ring for host copies."""

    def __init__(self, layout: Layout, requests: int, device: torch.device, heads: int) -> None:
        self._shape = (layout.depths, layout.layers, heads, len(MASSES))
        self._requests, self._device = requests, device
        self._values: torch.Tensor | None = None
        self._ring: HostRing | None = None

    def take(self, batch: int) -> torch.Tensor:
        """Return [batch, depths, layers, heads, 5] float32, filled with NaN."""
        if self._values is None:
            self._values = torch.empty((self._requests, *self._shape), device=self._device)
            self._ring = HostRing(self._requests, self._values[0].numel(), self._device)
        return self._values[:batch].fill_(torch.nan)

    def hold(self, batch: int, event: Any) -> Landing | None:
        """Reserve host memory for what was last taken; `fill` writes to it."""
        assert self._values is not None and self._ring is not None  # noqa: S101  after `take`
        return self._ring.hold(batch, self._values[0].numel(), event)

    def fill(self, landing: Landing, batch: int) -> None:
        """Copy what was last taken to the reserved host memory."""
        assert self._values is not None  # noqa: S101  after `take`
        landing.fill(self._values[:batch].flatten(1))

    def send(self, batch: int) -> Landing | None:
        """Start copying what was last taken to the host."""
        assert self._values is not None and self._ring is not None  # noqa: S101  after `take`
        return self._ring.send(self._values[:batch].flatten(1))
