"""Memory for masses that only some recorded chains have, allocated on first use."""

from __future__ import annotations

import math
from typing import Any

import torch

from driftscope_probes.base.host_ring import HostRing, Landing


class OptionalMasses:
    """[R, *shape] on the device, with a separate ring for host copies.

    The shape is [depths, layers, heads, 5] of masses by head, [depths, layers, bins] by distance.
    """

    def __init__(self, shape: tuple[int, ...], requests: int, device: torch.device) -> None:
        self._shape, self._size = shape, math.prod(shape)
        self._requests, self._device = requests, device
        self._values: torch.Tensor | None = None
        self._ring: HostRing | None = None

    @property
    def nbytes(self) -> int:
        """Size on the device once it has been used, in bytes."""
        return self._requests * self._size * torch.float32.itemsize

    def take(self, batch: int) -> torch.Tensor:
        """Return [batch, *shape] float32, filled with NaN."""
        if self._values is None:
            self._values = torch.empty((self._requests, *self._shape), device=self._device)
            self._ring = HostRing(self._requests, self._size, self._device)
        return self._values[:batch].fill_(torch.nan)

    def hold(self, batch: int, event: Any) -> Landing | None:
        """Reserve host memory for what was last taken; `fill` writes to it."""
        assert self._ring is not None  # noqa: S101  after `take`
        return self._ring.hold(batch, self._size, event)

    def fill(self, landing: Landing, batch: int) -> None:
        """Copy what was last taken to the reserved host memory."""
        assert self._values is not None  # noqa: S101  after `take`
        landing.fill(self._values[:batch].flatten(1))

    def send(self, batch: int) -> Landing | None:
        """Start copying what was last taken to the host."""
        assert self._values is not None and self._ring is not None  # noqa: S101  after `take`
        return self._ring.send(self._values[:batch].flatten(1))
