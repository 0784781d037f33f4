"""The properties of a drafter and of its settings that decide what a chain's row holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderOptions:
    """Properties of a drafter and its settings that decide what a chain's row holds."""

    heads: int
    """Attention heads of a layer on this rank."""
    strategy: str
    """How masses are taken, one of `Strategy`."""
    max_slots: int
    """The engine's context limit; the drafter's forwards beyond it are void."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Per-depth columns that were not written because they equal another column."""
    masses_only: bool = False
    """This is a tensor-parallel rank after the first."""
    compare_ids: bool = False
    """Compare the shadow's token ids with the served ones."""
    keep_ids: bool = False
    """Write the token ids to the trace."""
