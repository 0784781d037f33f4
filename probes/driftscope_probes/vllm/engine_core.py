"""Hooks vLLM's engine core: verification and requests, as its scheduler counts them.

The scheduler sees every step's outcome on the host, whichever runner produced it, so this costs no
device synchronisation and agrees with vLLM's own counters by construction. The serving thread only
notes what will be gone later: a request's lengths, and vLLM's own record of the step, which no
longer changes. Everything else is computed on the writer's thread. Written against
vllm.v1.core.sched.scheduler and vllm.v1.engine.core, 0.27 to 0.32.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftscope.trace.records import RequestRow
from driftscope.trace.status import OTHER, StartFault, read_faults
from driftscope.trace.writer_files import check_writable, has_begun
from driftscope.vocabulary import Structured, UndraftedReason
from driftscope_probes.core_observer import CoreObserver
from driftscope_probes.engine import PAIR, SESSION, given_name, shortened
from driftscope_probes.request_rows import (
    REMEMBERED_REQUESTS,
    EndedRequest,
    PromptDigests,
    RequestRegions,
    RequestTracker,
    Verified,
)
from driftscope_probes.settings import RUN_ID, Settings, settings_from
from driftscope_probes.start_guard import (
    StartGuard,
    handed_down,
    leave_note,
    this_process_fault,
)
from driftscope_probes.vllm.plugin import report_down, served_name
from driftscope_probes.vllm.schedule import (
    ADMITTED,
    Schedule,
    StepBounds,
    adapter_of,
    label_of,
    reason_for_less,
    regions_of,
)
from driftscope_probes.vllm.support import run_id_of

if TYPE_CHECKING:
    pass

Served = tuple[Any, int, int, Any, int]
"""A request as a step found it: vLLM's Request, its number of tokens before the step's, the number
of prompt tokens among them, its RequestStatus at that time, and the number of tokens that the step
gave it."""
Step = tuple[float, Any, list[Served], Mapping[str, int] | None]
"""A step with known outcome: its time, vLLM's SchedulerOutput, the served requests, and how many
draft tokens of each the worker verified, if it chooses that. These are plain tuples, because the
serving thread creates them in every step."""


@dataclass(slots=True)
class _RunningRequest:
    """State of a running request."""

    first_token_s: float | None = None
    last_token_s: float | None = None
    latest: Schedule | None = None
    """Schedule of the request's latest step, whose draft the next step verifies."""
    resumed: bool = False
    """Whether the request is back from a preemption and its tokens are being computed again."""


class VerificationTracker(RequestTracker):
    """Builds the rows of vLLM's steps, and of requests that ended."""

    def __init__(
        self,
        scheduler: Any,
        count_error: Callable[[str, BaseException], None],
        digests: PromptDigests | None = None,
        regions: RequestRegions | None = None,
    ) -> None:
        super().__init__(count_error, digests, regions)
        self._limits = StepBounds(scheduler)
        self._live: OrderedDict[str, _RunningRequest] = OrderedDict()

    def _verified(self, step: Step) -> list[Verified]:
        time_s, scheduled, served, admitted_drafts = step
        schedule = Schedule(scheduled, self._limits)
        self._step += 1
        rows: list[Verified] = []
        number, every, admitted = self._step, self._live, schedule.admitted
        running = None
        for request, length, prompt, status, tokens in served:
            if status is not running:
                if status.is_finished(status):
                    continue
                running = status
            name, has_output = request.request_id, length > prompt
            live = every.get(name)
            if live is None:
                live = every[name] = _RunningRequest()
            if admitted and has_output and name in admitted:
                live.resumed = True
            if tokens:
                again, live.resumed = live.resumed, False
                if has_output:
                    before = live.latest
                    filled = not again and (before is None or before.drafts)
                    drafted = schedule.drafted(name, before) if filled else 0
                    verified, reason = schedule.verified(name) if filled else 0, None
                    if verified < drafted or not verified:
                        reason = reason_for_less(schedule, before, request, again=again)
                    if reason == UndraftedReason.NO_DRAFT:  # the drafter proposed no more
                        drafted, reason = verified, None if verified else reason
                    if admitted_drafts is not None and admitted_drafts[name] < verified:
                        verified, reason = admitted_drafts[name], UndraftedReason.CONFIDENCE
                    accepted = tokens - 1 if verified else 0
                    row = number, time_s, name, length - 2
                    rows.append((*row, drafted, verified, accepted, reason, 0))
                if live.first_token_s is None:
                    live.first_token_s = time_s
                live.last_token_s = time_s
            live.latest = schedule
        while len(every) > REMEMBERED_REQUESTS:
            every.popitem(last=False)
        return rows

    def _forget(self, request: str) -> tuple[float, float] | None:
        live = self._live.pop(request, _RunningRequest())
        first, last = live.first_token_s, live.last_token_s
        return None if first is None or last is None else (first, last)


