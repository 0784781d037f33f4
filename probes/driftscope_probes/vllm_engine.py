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

from driftscope.trace.records import RequestRow, UndraftedReason, VerifyRow
from driftscope.trace.writer import TraceWriter
from driftscope_probes import support
from driftscope_probes.control import Control
from driftscope_probes.guard import Guard
from driftscope_probes.labels import Selection, label_of
from driftscope_probes.process import open_writer
from driftscope_probes.settings import Settings, settings_from

_ATTRIBUTE = "_driftscope_observer"


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
    if observer := getattr(getattr(engine, "scheduler", None), _ATTRIBUTE, None):
        observer.close()
    return wrapped(*args, **kwargs)


@dataclass(slots=True)
class _Live:
    """What is remembered of a running request."""

    first_token_s: float | None = None
    last_token_s: float | None = None
    asked_k: int | None = None
    """Draft tokens that the schedule asked for in the request's latest step."""


class EngineObserver:
    """Turns the scheduler's view of each step into rows."""

    def __init__(self, scheduler: Any, settings: Settings) -> None:
        self._scheduler = scheduler
        self._writer: TraceWriter = open_writer(settings, "engine0")
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

    def _observe(self, scheduled: Any, output: Any) -> None:
        now, rows = time.time(), []
        self._step += 1
        for request_id in scheduled.num_scheduled_tokens:
            request = self._scheduler.requests.get(request_id)
            if request is None or request.is_finished() or _is_stale(request):
                continue
            tokens = _tokens_of(output, request_id)
            live = self._live.setdefault(request_id, _Live())
            if tokens and request.num_output_tokens > 0:
                rows.append(self._verified(scheduled, request, live, len(tokens), now))
            live.asked_k = getattr(scheduled, "num_spec_tokens_to_schedule", None)
            if tokens:
                live.first_token_s = live.first_token_s or now
                live.last_token_s = now
        if rows:
            self._writer.put(lambda: rows)

    def _verified(
        self, scheduled: Any, request: Any, live: _Live, tokens: int, now: float
    ) -> VerifyRow:
        request_id = request.request_id
        drafted = len(scheduled.scheduled_spec_decode_tokens.get(request_id, ()))
        invalid = (scheduled.num_invalid_spec_tokens or {}).get(request_id, 0)
        return VerifyRow(
            step=self._step,
            time_s=now,
            request=request_id,
            position=request.num_tokens - 2,
            drafted=drafted - invalid,
            accepted=tokens - 1 if drafted else 0,
            reason=None
            if drafted > invalid
            else self._reason(scheduled, request, live, rejected=invalid > 0),
        )

    def _reason(self, scheduled: Any, request: Any, live: _Live, *, rejected: bool) -> str:
        if rejected:
            return UndraftedReason.STRUCTURED_OUTPUT
        if live.asked_k == 0:
            return UndraftedReason.K_ZERO
        resumed = getattr(scheduled.scheduled_cached_reqs, "resumed_req_ids", ())
        if request.request_id in resumed:
            return UndraftedReason.PREEMPTED
        room = self._scheduler.max_model_len - request.num_tokens
        if room <= self._scheduler.num_spec_tokens:
            return UndraftedReason.CONTEXT_LIMIT
        if request.use_structured_output:
            return UndraftedReason.STRUCTURED_OUTPUT
        return UndraftedReason.NO_DRAFT

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
                finish_reason=str(request.get_finished_reason()),
                temperature=getattr(sampling, "temperature", None),
                max_tokens=getattr(sampling, "max_tokens", None),
                traced=self._selection.selects(label),
            )
        )


def _is_stale(request: Any) -> bool:
    """An output that vLLM is about to throw away after a preemption."""
    stale = getattr(request, "num_stale_output_tokens", 0) > 0
    return stale and bool(getattr(request, "drop_stale_output", False))


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
