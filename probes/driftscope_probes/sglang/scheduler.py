"""Hooks SGLang's scheduler: the requests of a step, its verification, and requests that ended, with
their names and regions.

The scheduler sees every step's outcome on the host, so this costs no device synchronisation and
agrees with SGLang's own counters by construction. Rows are built on the writer's thread. Written
against sglang.srt.managers.scheduler, sglang.srt.managers.schedule_batch and
sglang.srt.managers.scheduler_components.batch_result_processor, 0.5.23.
"""

from __future__ import annotations

import functools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driftscope.trace.records import RequestRow
from driftscope.vocabulary import UndraftedReason
from driftscope_probes.core_observer import CoreObserver
from driftscope_probes.engine import (
    LABEL,
    NO_LENGTHS,
    NOBODY,
    PAIR,
    SESSION,
    given_name,
    shortened,
)
from driftscope_probes.request_rows import (
    ANSWER_TOKENS,
    REMEMBERED_REQUESTS,
    EndedRequest,
    PromptDigests,
    RequestRegions,
    RequestTracker,
    Verified,
)
from driftscope_probes.settings import Settings

_HEALTH_CHECK = "HEALTH_CHECK"
"""Beginning of the ids of the requests that SGLang's front end sends to see whether it is alive."""


_WARM_UP_TEXT = "The capital city of France is"
_WARM_UP_IDS = (10, 11, 12)
"""Prompt of the warm-up of a server without a tokenizer."""
_WARM_UP_TOKENS = 8
"""Most tokens of the warm-up's answer."""


class WarmUp:
    """Recognises the request that SGLang's server sends to itself before it serves others.

    It carries no mark, so that it is known by its place and content: it is the first one, greedy,
    of eight tokens, with the prompt that sglang.srt.entrypoints.http_server has.
    """

    def __init__(self) -> None:
        self._seen = False
        self.name = ""
        """Id of the warm-up; "" if there was none."""

    def look(self, req: Any) -> None:
        """Look at a request, of which the first one decides."""
        if not self._seen and not is_health_check(req.rid):
            self._seen = True
            if _has_content_of_warm_up(req):
                self.name = str(req.rid)


def _has_content_of_warm_up(req: Any) -> bool:
    sampling = req.sampling_params
    greedy = sampling.top_k == 1 or not sampling.temperature
    text = getattr(req, "origin_input_text", None)
    prompt = text == _WARM_UP_TEXT or tuple(req.origin_input_ids) == _WARM_UP_IDS
    return bool(greedy and sampling.max_new_tokens == _WARM_UP_TOKENS and prompt)


WARM_UP = WarmUp()
"""The warm-up of this process's server, which has one scheduler."""


def is_own(req: Any) -> bool:
    """Return whether a request is SGLang's own, a health check or the warm-up: no row is written of
    it."""
    WARM_UP.look(req)
    return is_own_name(req.rid)


def is_own_name(request: str) -> bool:
    """Return whether the request of this id, which was looked at before, is SGLang's own."""
    return request == WARM_UP.name or is_health_check(request)


def is_health_check(request: str) -> bool:
    """Return whether a request asks whether SGLang is alive."""
    return str(request).startswith(_HEALTH_CHECK)


def adapter_of(req: Any) -> str | None:
    """Return the name of a request's LoRA adapter, if it has one."""
    if (adapter := getattr(req, "lora_id", None)) is None:
        return None
    manager = getattr(_targets[0].model_runner, "lora_manager", None) if _targets else None
    known = getattr(manager, "lora_refs", {}).get(adapter)
    return shortened(getattr(known, "lora_name", None) or adapter)


def label_of(req: Any) -> str | None:
    """Return the workload label in a request's SamplingParams, else its adapter."""
    label = given_name(getattr(req.sampling_params, "custom_params", None), LABEL)
    return adapter_of(req) if label is None else label


def parsers_of(arguments: Any) -> tuple[str | None, str | None]:
    """Return the names of the tool parser and reasoning parser in a server's arguments; None: none
    is named, or SGLang chooses one by the chat template."""
    names = (getattr(arguments, name, None) for name in ("tool_call_parser", "reasoning_parser"))
    tool, reasoning = (None if name == "auto" else name for name in names)
    return tool, reasoning


