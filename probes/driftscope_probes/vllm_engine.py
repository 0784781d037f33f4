"""vLLM's engine core: verification and requests, as its scheduler counts them.

The scheduler sees every step's outcome on the host, whichever runner made it, so this costs no
device synchronisation and agrees with vLLM's own counters by construction.
Read with vllm.v1.core.sched.scheduler and vllm.v1.engine.core, 0.27 to 0.32.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import wrapt

from driftscope.trace.records import RequestRow, Structured, VerifyRow
from driftscope.trace.writer import TraceWriter
from driftscope_probes import support, telemetry
from driftscope_probes.control import Control
from driftscope_probes.guard import Guard
from driftscope_probes.labels import Selection, label_of
from driftscope_probes.process import open_writer
from driftscope_probes.settings import Settings, settings_from
from driftscope_probes.vllm_schedule import Schedule, read_schedule, undrafted_reason

_ATTRIBUTE = "_driftscope_observer"
STOP_OR_ABORT = "stop_string_or_abort"
"""Finish reason of a request with stop strings that was aborted."""


def install_scheduler(module: Any) -> None:
    """Hook vllm.v1.core.sched.scheduler."""
    wrapt.wrap_function_wrapper(module, "Scheduler.__init__", _init)
    wrapt.wrap_function_wrapper(module, "Scheduler.update_from_output", _update_from_output)
    wrapt.wrap_function_wrapper(module, "Scheduler._free_request", _free_request)


def install_engine(module: Any) -> None:
    """Hook vllm.v1.engine.core."""
    wrapt.wrap_function_wrapper(module, "EngineCore.shutdown", _shutdown)


def _init(wrapped: Any, scheduler: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    settings = settings_from(os.environ)
    if settings is not None:
        support.check_speculation(scheduler.vllm_config)
        setattr(scheduler, _ATTRIBUTE, EngineObserver(scheduler, settings))


def _update_from_output(wrapped: Any, scheduler: Any, args: Any, kwargs: Any) -> Any:
    if observer := getattr(scheduler, _ATTRIBUTE, None):
        observer.before_update(*args, **kwargs)
    return wrapped(*args, **kwargs)


def _free_request(wrapped: Any, scheduler: Any, args: Any, kwargs: Any) -> Any:
    if observer := getattr(scheduler, _ATTRIBUTE, None):
        observer.request_finished(*args, **kwargs)
    return wrapped(*args, **kwargs)


def _shutdown(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
    """Close first: vLLM then waits for its workers, and may be killed while it does."""
    observer = getattr(getattr(engine, "scheduler", None), _ATTRIBUTE, None)
    if observer is not None:
        observer.close()
    try:
        return wrapped(*args, **kwargs)
    finally:
        if observer is not None:
            observer.workers_closed()


@dataclass(slots=True)
class _Live:
    """What is remembered of a running request."""

    first_token_s: float | None = None
    last_token_s: float | None = None
    latest: Schedule | None = None
    """Of the request's latest step, whose draft the next one verifies."""
    resumed: bool = False
    """Back from a preemption, with its tokens being computed once more."""


