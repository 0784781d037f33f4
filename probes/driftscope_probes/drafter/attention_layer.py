"""An attention layer of a drafter, independent of the engine, as taps and meters need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from driftscope_probes.drafter.attention_kind import AttentionKind
from driftscope_probes.drafter.key_reader import KeyReader
from driftscope_probes.drafter.observer import Observer, Switch


class AttentionLayer(Protocol):
    """An attention layer of an engine."""

    @property
    def kind(self) -> AttentionKind:
        """Attention parameters of the layer."""

    @property
    def reader(self) -> KeyReader:
        """Reader of the layer's keys; raises ProbeError for an unsupported attention backend."""

    @property
    def query_size(self) -> int:
        """Count of numbers in one head's query, as the tap sees it."""

    def cache(self) -> torch.Tensor:
        """Return the layer's KV cache, which an engine may reallocate."""

    def tap(self, observer: Observer, switch: Switch) -> Callable[[], None]:
        """Pass each call to `observer` while `switch` is on; return the tap's removal."""