def regions_of(arguments: Any) -> RequestRegions:
    """Return what finds the regions of one scheduler's answers, given as RequestTokens;
    `arguments` are SGLang's ServerArgs."""
    return RequestRegions(parsers_of(arguments), lambda tokens: tokens.tokenizer)


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
    labelled = ((req.rid, label_of(req)) for req in batch.reqs)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """A request as a step served it."""

    request: str
    prompt: int
    """Number of prompt tokens."""
    outputs: int
    """Number of output tokens before the step's."""
    gained: int
    """Number of tokens that the step gave it."""
    decoding: bool
    """Whether the step decodes it, and does not prefill it."""
    drafted: int
    accepted: int


Outcome = tuple[float, Sequence[ServedRequest]]
"""Time of a step, and the requests that it served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTokens:
    """Token ids from which digests and regions of a request are computed; they are not kept."""

    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    tokenizer: Any = None
    """The scheduler's tokenizer; None if it has none."""


class StepTracker(RequestTracker):
    """Builds the rows of SGLang's steps, and of requests that ended."""

    def __init__(
        self,
        count_error: Callable[[str, BaseException], None],
        digests: PromptDigests | None = None,
        regions: RequestRegions | None = None,
        *,
        speculates: bool = True,
    ) -> None:
        super().__init__(count_error, digests, regions)
        self._speculates = speculates
        self._times: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Time of each running request's first and latest token."""

    def _verified(self, step: Outcome) -> list[Verified]:
        self._step += 1
        time_s, requests = step
        rows: list[Verified] = []
        for served in requests:
            if not served.gained:
                continue
            if served.outputs:
                position = served.prompt + served.outputs - 2
                reason = _reason(served) if self._speculates else UndraftedReason.K_ZERO
                drafted, accepted = served.drafted, served.accepted if served.drafted else 0
                row = self._step, time_s, served.request, position
                rows.append((*row, drafted, drafted, accepted, reason, 0))
            first, _ = self._times.get(served.request, (time_s, 0.0))
            self._times[served.request] = first, time_s
        while len(self._times) > REMEMBERED_REQUESTS:
            self._times.popitem(last=False)
        return rows

    def _forget(self, request: str) -> tuple[float, float] | None:
        return self._times.pop(request, None)


def _reason(served: ServedRequest) -> str | None:
    """Return why a step had no draft to verify; None if it had one. A request that is prefilled
    although it has output was preempted; one that decodes joined a prefilling batch."""
    if served.drafted:
        return None
    return UndraftedReason.NO_DRAFT if served.decoding else UndraftedReason.PREEMPTED


ABORT = "abort"
"""Finish reason of a request that was ended before it was served."""
_targets: list[Any] = []
"""The target's worker of this process, which knows the adapters."""
_observers: list[SchedulerObserver] = []
"""The observer of this process: its one scheduler has slots, so that it cannot hold it itself."""


def observe_scheduler(worker: Any, settings: Settings, rank: int, replica: int) -> None:
    """Observe the scheduler of this process, which has loaded `worker`, an EagleDraftWorker. The
    schedulers of all tensor-parallel ranks do the same, so that one of them is observed."""
    _targets[:] = [worker.target_worker]
    if rank == 0:
        _observers[:] = [SchedulerObserver(worker, settings, replica)]


def observer() -> SchedulerObserver | None:
    """Return the observer of this process's scheduler, if there is one."""
    return _observers[0] if _observers else None


