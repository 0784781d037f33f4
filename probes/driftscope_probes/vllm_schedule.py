"""vLLM's schedule of one step: what it says of each request's draft, and why there was none.

Read with vllm.v1.core.sched.scheduler and .output, 0.27 to 0.32. The engine core never sees drafted
tokens under asynchronous scheduling, only places kept for them; whether a drafter filled those has
to be told from the schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from driftscope.trace.records import UndraftedReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One step's schedule, frozen: vLLM's scheduler has moved on when the step's outcome comes."""

    asked_k: int | None
    """Tokens to draft at the end of the step; None where vLLM does not say."""
    admitted: frozenset[str]
    """Requests that came out of the queue: draft places they have are padding, which keeps a
    batch's shape and which vLLM counts as drafted."""
    drafts: bool
    """Whether the drafter runs in this step."""
    places: dict[str, int]
    """Draft places by request, those that a grammar emptied left out."""
    invalid: frozenset[str]
    """Requests of which a grammar emptied some places."""
    at_limit: frozenset[str]
    """Requests whose last scheduled slot is the last that the context limit allows."""
    full: bool
    """Whether the step's token budget left no place for one more token."""

    def drafted(self, request: str) -> int:
        """Places of a request in which a draft can be."""
        return 0 if request in self.admitted else self.places.get(request, 0)


def read_schedule(scheduler: Any, output: Any) -> Schedule:
    """The view of a `SchedulerOutput` of `scheduler`."""
    ends = _ends(output)
    invalid = output.num_invalid_spec_tokens or {}
    return Schedule(
        asked_k=getattr(output, "num_spec_tokens_to_schedule", None),
        admitted=_admitted(output),
        drafts=_drafter_runs(scheduler, max(ends.values(), default=0)),
        places={
            name: len(tokens) - invalid.get(name, 0)
            for name, tokens in output.scheduled_spec_decode_tokens.items()
        },
        invalid=frozenset(name for name, count in invalid.items() if count),
        at_limit=frozenset(n for n, end in ends.items() if end >= scheduler.max_model_len - 1),
        full=_is_full(scheduler, output),
    )


def undrafted_reason(now: Schedule, before: Schedule | None, request: Any, *, again: bool) -> str:
    """Why `request` has no draft to verify in the step `now`; see UndraftedReason.

    `before` is the request's step before, which should have drafted; `again`: this is the first
    output since the request was preempted and its tokens were computed once more.
    """
    name = request.request_id
    if again:
        return UndraftedReason.PREEMPTED
    if before is not None and before.asked_k == 0:
        return UndraftedReason.K_ZERO
    if name in now.at_limit or (before is not None and not before.drafts):
        return UndraftedReason.CONTEXT_LIMIT
    if name in now.invalid:
        return UndraftedReason.STRUCTURED_OUTPUT
    if now.full:
        return UndraftedReason.TOKEN_BUDGET
    # Without asynchronous scheduling a rejected draft is gone before the step is scheduled.
    if request.use_structured_output:
        return UndraftedReason.STRUCTURED_OUTPUT
    return UndraftedReason.NO_DRAFT


def _admitted(output: Any) -> frozenset[str]:
    """The V2 runner gets resumed requests as new ones, the V1 runner among the cached."""
    resumed = getattr(output.scheduled_cached_reqs, "resumed_req_ids", ())
    return frozenset(resumed) | {new.req_id for new in output.scheduled_new_reqs}


def _ends(output: Any) -> dict[str, int]:
    """Length of each request's sequence after the step, if all its draft is accepted."""
    cached = output.scheduled_cached_reqs
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    computed |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    return {name: computed[name] + count for name, count in output.num_scheduled_tokens.items()}


def _drafter_runs(scheduler: Any, longest: int) -> bool:
    """V1's GPUModelRunner._input_fits_in_drafter: with one sequence of the step too long for K more
    tokens it drafts for none, and has zeros verified instead. V2 always drafts.
    """
    if getattr(scheduler, "use_v2_model_runner", False):
        return True
    draft_model = scheduler.vllm_config.speculative_config.draft_model_config
    limit = getattr(draft_model, "max_model_len", None) or scheduler.max_model_len
    return bool(longest + scheduler.num_spec_tokens <= limit)


def _is_full(scheduler: Any, output: Any) -> bool:
    """Whether the tokens scheduled, with the slots kept for drafting, use up the step's budget."""
    speculation = scheduler.vllm_config.speculative_config
    slots = getattr(speculation, "max_num_new_slots_for_drafting", 0)
    budget = scheduler.scheduler_config.max_num_batched_tokens
    used = output.total_num_scheduled_tokens
    kept = used + slots * len(output.num_scheduled_tokens)
    return bool(used >= scheduler.max_num_scheduled_tokens or kept >= budget)
