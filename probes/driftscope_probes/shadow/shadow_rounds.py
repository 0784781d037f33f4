"""Drafts chains under interventions before the served one, and follows what the target produces."""

from __future__ import annotations

import time
from typing import Any

import torch

from driftscope.trace.write.writer import TraceWriter
from driftscope_probes.base.step_view import DraftStep
from driftscope_probes.shadow.agreement_tracker import (
    FOLLOWED_STEPS,
    AgreementTracker,
    ShadowStep,
)
from driftscope_probes.shadow.host_copy import HostCopy
from driftscope_probes.shadow.shadow_call import ShadowCall
from driftscope_probes.shadow.shadow_rate import ShadowRate
from driftscope_probes.steps.request_selection import RequestSelection

LEAST_K = 2
"""Shortest chain that an intervention can change: depth 1 is as served."""


class ShadowRounds:
    """The shadow rounds of one drafter, on the serving thread.

    The chains run before the served one, which then overwrites every slot of the drafter's cache
    that they wrote.
    """

    def __init__(
        self,
        interventions: tuple[str, ...],
        rate: ShadowRate,
        selection: RequestSelection,
        writer: TraceWriter,
        *,
        keep_ids: bool,
    ) -> None:
        self.interventions = interventions
        self._rate, self._selection, self._writer = rate, selection, writer
        self._tracker = AgreementTracker(interventions, writer, keep_ids=keep_ids)
        self._rows = self._tracker.rows
        self._spent_s = 0.0
        """Time since the last shadow round, itself included, that the rate does not know of."""
        self._followed = 0
        """Number of draft steps whose tokens are still wanted."""
        self._step: DraftStep | None = None
        """The batch of the step in progress, if its tokens are wanted."""
        self._verified: HostCopy | None = None
        self._chains: list[torch.Tensor] = []
        """Tokens [B, K] of each intervention in the step in progress; [] outside shadow rounds."""

    @property
    def failed(self) -> bool:
        """Whether an error has ended the shadow for good."""
        return self._tracker.failed

    def draft(self, call: ShadowCall) -> None:
        """Draft under each intervention if the step is a shadow round."""
        self._step, self._verified, self._chains = None, None, []
        taken = self._rate.take() and int(call.k) >= LEAST_K
        if not taken and self._followed <= 0:
            return
        begun = time.perf_counter()
        self._followed -= 1
        self._step, self._verified = call.step(), HostCopy(call.verified())
        if taken:
            self._chains = [call.under(each) for each in self.interventions]
            self._followed = FOLLOWED_STEPS * int(call.k)
        self._spent_s += time.perf_counter() - begun
        if taken:
            self._rate.spent(self._spent_s)
            self._spent_s = 0.0

    def hand_over(self, served: Any, number: int) -> None:
        """Pass the step on if its tokens are wanted; `served` [B, K] are the tokens that the engine
        verifies next, and `number` is the step's."""
        if self._step is None or self._verified is None:
            return
        drafted = HostCopy([served, *self._chains]) if self._chains else None
        chosen = self._selection.chosen(self._step.requests) if drafted else None
        step = ShadowStep(self._step, self._verified, number, time.time(), chosen, drafted)
        self._writer.put((self._rows, step))

    def close(self) -> None:
        """Write the chains that still wait. The writer runs work in order, after other rows."""
        self._writer.put((self._tracker.rest, None))