class SchedulerObserver(CoreObserver):
    """Observes each step's outcome on the serving thread and passes it to the writer's."""

    def __init__(self, worker: Any, settings: Settings, replica: int) -> None:
        self._worker, arguments = worker, worker.server_args
        speculates = bool(worker.speculative_num_steps)
        super().__init__(
            settings,
            f"engine{replica}",
            getattr(arguments, "served_model_name", None),
            regions_of(arguments),
            functools.partial(StepTracker, speculates=speculates),
        )
        self._keeps = None if settings.regions else ANSWER_TOKENS
        """Number of an answer's tokens that are handed over; None: all."""

    def around(self, run: Callable[[], Any], batch: Any, result: Any, *, decode: bool) -> Any:
        """Run the scheduler's processing of a step's result."""
        before = self._guard.run("verify_started", self._before, batch, decode)
        returned = run()
        if before is not None:
            self._guard.run("verify", self._after, result, before)
        return returned

    def _before(self, batch: Any, decode: bool) -> list[tuple[int, Any, int, bool]]:
        """Return (row, request, output tokens, decoding) of the requests that the step serves."""
        decoding = () if decode else tuple(batch.decoding_reqs or ())
        return [
            (row, req, len(req.output_ids), decode or req in decoding)
            for row, req in enumerate(batch.reqs)
            if not req.finished() and not req.is_retracted and not is_own(req)
        ]

    def _after(self, result: Any, before: list[tuple[int, Any, int, bool]]) -> None:
        now, k = time.time(), self._drafted(result)
        accepted = getattr(result, "num_correct_drafts_per_req_cpu", None)
        served, finished = [], []
        for row, req, outputs, decoding in before:
            served.append(
                ServedRequest(
                    request=req.rid,
                    prompt=len(req.origin_input_ids),
                    outputs=outputs,
                    gained=len(req.output_ids) - outputs,
                    decoding=decoding,
                    drafted=k if decoding and accepted is not None else 0,
                    accepted=0 if accepted is None else int(accepted[row]),
                )
            )
            if req.finished():
                finished.append(self._finished(req))
        self._writer.put((self._rows, (now, served)))
        for request in finished:
            self._writer.put((self._rows, request))

    def aborted(self, *args: Any, **kwargs: Any) -> None:
        """Observe a request that the scheduler ends outside of a step: in its queue, or after a
        retraction for which there is no room."""
        self._guard.run("request", functools.partial(self._abort, **kwargs), *args)

    def _abort(self, abort: Any, req: Any) -> None:  # noqa: ARG002
        if not is_own(req):
            self._writer.put((self._rows, self._finished(req)))

    def _drafted(self, result: Any) -> int:
        """Return the length of the chain, or of a tree's longest branch, that was verified."""
        nodes = getattr(result, "speculative_num_draft_tokens", None)
        if nodes is None or self._worker.topk > 1:
            return int(self._worker.speculative_num_steps)
        return int(nodes) - 1

    def _finished(self, req: Any) -> EndedRequest:
        sampling, now = req.sampling_params, time.time()
        label, names = label_of(req), getattr(sampling, "custom_params", None)
        length = req.finished_len
        row = RequestRow(
            time_s=now,
            request=req.rid,
            label=label,
            arrival_s=now - (time.perf_counter() - _arrival(req.time_stats)),
            prompt_tokens=len(req.origin_input_ids),
            output_tokens=len(req.output_ids) if length is None else length,
            ttft_s=None,  # the tracker computes it
            tpot_s=None,
            finish_reason=_finish_reason(req),
            temperature=0.0 if sampling.top_k == 1 else float(sampling.temperature),
            max_tokens=sampling.max_new_tokens,
            traced=self._selection.selects(label),
            structured=_structured(sampling),
            session=given_name(names, SESSION) or shortened(req.session_id),
            pair=given_name(names, PAIR),
            adapter=adapter_of(req),
        )
        tokens = RequestTokens(
            prompt_token_ids=req.origin_input_ids,
            output_token_ids=list(req.output_ids[:length][: self._keeps]),
            tokenizer=req.tokenizer,
        )
        return EndedRequest(row=row, request=tokens)


def _finish_reason(req: Any) -> str:
    reason = req.finished_reason
    return ABORT if reason is None else str(reason.to_json()["type"])


def _arrival(times: Any) -> float:
    """Return when a request arrived, on the clock of `time.perf_counter`: at the front end, or else
    in the scheduler's queue."""
    return float(times.created_time or times.wait_queue_entry_time)


_CONSTRAINTS = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "structural_tag": "structural_tag",
}
"""SGLang's names of constraints -> vLLM's."""


def _structured(sampling: Any) -> str:
    kinds = (ours for name, ours in _CONSTRAINTS.items() if getattr(sampling, name, None))
    return next(kinds, "none")


def abort(original: Any) -> Callable[..., Any]:
    """Hook Scheduler.send_abort_output."""

    def send_abort_output(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        if (observed := observer()) is not None:
            observed.aborted(*args, **kwargs)
        return original(scheduler, *args, **kwargs)

    return send_abort_output


def name_weights(original: Any) -> Callable[..., Any]:
    """Hook Scheduler.record_weight_version_change."""

    def record_weight_version_change(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        named = None not in (*args, *kwargs.values())
        if named and (observed := observer()) is not None:
            observed.weights_named(*args, **kwargs)
        return original(scheduler, *args, **kwargs)

    return record_weight_version_change


def _processed(original: Any, *, decode: bool) -> Callable[..., Any]:
    def process(processor: Any, batch: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
        run = functools.partial(original, processor, batch, result, *args, **kwargs)
        observed = observer()
        return run() if observed is None else observed.around(run, batch, result, decode=decode)

    return process


process_decode = functools.partial(_processed, decode=True)
process_prefill = functools.partial(_processed, decode=False)
"""Hooks of SchedulerBatchResultProcessor."""
