"""Decides before a chain's first depth whether the chain is recorded."""

from __future__ import annotations

from typing import Any

from driftscope_probes.sampler import Sampler


class AheadSampler(Sampler):
    """A sampler for an engine that computes depth 1 of a chain in the round before its draft."""

    def __init__(self, **options: Any) -> None:
        """`options`: those of Sampler."""
        super().__init__(**options)
        self._decided: bool | None = None

    def ahead(self) -> bool:
        """Return whether the next draft is to be recorded; several extending forwards may precede
        it."""
        if self._decided is None:
            self._decided = super().take()
        return self._decided

    def take(self) -> bool:
        """See Sampler."""
        taken, self._decided = self.ahead(), None
        return taken and self.recording
