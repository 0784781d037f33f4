"""What the lists of a run's chains hold: how many numbers, and of what."""

from __future__ import annotations

from dataclasses import dataclass

MASSES = ("sink_mass", "prompt_mass", "generated_mass", "self_mass", "null_mass")
BY_DEPTH = ("in_rms", "prenorm_rms", "postnorm_rms", "fed_rms", "top1", "entropy")
AUX = ("aux_rms", "aux_norm_rms")
"""By captured target layer, not by depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How long a run's chains are, and what each of them holds."""

    k: int
    """Tokens of the longest chain."""
    ks: tuple[int, ...]
    """Chain lengths that the run asked for, ascending: several where K follows the batch size or
    changed while the server ran."""
    shorter: tuple[int, ...] = ()
    """Numbers of tokens below `k` that rounds drafted, ascending. Close to a length limit a round
    drafts fewer tokens than K."""
    depths: int
    """Depths that figures of chains are made for: `k` in a run of one K. In a run of several they
    are taken over the chains that are this long or longer, so that every depth is compared over the
    same chains."""
    layers: int
    """Drafter layers with attention, at least 1."""
    aux: int
    """Captured target layers."""
    sink_slots: tuple[int, ...]
    sinkless: bool
    """A sink was looked for and there is none, so that no class of its own is missing."""
    absent: tuple[str, ...] = ()
    """Lists that no row has."""
    executions: tuple[str, ...] = ()
    """How the drafter ran, over all recorded chains that say so."""
    rate: float | None = None
    """The sampling rate of all chains; None where it changed, or is none."""

    @property
    def mixed(self) -> bool:
        """Whether the run has chains of several K."""
        return len(self.ks) > 1

    def width(self, name: str) -> int:
        """Elements of the list column `name` that figures are made of."""
        return self.aux if name in AUX else self.depths * self.per_depth(name)

    def per_depth(self, name: str) -> int:
        """Elements of the list column `name` for each depth; it is not one of AUX."""
        return self.layers if name in MASSES else 1

    def masses(self) -> tuple[str, ...]:
        """Classes that some row may have a mass of."""
        return tuple(name for name in MASSES if name not in self.absent)

    def lists(self) -> tuple[str, ...]:
        """Lists that some row may have."""
        return tuple(name for name in (*MASSES, *BY_DEPTH, *AUX) if name not in self.absent)
