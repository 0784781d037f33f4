"""vLLM's schedule of one step: each request's draft, or why there was none.

Written against vllm.v1.core.sched.scheduler and .output, 0.27 to 0.32. Under asynchronous
scheduling the engine core never sees drafted tokens, only places reserved for them; whether a
drafter filled these must be derived from the schedule.
"""

from __future__ import annotations

from collections.abc import Set
from functools import cached_property
from typing import Any

from driftscope.vocabulary import UndraftedReason

NOBODY: Set[str] = frozenset()


class Limits:
    """Bounds of every step of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        config = scheduler.vllm_config
        speculation = config.speculative_config
        self.tokens: int = scheduler.max_num_scheduled_tokens
        """Largest number of tokens in a step."""
        self.kept_tokens: int = scheduler.scheduler_config.max_num_batched_tokens
        """Largest number of tokens in a step, including the slots reserved for drafting."""
        self.slots: int = getattr(speculation, "max_num_new_slots_for_drafting", 0)
        """Number of slots reserved for drafting, per request."""
        self.last_slot: int = scheduler.max_model_len - 1
        """Last slot that the context limit allows."""
        self.drafted_length: int | None = None
        """Length of the longest sequence with which a step still drafts; None: every step drafts.
        In V1's GPUModelRunner._input_fits_in_drafter one sequence too long for K more tokens
        prevents drafting for all requests, and zeros are verified instead."""
        if not getattr(scheduler, "use_v2_model_runner", False):
            own = getattr(speculation.draft_model_config, "max_model_len", None)
            self.drafted_length = (own or scheduler.max_model_len) - scheduler.num_spec_tokens


class Schedule:
    """The schedule of one step, for use after vLLM's scheduler has moved on.

    It is a view of the step's `SchedulerOutput`, which no longer changes, because most steps need
    little of it.
    """

    def __init__(self, output: Any, limits: Limits) -> None:
        self._output, self._limits = output, limits
        self._places, self._invalid = (
            output.scheduled_spec_decode_tokens,
            output.num_invalid_spec_tokens,
        )
        # The V2 runner gets resumed requests as new ones, the V1 runner among the cached requests.
        resumed = getattr(output.scheduled_cached_reqs, "resumed_req_ids", ())
        new = output.scheduled_new_reqs
        self.admitted = {*resumed, *(each.req_id for each in new)} if resumed or new else NOBODY
        """Requests that came out of the queue. Their draft places are padding, which keeps a
        batch's shape and which vLLM counts as drafted."""
        allowed = limits.drafted_length
        self.drafts = allowed is None or self._within(allowed)
        """Whether the drafter runs in this step."""

    @property
    def asked_k(self) -> int | None:
        """Number of tokens to draft at the end of the step; None if vLLM does not report it."""
        return getattr(self._output, "num_spec_tokens_to_schedule", None)

    @property
    def full(self) -> bool:
        """Whether the scheduled tokens, with the slots reserved for drafting, use up the step's
        budget, so that there was no place for one more."""
        limits, used = self._limits, self._output.total_num_scheduled_tokens
        kept = used + limits.slots * len(self._output.num_scheduled_tokens)
        return bool(used >= limits.tokens or kept >= limits.kept_tokens)

    def drafted(self, request: str) -> int:
        """Return how many of a request's places can hold a draft: not those a grammar emptied."""
        if request in self.admitted:
            return 0
        places = len(self._places.get(request, ()))
        return places - self._emptied(request) if self._invalid else places

    def invalid(self, request: str) -> bool:
        """Return whether a grammar emptied some of the request's places."""
        return self._emptied(request) > 0

    def at_limit(self, request: str) -> bool:
        """Return whether the request's last scheduled slot is the last within the context limit."""
        return self._ends[request] >= self._limits.last_slot

    def _emptied(self, request: str) -> int:
        return int(self._invalid.get(request, 0)) if self._invalid else 0

    def _within(self, length: int) -> bool:
        """Return whether every sequence of the step has at most `length` tokens."""
        output = self._output
        longest = max(output.scheduled_cached_reqs.num_computed_tokens, default=0)
        # Usual case: no sequence would be longer even with all scheduled tokens added.
        if not output.scheduled_new_reqs and longest + output.total_num_scheduled_tokens <= length:
            return True
        return max(self._ends.values(), default=0) <= length

    @cached_property
    def _ends(self) -> dict[str, int]:
        """Length of each request's sequence after the step, if all of its draft is accepted."""
        output = self._output
        cached = output.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        computed |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        return {name: computed[name] + n for name, n in output.num_scheduled_tokens.items()}


def undrafted_reason(now: Schedule, before: Schedule | None, request: Any, *, again: bool) -> str:
    """Return why `request` has no draft to verify in the step `now`; see UndraftedReason.

    `before` is the request's previous step, which should have drafted; `again`: this is the first
    output since the request was preempted and its tokens were computed again.
    """
    name = request.request_id
    if again:
        return UndraftedReason.PREEMPTED
    if before is not None and before.asked_k == 0:
        return UndraftedReason.K_ZERO
    if now.at_limit(name) or (before is not None and not before.drafts):
        return UndraftedReason.CONTEXT_LIMIT
    if now.invalid(name):
        return UndraftedReason.STRUCTURED_OUTPUT
    if now.full:
        return UndraftedReason.TOKEN_BUDGET
    # Without asynchronous scheduling, a rejected draft is removed before the step is scheduled.
    if request.use_structured_output:
        return UndraftedReason.STRUCTURED_OUTPUT
    return UndraftedReason.NO_DRAFT