class EngineObserver:
    """Turns the scheduler's view of each step into rows."""

    def __init__(self, scheduler: Any, settings: Settings) -> None:
        self._scheduler = scheduler
        self._writer: TraceWriter = open_writer(settings, _role(scheduler))
        self._speaker = telemetry.speak(
            self._writer, settings, getattr(scheduler.vllm_config, "model_config", None)
        )
        self._guard = Guard(self._writer, test_raise=settings.test_raise)
        self._selection = Selection(settings.labels)
        Control(settings.trace, self._writer, self._selection).watch()
        self._live: dict[str, _Live] = {}
        self._step = 0

    def before_update(self, scheduled: Any, output: Any, *_: Any, **__: Any) -> None:
        """A step's outcome is about to be applied to the requests."""
        self._guard.run("verify", lambda: self._observe(scheduled, output))
        self._guard.reset()

    def request_finished(self, request: Any, *_: Any, **__: Any) -> None:
        """A request is about to be freed."""
        self._guard.run("request", lambda: self._finish(request))
        self._guard.reset()

    def close(self) -> None:
        """Seal the trace."""
        self._writer.close()

    def workers_closed(self) -> None:
        """What the workers said last can be told."""
        if self._speaker is not None:
            self._speaker.close()

    def _observe(self, scheduled: Any, output: Any) -> None:
        now, rows = time.time(), []
        schedule = read_schedule(self._scheduler, scheduled)
        self._step += 1
        for request_id in scheduled.num_scheduled_tokens:
            request = self._scheduler.requests.get(request_id)
            if request is None or request.is_finished() or _is_dropped(request):
                continue
            tokens = _tokens_of(output, request_id)
            live = self._live.setdefault(request_id, _Live())
            if request_id in schedule.admitted and request.num_output_tokens > 0:
                live.resumed = True
            if tokens:
                again, live.resumed = live.resumed, False
                if request.num_output_tokens > 0:
                    rows.append(self._verified(schedule, request, live, len(tokens), now, again))
                live.first_token_s = live.first_token_s or now
                live.last_token_s = now
            live.latest = schedule
        if rows:
            self._writer.put(lambda: rows)

    def _verified(
        self, schedule: Schedule, request: Any, live: _Live, tokens: int, now: float, again: bool
    ) -> VerifyRow:
        filled = live.latest is None or live.latest.drafts
        drafted = schedule.drafted(request.request_id) if filled and not again else 0
        return VerifyRow(
            step=self._step,
            time_s=now,
            request=request.request_id,
            position=request.num_tokens - 2,
            drafted=drafted,
            accepted=tokens - 1 if drafted else 0,
            reason=None
            if drafted
            else undrafted_reason(schedule, live.latest, request, again=again),
        )

    def _finish(self, request: Any) -> None:
        live = self._live.pop(request.request_id, _Live())
        sampling = request.sampling_params
        label = label_of(sampling)
        self._writer.put(
            RequestRow(
                time_s=time.time(),
                request=request.request_id,
                label=label,
                arrival_s=request.arrival_time,
                prompt_tokens=request.num_prompt_tokens,
                output_tokens=request.num_output_tokens,
                ttft_s=_difference(live.first_token_s, request.arrival_time),
                tpot_s=_per_token(live, request.num_output_tokens),
                finish_reason=_finish_reason(request),
                temperature=getattr(sampling, "temperature", None),
                max_tokens=getattr(sampling, "max_tokens", None),
                traced=self._selection.selects(label),
                structured=_structured(sampling),
                traceparent=(getattr(request, "trace_headers", None) or {}).get("traceparent"),
            )
        )


def _role(scheduler: Any) -> str:
    """One name for each data-parallel engine core, dense or not: a dense model's are all rank 0."""
    parallel = scheduler.vllm_config.parallel_config
    return f"engine{getattr(parallel, 'data_parallel_index', parallel.data_parallel_rank)}"


def _is_dropped(request: Any) -> bool:
    """An output that vLLM is about to throw away after a preemption."""
    stale = getattr(request, "num_stale_output_tokens", 0) > 0
    return stale and bool(getattr(request, "drop_stale_output", False))


def _finish_reason(request: Any) -> str:
    """A stop string is found by the front end, which then aborts: here the two look the same."""
    reason = str(request.get_finished_reason())
    sampling = request.sampling_params
    return STOP_OR_ABORT if reason == "abort" and getattr(sampling, "stop", None) else reason


def _structured(sampling: Any) -> str | None:
    """What the output is held to; None where this vLLM has another way to say so."""
    if not hasattr(sampling, "structured_outputs"):
        return None
    asked = sampling.structured_outputs
    held = (kind for kind in Structured.KINDS if getattr(asked, kind, None) is not None)
    return next(held, Structured.NONE)


def _tokens_of(output: Any, request_id: str) -> list[int]:
    if not output.sampled_token_ids:
        return []
    tokens: list[int] = output.sampled_token_ids[output.req_id_to_index[request_id]]
    return tokens


def _difference(later: float | None, earlier: float) -> float | None:
    return None if later is None else max(0.0, later - earlier)


def _per_token(live: _Live, tokens: int) -> float | None:
    if live.first_token_s is None or live.last_token_s is None or tokens < 2:
        return None
    return (live.last_token_s - live.first_token_s) / (tokens - 1)
