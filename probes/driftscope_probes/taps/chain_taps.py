"""The interface of a drafter's taps that a recorder needs, whatever engine the drafter runs in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from driftscope_probes.base.guard import Guard
from driftscope_probes.drafter.drafter import Drafter
from driftscope_probes.taps.hook_set import HookSet
from driftscope_probes.taps.hook_switch import HookSwitch
from driftscope_probes.taps.kernels import Kernels


class ChainObserver(Protocol):
    """Knows how the chain just drafted was observed."""

    @property
    def aliased_columns(self) -> Mapping[str, str]:
        """Column that is not written -> column that holds the same tensor; may grow."""

    def execution(self, depths: int) -> str:
        """Return how the chain just drafted ran, one of `Execution`."""


class ChainTaps(Protocol):
    """The hooks of one drafter, which pass what they see to its kernels."""

    @property
    def hooks(self) -> HookSet:
        """The hooks, which a recorder removes during steps that are not recorded."""

    @property
    def switch(self) -> HookSwitch:
        """Decides for each hook that fires whether it runs."""

    @property
    def observer(self) -> ChainObserver:
        """See ChainObserver."""

    def attach(self, holder: Any, attribute: str) -> None:
        """Install every hook; the drafter is `attribute` of `holder`."""

    def detach(self) -> None:
        """Remove every hook for good."""


class MakeTaps(Protocol):
    """Builds the taps of a drafter."""

    def __call__(
        self, drafter: Drafter, kernels: Kernels, guard: Guard, *, in_graph: bool
    ) -> ChainTaps:
        """Return the taps, not attached yet; `in_graph`: whether CUDA graphs record them."""
