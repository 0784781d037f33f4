"""The requests of a step, as the recording needs them of SGLang's ScheduleBatch.

Written against sglang.srt.managers.schedule_batch, 0.5.23.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from driftscope_probes.engine import NO_LENGTHS, NOBODY
from driftscope_probes.sglang.scheduler.request_label import label_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangStep:
    """One step's schedule."""

    new_requests: tuple[tuple[str, str], ...] = ()
    """(request, workload label) of the requests that the step prefills and that have a label."""
    incomplete: frozenset[str] = NOBODY
    """Requests whose chain of this step does not count."""


NOTHING = SglangStep()
"""The schedule of most decode steps."""


def step_of(batch: Any, incomplete: frozenset[str]) -> SglangStep:
    """Return the schedule of a ScheduleBatch that is about to run."""
    if not batch.forward_mode.is_extend():
        return SglangStep(incomplete=incomplete) if incomplete else NOTHING
    labelled = ((req.rid, label_of(req.sampling_params)) for req in batch.reqs)
    return SglangStep(new_requests=tuple((rid, label) for rid, label in labelled if label))


class StepPrompts:
    """See PromptProgress."""

    def step(self, scheduled: Any, lengths: Mapping[str, int]) -> frozenset[str]:  # noqa: ARG002
        """See PromptProgress."""
        incomplete: frozenset[str] = scheduled.incomplete
        return incomplete


class SglangSchedules:
    """Reads SglangStep; see `ScheduleReader`."""

    new_requests = "new_requests"
    faults = None
    """SGLang embeds the right token at the boundary of a prompt's chunks (sglang#26329)."""

    def __init__(self) -> None:
        self.prompts = StepPrompts()

    def prompt_lengths(self, scheduled: Any) -> Mapping[str, int]:  # noqa: ARG002
        """See ScheduleReader."""
        return NO_LENGTHS

    def labels(self, scheduled: Any) -> Iterable[tuple[str, str]]:
        """See ScheduleReader."""
        labels: Iterable[tuple[str, str]] = scheduled.new_requests
        return labels

    def writes_free_blocks(self, scheduled: Any) -> bool:  # noqa: ARG002
        """See ScheduleReader."""
        return True
