"""The steps that vLLM schedules: each request's draft in a step or why there was none, prompts
that are not complete, requests whose drafter cache may be wrong, and what clients name a request.

Under asynchronous scheduling the engine core never sees drafted tokens, only places reserved for
them; whether a drafter filled these must be derived from the schedule. Unrecorded steps read
nothing from their runner: what is needed of their requests follows from the schedules, in order,
on the writer's thread. A recorded step's own mask is compared with it.

vLLM's V1 runner leaves slots of the drafter's KV cache wrong or empty. At the end of each prompt
chunk it embeds a wrong token. In a step in which one request has no room for K more slots, it does
not run the drafter for any request. Both faults stay in the blocks, where later requests find them
through the prefix cache. vLLM does not report which hit covers such a block, so that from then on
every hit may be wrong.

Written against vllm.v1.core.sched.scheduler and .output, vllm.v1.structured_output and
vllm.v1.request, 0.27 to 0.32.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from driftscope.parser_marks import named_parser
from driftscope.vocabulary import CHOOSES_LENGTH, UndraftedReason
from driftscope_probes.engine import LABEL, NOBODY, given_name, shortened
from driftscope_probes.request_rows import RequestRegions


def adapter_of(request: Any) -> str | None:
    """Return the name of the LoRA adapter of vLLM's Request or NewRequestData, if it has one."""
    return shortened(getattr(getattr(request, "lora_request", None), "lora_name", None))


def label_of(request: Any) -> str | None:
    """Return the workload label in the SamplingParams of vLLM's Request or NewRequestData, else its
    adapter."""
    label = given_name(getattr(request.sampling_params, "extra_args", None), LABEL)
    return adapter_of(request) if label is None else label


ADMITTED = "_driftscope_admitted"
"""Attribute of a vLLM ModelRunnerOutput: [requests] int tensor on the host, draft tokens of each
that the worker verified. Only the worker knows them if `enable_adaptive_verification` is set: it
cuts drafts on the device, and the scheduler counts them whole."""


class StepBounds:
    """Bounds of every step of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        config = scheduler.vllm_config
        speculation = config.speculative_config
        self.speculates = speculation is not None
        """Whether the engine has a drafter."""
        self.tokens: int = scheduler.max_num_scheduled_tokens
        """Largest number of tokens in a step."""
        self.kept_tokens: int = scheduler.scheduler_config.max_num_batched_tokens
        """Largest number of tokens in a step, including the slots reserved for drafting."""
        self.slots: int = getattr(speculation, "max_num_new_slots_for_drafting", 0)
        """Number of slots reserved for drafting, per request."""
        self.last_slot: int = scheduler.max_model_len - 1
        """Last slot that the context limit allows."""
        chooses = getattr(speculation, "method", None) in (*CHOOSES_LENGTH, "custom_class")
        self.k: int | None = None if chooses else scheduler.num_spec_tokens
        """Number of tokens that each draft has as it is proposed; None: the drafter chooses it."""
        self.drafted_length: int | None = None
        """Length of the longest sequence with which a step still drafts; None: every step drafts.
        In V1's GPUModelRunner._input_fits_in_drafter one sequence too long for K more tokens
        prevents drafting for all requests, and zeros are verified instead."""
        if self.speculates and not getattr(scheduler, "use_v2_model_runner", False):
            own = getattr(speculation.draft_model_config, "max_model_len", None)
            self.drafted_length = (own or scheduler.max_model_len) - scheduler.num_spec_tokens


class Schedule:
    """The schedule of one step, for use after vLLM's scheduler has moved on.

    It is a view of the step's `SchedulerOutput`, which no longer changes, because most steps need
    little of it.
    """

    def __init__(self, output: Any, limits: StepBounds) -> None:
        self._output, self._limits = output, limits
        self._places, self._invalid = (
            output.scheduled_spec_decode_tokens,
            output.num_invalid_spec_tokens,
        )
        # The V2 runner gets resumed requests as new ones, the V1 runner among the cached requests.
        resumed = getattr(output.scheduled_cached_reqs, "resumed_req_ids", ())
        new = output.scheduled_new_reqs
        self.admitted = (
            {*resumed, *(request.req_id for request in new)} if resumed or new else NOBODY
        )
        """Requests that came out of the queue. Their draft places are padding, which keeps a
        batch's shape and which vLLM counts as drafted."""
        allowed = limits.drafted_length
        self.drafts = allowed is None or self._within(allowed)
        """Whether the drafter runs in this step."""

    @property
    def speculates(self) -> bool:
        """Whether the engine has a drafter."""
        return self._limits.speculates

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

    def drafted(self, request: str, before: Schedule | None) -> int:
        """Return how many tokens the drafter proposed for this step at the end of the step
        `before`, whatever cut them since; a drafter that chooses the length, those in the step."""
        places = len(self._places.get(request, ()))
        asked = None if before is None else before.asked_k
        k = self._limits.k
        return places if k is None else max(places, k if asked is None else asked)

    def verified(self, request: str) -> int:
        """Return how many of a request's places can hold a draft: not those a grammar emptied."""
        if request in self.admitted:
            return 0
        places = len(self._places.get(request, ()))
        return places - self._emptied(request) if self._invalid else places

    def invalid(self, request: str) -> bool:
        """Return whether a grammar emptied some of the request's places."""
        return self._emptied(request) > 0

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


