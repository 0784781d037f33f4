"""Tracks the requests whose prompt is not complete yet, from vLLM's schedules alone.

Unrecorded steps read nothing from their runner: what is needed of their requests follows from the
schedules, in order, on the writer's thread. A recorded step's own mask is compared with it. Written
against vllm.v1.core.sched.output, 0.27 to 0.32.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from driftscope_probes.engine import NOBODY

REMEMBERED_REQUESTS = 65_536
"""Number of requests whose prompt length is remembered; far more than ever run at once."""


class PromptTracker:
    """Tracks the requests of one engine through their prompts."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[str, int] = OrderedDict()
        """Prompt lengths: a preempted request recomputes its output as well."""
        self._incomplete: dict[str, int] = {}
        """Number of tokens to compute before a request's next token can be sampled."""

    def step(self, scheduled: Any, lengths: Mapping[str, int]) -> frozenset[str]:
        """Return the requests of a vLLM SchedulerOutput whose prompt is incomplete after the step:
        their drafts do not count. Call once per step, in order.

        `lengths`: `prompt_lengths` of its new requests at the beginning of the step.
        """
        for name in scheduled.finished_req_ids:
            self._prompts.pop(name, None)
            self._incomplete.pop(name, None)
        new, cached = scheduled.scheduled_new_reqs, scheduled.scheduled_cached_reqs
        if new or cached.resumed_req_ids:
            self._admit(lengths, cached)
        if not self._incomplete:  # the usual case
            return NOBODY
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        computed |= {each.req_id: each.num_computed_tokens for each in new}
        tokens = scheduled.num_scheduled_tokens
        present = [name for name in self._incomplete if name in tokens]
        going_on = frozenset(
            name for name in present if computed[name] + tokens[name] < self._incomplete[name]
        )
        for name in present:
            if name not in going_on:
                del self._incomplete[name]
        return going_on

    def _admit(self, lengths: Mapping[str, int], cached: Any) -> None:
        """Add requests that are new, or back from a preemption."""
        self._prompts |= lengths
        self._incomplete |= lengths
        if cached.resumed_req_ids:
            outputs = dict(zip(cached.req_ids, cached.num_output_tokens, strict=True))
            for name in cached.resumed_req_ids:
                self._incomplete[name] = self._prompts.get(name, 0) + outputs[name]
        while len(self._prompts) > REMEMBERED_REQUESTS:
            self._incomplete.pop(self._prompts.popitem(last=False)[0], None)


def prompt_lengths(requests: Iterable[Any]) -> dict[str, int]:
    """Return, for each request in vLLM's NewRequestData, the number of tokens to compute. The V2
    runner gets preempted requests as new ones, including the output to compute again. Call this at
    once: within one process the lists belong to the scheduler, and grow."""
    return {each.req_id: _length(each) for each in requests}


def _length(new: Any) -> int:
    whole = getattr(new, "prefill_token_ids", None)
    if whole is None:
        whole = new.prompt_embeds if new.prompt_token_ids is None else new.prompt_token_ids
    return 0 if whole is None else len(whole)
