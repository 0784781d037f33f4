"""Turns what SGLang's scheduler makes of each step into rows: verification, and finished requests.

The scheduler sees every step's outcome on the host, so this costs no device synchronisation and
agrees with SGLang's own counters by construction. Written against
sglang.srt.managers.scheduler_components.batch_result_processor and schedule_batch, 0.5.23.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from driftscope_probes import process_writer
from driftscope_probes.control import Control
from driftscope_probes.guard import CORE, Guard
from driftscope_probes.process_writer import open_writer
from driftscope_probes.prompt_digests import ANSWER_TOKENS, PromptDigests
from driftscope_probes.sampler import RequestSelection
from driftscope_probes.settings import Settings, prompt_key
from driftscope_probes.sglang.scheduler.request_label import (
    PAIR,
    SESSION,
    is_own,
    label_of,
    name_in,
)
from driftscope_probes.sglang.scheduler.request_regions import RequestRegions
from driftscope_probes.sglang.scheduler.request_tracker import (
    FinishedRequest,
    Outcome,
    RequestTokens,
    RequestTracker,
    Served,
)
from driftscope_probes.start_guard import EXPORT, StartGuard

if TYPE_CHECKING:
    from driftscope.telemetry.export.engine_telemetry import EngineTelemetry

ABORT = "abort"
"""Finish reason of a request that was ended before it was served."""
ENGINE = "engine0"
"""Role of the scheduler in the run."""
_observers: list[SchedulerObserver] = []
"""The observer of this process: its one scheduler has slots, so that it cannot hold it itself."""


def observe_scheduler(worker: Any, settings: Settings) -> None:
    """Observe the scheduler of this process, which has loaded `worker`, an EagleDraftWorker."""
    _observers[:] = [SchedulerObserver(worker, settings)]


def observer() -> SchedulerObserver | None:
    """Return the observer of this process's scheduler, if there is one."""
    return _observers[0] if _observers else None


class SchedulerObserver:
    """Observes each step's outcome on the serving thread and passes it to the writer's."""

    def __init__(self, worker: Any, settings: Settings) -> None:
        self._worker = worker
        self._writer = open_writer(settings, ENGINE)
        self._telemetry: EngineTelemetry | None = None
        with contextlib.ExitStack() as undo:
            undo.callback(self._writer.close)
            self._begin(settings)
            undo.pop_all()

    def _begin(self, settings: Settings) -> None:
        with StartGuard(EXPORT):
            name = getattr(self._worker.server_args, "served_model_name", None)
            self._telemetry = process_writer.export(self._writer, settings, name)
        self._guard = Guard(
            self._writer, test_raise=settings.test_raise, adds_to=(self._writer, CORE)
        )
        self._selection = RequestSelection(settings.labels)
        Control(settings.trace, self._writer, self._selection).watch()
        digests = PromptDigests(prompt_key(settings)) if settings.prompt_digests else None
        regions = RequestRegions() if settings.regions else None
        self._rows = RequestTracker(self._writer.count_error, digests, regions).rows
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
                Served(
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
        self._writer.put((self._rows, Outcome(time_s=now, served=served)))
        for each in finished:
            self._writer.put((self._rows, each))

    def aborted(self, req: Any) -> None:
        """Observe a request that the scheduler ends outside of a step: in its queue, or after a
        retraction for which there is no room."""
        self._guard.run("request", self._abort, req)

    def _abort(self, req: Any) -> None:
        if not is_own(req):
            self._writer.put((self._rows, self._finished(req)))

    def _drafted(self, result: Any) -> int:
        """Return the length of the chain, or of a tree's longest branch, that was verified."""
        nodes = getattr(result, "speculative_num_draft_tokens", None)
        if nodes is None or self._worker.topk > 1:
            return int(self._worker.speculative_num_steps)
        return int(nodes) - 1

    def _finished(self, req: Any) -> FinishedRequest:
        sampling, now = req.sampling_params, time.time()
        label = label_of(sampling)
        length = req.finished_len
        return FinishedRequest(
            time_s=now,
            request=req.rid,
            label=label,
            arrival_s=now - (time.perf_counter() - _arrival(req.time_stats)),
            prompt_tokens=len(req.origin_input_ids),
            output_tokens=len(req.output_ids) if length is None else length,
            finish_reason=_finish_reason(req),
            temperature=0.0 if sampling.top_k == 1 else float(sampling.temperature),
            max_tokens=sampling.max_new_tokens,
            traced=self._selection.selects(label),
            structured=_structured(sampling),
            session=name_in(sampling, SESSION) or req.session_id,
            pair=name_in(sampling, PAIR),
            tokens=RequestTokens(
                prompt_token_ids=req.origin_input_ids,
                output_token_ids=list(req.output_ids[:length][: self._keeps]),
                tokenizer=req.tokenizer,
            ),
        )


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