_ATTRIBUTE = "_driftscope_observer"
STOP_OR_ABORT = "stop_string_or_abort"
"""Finish reason of an aborted request that has stop strings."""
ABORT = "abort"
"""vLLM's reason for a request that did not end by itself. An engine core in a process of its own
aborts its running requests when it stops; one in the caller's process leaves them."""


def _init(original: Any) -> Callable[..., Any]:
    def init(scheduler: Any, *args: Any, **kwargs: Any) -> None:
        original(scheduler, *args, **kwargs)
        _observe(scheduler)

    return init


def _observe(scheduler: Any) -> None:
    """Attach an observer if the workers record; otherwise export that the probe is down."""
    guard, down = StartGuard(), None
    with guard:
        settings = settings_from(os.environ)
        if settings is None:
            return
        run_id = run_id_of(scheduler.vllm_config)
        down = handed_down() or _fault_of_workers(settings.trace, run_id)
        if down is None:
            setattr(scheduler, _ATTRIBUTE, EngineObserver(scheduler, settings))
            return
    if guard.fault is not None:
        with contextlib.suppress(Exception):
            run, role = Path(os.environ["DRIFTSCOPE_TRACE"]), _role(scheduler)
            is_own_run = has_begun(run, run_id_of(scheduler.vllm_config))
            leave_note(run, guard.fault, role, begun=is_own_run)
    if (fault := guard.fault or down) is not None:
        report_down(scheduler, fault)


def _fault_of_workers(run: Path, run_id: str) -> StartFault | None:
    """Return why the workers, which have loaded their models by now, have begun no run; None if
    they have. They have logged it, and left a note if the directory allowed that."""
    if has_begun(run, run_id):
        return None
    start = os.environ.get(RUN_ID, "")
    noted = [fault for fault in read_faults(run) if fault.start == start]
    if noted:
        return noted[0]
    if (own := this_process_fault()) is not None:
        return own
    guard = StartGuard(quiet=True)
    with guard:
        check_writable(run)
    return guard.fault or StartFault(
        kind=OTHER, reason="no worker began a run: see the workers' lines in the log", start=start
    )


