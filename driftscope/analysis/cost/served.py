"""The K that a run was served with: one K, or several by batch size or over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from driftscope.analysis.figures.steps import StepCell
from driftscope.analysis.number_words import ks_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """K of each step of a run."""

    k: int
    """Largest K."""
    shares: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    """Share of the steps with each K, by batch size; {} if all steps had `k`."""

    @property
    def mixed(self) -> bool:
        """Whether steps had several K."""
        return bool(self.shares)

    @property
    def ks(self) -> tuple[int, ...]:
        """Every K, ascending; 0 is included if a schedule asked for no draft."""
        return tuple(sorted({k for each in self.shares.values() for k in each} | {self.k}))

    @property
    def words(self) -> str:
        """K in words: "K = 7", or "K = 2, 4 and 7 as served"."""
        return f"{ks_of(self.ks)} as served" if self.mixed else ks_of([self.k])

    def at(self, batch: int) -> Mapping[int, float]:
        """Return the share of each K at this batch size, or at the nearest measured one."""
        if not self.shares:
            return {self.k: 1.0}
        return self.shares[min(self.shares, key=lambda each: abs(each - batch))]


def served_of(k: int, cells: Iterable[StepCell], *, mixed: bool) -> Served:
    """Return how a run whose longest chain has `k` tokens was served; `mixed`: with several K."""
    if not mixed:
        return Served(k=k)
    steps: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for cell in cells:
        steps[cell.batch][cell.k] = steps[cell.batch].get(cell.k, 0.0) + cell.steps
    return Served(
        k=k,
        shares={
            batch: {each: n / sum(by_k.values()) for each, n in sorted(by_k.items())}
            for batch, by_k in sorted(steps.items())
        },
    )
