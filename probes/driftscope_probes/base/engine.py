"""The interface of an engine: what its folder of the probe must give the shared parts.

No class has to inherit from it. `docs/extending/add-an-engine.md` explains each part, and how vLLM
and SGLang provide it.
"""

from __future__ import annotations

from typing import Any, Protocol

from driftscope_probes.base.step_view import DraftCall


class StepSink(Protocol):
    """Receives an engine's steps: a recorder, or a timer if the drafter cannot be inspected.

    The calls come from the serving thread, in this order; none of them raises.
    """

    def step_started(self, scheduled: Any = None) -> None:
        """Start a step; a `ScheduleReader` reads what the engine has `scheduled`."""

    def draft(self, call: DraftCall) -> Any:
        """Run the drafter through `call`, recorded or not; return the drafted tokens [B, K]."""

    def add_draft_time(self, seconds: float) -> None:
        """Count time that the drafter ran outside of `draft` in the step in progress."""

    def step_ended(self, requests: int) -> None:
        """Finish a step of that many requests."""

    def close(self) -> None:
        """Seal the trace."""


class EngineSeam(Protocol):
    """The steps of one engine's worker, as the methods that its hooks call.

    `run` calls the engine's own method, exactly once, and its result is returned unchanged.
    """

    def step(self, run: Any, batch: Any) -> Any:
        """Report one step to a StepSink: `step_started`, `run`, `step_ended`."""

    def draft(self, run: Any, worker: Any, batch: Any) -> Any:
        """Report one draft to a StepSink, as a DraftCall around `run`."""
