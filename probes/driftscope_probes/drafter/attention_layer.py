"""One attention layer of a drafter, as taps and meters need it of any engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from driftscope_probes.drafter.attention_kind import AttentionKind
from driftscope_probes.drafter.key_reader import KeyReader
from driftscope_probes.drafter.observer import Observer, Switch


class AttentionLayer(Protocol):
    """An engine's attention layer."""

    @property
    def kind(self) -> AttentionKind:
        """How it attends."""

    @property
    def reader(self) -> KeyReader:
        """What finds its keys; raises ProbeError for a backend that is not supported."""

    @property
    def query_size(self) -> int:
        """Numbers in one head's query, as the tap sees it."""

    def cache(self) -> torch.Tensor:
        """Return its KV cache; an engine may lay it out anew."""

    def tap(self, observer: Observer, switch: Switch) -> Callable[[], None]:
        """Show `observer` each call while `switch` is on; return what takes the tap off again."""
