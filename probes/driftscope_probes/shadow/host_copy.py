"""Copies of a step's tensors on the host, which the writer's thread takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


class HostCopy:
    """Copies tensors to the host without waiting, in the order of the device's work."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._copies = [_copied(each) for each in tensors]
        self._event: Any = None
        if any(each.is_cuda for each in tensors):
            self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._event.record()

    def take(self) -> list[npt.NDArray[np.int64]]:
        """Wait for the copies and return them; called on the writer's thread."""
        if self._event is not None:
            self._event.synchronize()
        return [each.numpy().astype(np.int64) for each in self._copies]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cpu", non_blocking=True) if tensor.is_cuda else tensor.clone()
