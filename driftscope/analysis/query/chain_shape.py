"""Shape of a run's chains: the lists that they contain and the lengths of these lists."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.vocabulary import AUX, BY_DEPTH, MASSES


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Lengths of a run's chains, and contents of their lists."""

    k: int
    """Number of tokens of the longest chain."""
    ks: tuple[int, ...]
    """Chain lengths that the run asked for, ascending; there are several if K follows the batch
    size or changed while the server ran."""
    shorter: tuple[int, ...] = ()
    """Numbers of tokens below `k` that rounds drafted, ascending. Close to a length limit a round
    drafts fewer tokens than K."""
    depths: int
    """Number of depths for which figures of chains are made: `k` in a run of one K. In a run of
    several K, the figures use only chains with at least this length, so that every depth is
    compared over the same chains."""
    layers: int
    """Number of drafter layers with attention, at least 1."""
    aux: int
    """Number of captured target layers."""
    sink_slots: tuple[int, ...]
    sinkless: bool
    """Whether the probe looked for a sink and found none, so that there is no sink class."""
    absent: tuple[str, ...] = ()
    """Lists that no row has."""
    executions: tuple[str, ...] = ()
    """Executions of the drafter over all recorded chains that name one."""
    rate: float | None = None
    """Sampling rate of all chains; None if it changed, or is not above 0 and at most 1."""

    @property
    def mixed(self) -> bool:
        """Whether the run has chains of several K."""
        return len(self.ks) > 1

    def width(self, name: str) -> int:
        """Return the number of elements of the list column `name` that figures use."""
        return self.aux if name in AUX else self.depths * self.per_depth(name)

    def per_depth(self, name: str) -> int:
        """Return the number of elements of the list column `name` per depth; it must not be one of
        AUX."""
        return self.layers if name in MASSES else 1

    def masses(self) -> tuple[str, ...]:
        """Return the classes of which some row may have a mass."""
        return tuple(name for name in MASSES if name not in self.absent)

    def lists(self) -> tuple[str, ...]:
        """Return the lists that some row may have."""
        return tuple(name for name in (*MASSES, *BY_DEPTH, *AUX) if name not in self.absent)