def reason_for_less(now: Schedule, before: Schedule | None, request: Any, *, again: bool) -> str:
    """Return why `request` has no draft to verify, or a cut one, in the step `now`; see
    UndraftedReason, of which NO_DRAFT stands for none of the others.

    `before` is the request's previous step, which should have drafted; `again`: this is the first
    output since the request was preempted and its tokens were computed again.
    """
    name = request.request_id
    if not now.speculates:
        return UndraftedReason.K_ZERO
    if again:
        return UndraftedReason.PREEMPTED
    if before is not None and before.asked_k == 0:
        return UndraftedReason.K_ZERO
    if (now._ends[name] >= now._limits.last_slot) or (before is not None and not before.drafts):
        return UndraftedReason.CONTEXT_LIMIT
    if now.invalid(name):
        return UndraftedReason.STRUCTURED_OUTPUT
    if now.full:
        return UndraftedReason.TOKEN_BUDGET
    # Without asynchronous scheduling, a rejected draft is removed before the step is scheduled.
    if request.use_structured_output:
        return UndraftedReason.STRUCTURED_OUTPUT
    return UndraftedReason.NO_DRAFT


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
        computed |= {request.req_id: request.num_computed_tokens for request in new}
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
    return {request.req_id: _length(request) for request in requests}


def _length(new: Any) -> int:
    whole = getattr(new, "prefill_token_ids", None)
    if whole is None:
        whole = new.prompt_embeds if new.prompt_token_ids is None else new.prompt_token_ids
    return 0 if whole is None else len(whole)


KEPT_STEPS = 256
"""Number of consecutive steps without a draft whose requests are remembered; near the end of a
context there are about K such steps."""


class CacheFaultTracker:
    """Tracks cache faults of one engine; call `step` in order, on the writer's thread."""

    def __init__(self) -> None:
        self._faulty = False
        """Whether there are blocks with wrong or empty slots."""
        self._since: deque[Any] = deque(maxlen=KEPT_STEPS)
        """Steps since the drafter last ran."""

    def step(self, scheduled: Any, *, drafted: bool, chunked: bool) -> tuple[str, ...]:
        """Return the requests whose cache may be wrong from this step, a vLLM SchedulerOutput, on.

        `drafted`: the drafter ran in it; `chunked`: it also ran for an unfinished prompt. While the
        drafter does not run, the result is empty.
        """
        if drafted and not chunked and not self._faulty and not self._since:  # the usual case
            return ()
        self._since.append(scheduled)
        if not drafted:
            return ()
        requests: list[str] = []
        while self._since:
            before = self._since.popleft()
            if self._since and before.num_scheduled_tokens:  # the step ran without the drafter
                self._faulty = True
                requests += before.num_scheduled_tokens
            # A hit may be on blocks that another request fills in the same step.
            self._faulty |= chunked and not self._since
            if self._faulty:
                requests += _hits(before)
        return tuple(requests)


def _hits(scheduled: Any) -> list[str]:
    """Return requests that begin, or resume after preemption, with prefix-cache blocks."""
    hits = [new.req_id for new in scheduled.scheduled_new_reqs if new.num_computed_tokens]
    cached = scheduled.scheduled_cached_reqs
    if not cached.resumed_req_ids:
        return hits
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return [*hits, *(name for name in cached.resumed_req_ids if computed[name])]


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
            label = label_of(request)
            if label is not None:
                yield request.req_id, label

    def writes_free_blocks(self, scheduled: Any) -> bool:
        """Return whether a KV connector loads blocks or vLLM zeroes blocks; see ScheduleReader."""
        loads = getattr(scheduled, "kv_connector_metadata", None) is not None
        return loads or getattr(scheduled, "new_block_ids_to_zero", None) is not None


def parsers_of(config: Any) -> tuple[str | None, str | None]:
    """Return the names of a server's tool parser and reasoning parser; None: none is named.

    VllmConfig has no tool parser, which is the front end's: the engine's processes know it from the
    command line, which they inherit.
    """
    constraints = getattr(config, "structured_outputs_config", None)
    reasoning = getattr(constraints, "reasoning_parser", None)
    return named_parser(sys.argv, "--tool-call-parser"), reasoning or None


def regions_of(scheduler: Any) -> RequestRegions:
    """Return what finds the regions of one engine core's answers, with the tokenizer that vLLM
    loaded for it, unless with `skip_tokenizer_init`. Without a reasoning parser vLLM does not know
    what thinking is, and constrains an answer from its first token on."""
    manager = getattr(scheduler, "structured_output_manager", None)
    return RequestRegions(
        parsers_of(getattr(scheduler, "vllm_config", None)),
        lambda _: getattr(manager, "tokenizer", None),
        lambda: getattr(manager, "reasoner_cls", "unknown") is None,
    )
