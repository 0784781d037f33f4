"""Sums over the chains of one prompt, of which conclusions are made. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from driftscope.analysis.query.column_arrays import Matrix


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InsideSums:
    """Sums over the chains of one prompt; sequences are by depth, from depth 1 on."""

    chains: int
    bins: Matrix
    """Attention by depth and distance, [K, bins], the sink left out; see
    `driftscope.trace.records`."""
    sink: Sequence[float]
    """Attention on the sink."""
    own: Sequence[float]
    """Attention on the chain itself."""
    even: float
    """Attention that the sink would get if it were spread evenly over the verified slots."""
    fed: Sequence[float]
    """RMS of the state fed to the next depth."""
    reached: Sequence[float]
    """Number of chains of which everything before this depth is accepted."""
    sure: Sequence[float]
    """Probability that the drafter gives to its own token, in these chains."""
    right: Sequence[float]
    """Number of these chains whose token here is the target's."""
