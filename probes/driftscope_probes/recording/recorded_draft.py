"""Runs the drafter in a recorded step: as it is served, or without CUDA graphs, or both."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from driftscope_probes.base.device_clock import DeviceClock
from driftscope_probes.base.guard import Guard
from driftscope_probes.base.settings import EAGER, SHADOW
from driftscope_probes.base.step_view import DraftCall
from driftscope_probes.recording.chain_measurement import ChainMeasurement
from driftscope_probes.taps.hook_switch import HookSwitch


class RecordedDraft:
    """Drafts in one of the recording modes.

    ============  ===========================================================================
    `in-graph`    the served chain is measured
    `eager`       the chain is drafted without CUDA graphs, measured and served
    `shadow`      a chain is drafted without CUDA graphs and measured, then another is served
    ============  ===========================================================================
    """

    def __init__(
        self,
        mode: str,
        chain: ChainMeasurement,
        switch: HookSwitch,
        guard: Guard,
        clock: DeviceClock,
    ) -> None:
        self._mode, self._chain, self._switch = mode, chain, switch
        self._guard, self._clock = guard, clock

    def run(self, call: DraftCall) -> tuple[Any, Any, float]:
        """Return the served tokens [B, K], the shadow's if there is one, and the time that drafting
        the served ones took, in seconds."""
        mode, shadow = self._mode, None
        if mode == SHADOW:
            shadow = self._guard.run("shadow", self._draft_shadow, call.without_graphs)
        timed, begun = self._clock.on, time.perf_counter()
        if timed:
            self._clock.mark()
        drafts = call.without_graphs() if mode == EAGER else call.serve()
        if timed:
            self._clock.mark()
        return drafts, shadow, time.perf_counter() - begun

    def _draft_shadow(self, without_graphs: Callable[[], Any]) -> Any:
        """Measure a chain that is not served, and stop recording before the served one."""
        drafts = without_graphs().clone()
        self._switch.flush_notes()
        self._chain.measure(at_once=True)
        self._chain.kernels.skip()
        self._switch.active = False
        return drafts
