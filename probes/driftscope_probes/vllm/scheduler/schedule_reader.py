"""Reads vLLM's SchedulerOutput for the recording.

Written against vllm.v1.core.sched.output, 0.27 to 0.32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from driftscope_probes.vllm.scheduler.cache_faults import CacheFaultTracker
from driftscope_probes.vllm.scheduler.prefill_tracker import PromptTracker, prompt_lengths
from driftscope_probes.vllm.scheduler.request_label import label_of


class VllmSchedules:
    """Reads vLLM's schedules; see `ScheduleReader`."""

    new_requests = "scheduled_new_reqs"

    def __init__(self, faults: CacheFaultTracker | None = None) -> None:
        """`faults`: tracker for a runner that leaves faults in the drafter's cache."""
        self.prompts, self.faults = PromptTracker(), faults

    def prompt_lengths(self, scheduled: Any) -> Mapping[str, int]:
        """See ScheduleReader."""
        return prompt_lengths(scheduled.scheduled_new_reqs)

    def labels(self, scheduled: Any) -> Iterator[tuple[str, str]]:
        """See ScheduleReader."""
        for request in scheduled.scheduled_new_reqs:
            label = label_of(request.sampling_params)
            if label is not None:
                yield request.req_id, label

    def writes_free_blocks(self, scheduled: Any) -> bool:
        """Return whether a KV connector loads blocks or vLLM zeroes blocks; see ScheduleReader."""
        loads = getattr(scheduled, "kv_connector_metadata", None) is not None
        return loads or getattr(scheduled, "new_block_ids_to_zero", None) is not None
