"""Whose prompt is not complete yet, told from vLLM's schedules alone.

A passed step looks at nothing of its runner: what there is to know of its requests follows from the
schedules, in order, on the writer's thread. A recorded step's own mask is held against it.
Read with vllm.v1.core.sched.output, 0.27 to 0.32.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

REMEMBERED_REQUESTS = 65_536
"""Requests of which the prompt's length is remembered; far more than ever run at once."""


class Prefills:
    """The requests of one engine, through their prompts."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[str, int] = OrderedDict()
        """Their lengths: a request that is preempted has to be told from its output's."""
        self._incomplete: dict[str, int] = {}
        """Tokens that a request needs computed before its next one can be sampled."""

    def step(self, scheduled: Any) -> frozenset[str]:
        """Of the requests of a vLLM SchedulerOutput, those whose prompt goes on after it: nothing
        that is drafted for them counts. Every step has to be told, in order."""
        for name in scheduled.finished_req_ids:
            self._prompts.pop(name, None)
            self._incomplete.pop(name, None)
        new, cached = scheduled.scheduled_new_reqs, scheduled.scheduled_cached_reqs
        if new or cached.resumed_req_ids:
            self._admit(new, cached)
        if not self._incomplete:  # as most often
            return frozenset()
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

    def _admit(self, new: Any, cached: Any) -> None:
        """Requests that are new, or back from a preemption."""
        for each in new:
            self._prompts[each.req_id] = length = _prompt_tokens(each)
            # The V2 runner gets those that are back as new ones.
            whole = getattr(each, "prefill_token_ids", None)
            self._incomplete[each.req_id] = length if whole is None else len(whole)
        if cached.resumed_req_ids:
            outputs = dict(zip(cached.req_ids, cached.num_output_tokens, strict=True))
            for name in cached.resumed_req_ids:
                self._incomplete[name] = self._prompts.get(name, 0) + outputs[name]
        while len(self._prompts) > REMEMBERED_REQUESTS:
            self._incomplete.pop(self._prompts.popitem(last=False)[0], None)


def _prompt_tokens(new: Any) -> int:
    """Of vLLM's NewRequestData."""
    if new.prompt_token_ids is not None:
        return len(new.prompt_token_ids)
    return 0 if new.prompt_embeds is None else len(new.prompt_embeds)