def _shows(action: str) -> Callable[[Any], Callable[..., Any]]:
    """Return a hook that passes a method's arguments to the observer before the method runs."""

    def around(original: Any) -> Callable[..., Any]:
        def method(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            if observer := getattr(scheduler, _ATTRIBUTE, None):
                getattr(observer, action)(*args, **kwargs)
            return original(scheduler, *args, **kwargs)

        return method

    return around


_update_from_output = _shows("before_update")
_free_request = _shows("request_finished")


def _shutdown(original: Any) -> Callable[..., Any]:
    """Seal the trace while vLLM waits for its workers, which seal theirs: on a busy machine vLLM
    kills an engine core that takes longer than `--shutdown-timeout`."""

    def shutdown(engine: Any, *args: Any, **kwargs: Any) -> Any:
        observer = getattr(getattr(engine, "scheduler", None), _ATTRIBUTE, None)
        if observer is not None:
            with contextlib.suppress(Exception):  # the border: an engine ends as it would without
                observer.end()
        try:
            return original(engine, *args, **kwargs)
        finally:
            if observer is not None:
                for finish in (observer.close, observer.workers_closed):
                    with contextlib.suppress(Exception):
                        finish()

    return shutdown


def _set_weight_version(original: Any) -> Callable[..., Any]:
    def set_weight_version(engine: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(engine, *args, **kwargs)
        if observer := getattr(getattr(engine, "scheduler", None), _ATTRIBUTE, None):
            observer.weights_named(*args, **kwargs)
        return result

    return set_weight_version


def _close(observer: weakref.ref[EngineObserver]) -> None:
    with contextlib.suppress(Exception):  # the interpreter ends: nothing may be printed over it
        if (alive := observer()) is not None:
            alive.close()


class EngineObserver(CoreObserver):
    """Turns the scheduler's view of each step into rows."""

    def __init__(self, scheduler: Any, settings: Settings) -> None:
        config = scheduler.vllm_config
        self._scheduler, self._ended = scheduler, False
        speculation = config.speculative_config
        self._adaptive = bool(getattr(speculation, "enable_adaptive_verification", False))
        super().__init__(
            settings,
            _role(scheduler),
            served_name(getattr(config, "model_config", None)),
            regions_of(scheduler),
            functools.partial(VerificationTracker, scheduler),
        )
        # An interpreter that ends without a shutdown runs this before the writer's own end. The
        # reference is weak, because nothing else keeps an engine that its user deleted.
        atexit.register(_close, weakref.ref(self))

    def before_update(self, *args: Any, **kwargs: Any) -> None:
        """Observe a step's outcome, given as vLLM has it, before it is applied to the requests."""
        self._guard.run("verify", functools.partial(self._observe, **kwargs), *args)

    def request_finished(self, *args: Any, **kwargs: Any) -> None:
        """Observe a request before it is freed."""
        self._guard.run("request", functools.partial(self._finish, **kwargs), *args)

    def end(self) -> None:
        """Write the requests that still run, and begin to seal the trace; idempotent."""
        if self._ended:
            return
        self._ended = True
        self._guard.run("request", self._finish_running)
        self._writer.end()

    def close(self) -> None:
        """Write the requests that still run, and seal the trace; idempotent."""
        self.end()
        self._writer.close()

    def workers_closed(self) -> None:
        """Close the telemetry after the workers, so that it includes their last figures."""
        if self._telemetry is not None:
            self._telemetry.close()

    def _observe(self, scheduler_output: Any, model_runner_output: Any, *_: Any, **__: Any) -> None:
        requests, served = self._scheduler.requests, []
        scheduled, output = scheduler_output, model_runner_output
        sampled, index = output.sampled_token_ids, output.req_id_to_index
        for name in scheduled.num_scheduled_tokens:
            request = requests.get(name)
            if request is None:
                continue
            stale = getattr(request, "num_stale_output_tokens", 0)  # set after a preemption
            if stale > 0 and getattr(request, "drop_stale_output", False):
                continue  # vLLM is about to discard it
            served.append(
                (
                    request,
                    request.num_tokens,
                    request.num_prompt_tokens,
                    request.status,
                    len(sampled[index[name]]) if sampled else 0,
                )
            )
        admitted = None
        if served and self._adaptive:
            counts = getattr(output, ADMITTED).tolist()
            admitted = dict(zip(output.req_ids, counts, strict=True))
        self._writer.put((self._rows, (time.time(), scheduled, served, admitted)))

    def _finish(self, request: Any, *_: Any, **__: Any) -> None:
        sampling = request.sampling_params
        label, names = label_of(request), getattr(sampling, "extra_args", None)
        row = RequestRow(
            time_s=time.time(),
            request=request.request_id,
            label=label,
            arrival_s=request.arrival_time,
            prompt_tokens=request.num_prompt_tokens,
            output_tokens=request.num_output_tokens,
            ttft_s=None,  # the tracker computes it
            tpot_s=None,
            finish_reason=_finish_reason(request),
            temperature=getattr(sampling, "temperature", None),
            max_tokens=getattr(sampling, "max_tokens", None),
            traced=self._selection.selects(label),
            structured=_structured(sampling),
            traceparent=given_name(getattr(request, "trace_headers", None), "traceparent"),
            session=given_name(names, SESSION) or shortened(getattr(request, "session_id", None)),
            pair=given_name(names, PAIR),
            adapter=adapter_of(request),
        )
        self._writer.put((self._rows, EndedRequest(row=row, request=request)))

    def _finish_running(self) -> None:
        if self._regions is not None:
            self._regions.hurry()
        for request in list(self._scheduler.requests.values()):
            if not request.is_finished():
                self._finish(request)


def _role(scheduler: Any) -> str:
    """Return a unique name per data-parallel engine core; a dense model's all have rank 0."""
    parallel = scheduler.vllm_config.parallel_config
    return f"engine{getattr(parallel, 'data_parallel_index', parallel.data_parallel_rank)}"


def _finish_reason(request: Any) -> str:
    """Return the finish reason. The front end finds a stop string and then aborts, so here a stop
    string and an abort look the same."""
    if not request.is_finished():  # the engine stops
        return ABORT
    reason = str(request.get_finished_reason())
    sampling = request.sampling_params
    return STOP_OR_ABORT if reason == ABORT and getattr(sampling, "stop", None) else reason


def _structured(sampling: Any) -> str | None:
    """Return the constraint on the output; None if this vLLM represents constraints differently."""
    if not hasattr(sampling, "structured_outputs"):
        return None
    asked = sampling.structured_outputs
    kinds = (kind for kind in Structured.KINDS if getattr(asked, kind, None) is not None)
    return next(kinds, Structured.NONE)
