"""What the lists of a run's chains hold: how many numbers, and of what."""

from __future__ import annotations

from dataclasses import dataclass

MASSES = ("sink_mass", "prompt_mass", "generated_mass", "self_mass", "null_mass")
BY_DEPTH = ("in_rms", "prenorm_rms", "postnorm_rms", "fed_rms", "top1", "entropy")
AUX = ("aux_rms", "aux_norm_rms")
"""By captured target layer, not by depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The same for every chain of a run."""

    k: int
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

    def width(self, name: str) -> int:
        """Elements of the list column `name`."""
        return self.aux if name in AUX else self.k * (self.layers if name in MASSES else 1)

    def masses(self) -> tuple[str, ...]:
        """Classes that some row may have a mass of."""
        return tuple(name for name in MASSES if name not in self.absent)

    def lists(self) -> tuple[str, ...]:
        """Lists that some row may have."""
        return tuple(name for name in (*MASSES, *BY_DEPTH, *AUX) if name not in self.absent)
