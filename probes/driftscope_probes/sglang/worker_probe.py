"""The life of SGLang's steps and chains in the worker: reports both to a recorder.

A step is one `forward_batch_generation`: it drafts from depth 2 on, verifies, and extends the
drafter's cache by the verified tokens, which is depth 1 of the next step's chains.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from driftscope.trace.write.writer import TraceWriter
from driftscope_probes.engine import NOBODY, StepSink
from driftscope_probes.recorder import Recorder
from driftscope_probes.sglang.chain.ahead_sampler import AheadSampler
from driftscope_probes.sglang.chain.draft_call import EXTEND_GRAPH, SglangDraftCall, without_graph
from driftscope_probes.sglang.chain.drafter_taps import DrafterTaps, ForwardRows
from driftscope_probes.sglang.chain.first_depths import FirstDepths
from driftscope_probes.sglang.scheduler.request_label import WARM_UP, is_own_name
from driftscope_probes.sglang.scheduler.schedules import SglangStep, step_of

WITHOUT_FIRST_DEPTH = "first_depth_unknown"
"""Count of chains that were not recorded because their first depth was not."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainParts:
    """The parts of a worker whose drafter's inside is recorded."""

    recorder: Recorder
    taps: DrafterTaps
    sampler: AheadSampler
    first: FirstDepths
    layers: tuple[str, ...]
    """Names of the drafter's attention layers."""
    writer: TraceWriter


class TimedWorker:
    """Reports the steps of a worker of which only timing is recorded; see `EngineSeam`.

    =====================  ====================================================================
    `step(run, batch)`     run one step
    `draft(run, ...)`      run the drafter from depth 2 on
    `extend(run, ...)`     run the forward that is depth 1 of the next chains
    =====================  ====================================================================
    """

    def __init__(self, recorder: StepSink) -> None:
        self._recorder = recorder

    def step(self, run: Callable[[], Any], batch: Any) -> Any:
        """Return the result of a step of a ScheduleBatch."""
        recorder, requests = self._recorder, len(batch.reqs)
        recorder.step_started(self._schedule(batch))
        result = run()
        recorder.step_ended(requests)
        return result

    def draft(self, run: Callable[[], Any], worker: Any, batch: Any) -> Any:
        """Return what `EagleDraftWorker.draft` returns."""
        call = SglangDraftCall(worker, batch, run)
        self._recorder.draft(call)
        return call.result

    def extend(
        self,
        run: Callable[[], Any],
        worker: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        rows: Callable[[], ForwardRows],  # noqa: ARG002
    ) -> Any:
        """Return what an extending method of EagleDraftWorker returns; `rows` are the wanted ones
        of its forward."""
        begun = time.perf_counter()
        result = run()
        self._recorder.add_draft_time(time.perf_counter() - begun)
        return result

    def _schedule(self, batch: Any) -> SglangStep | None:  # noqa: ARG002
        return None


class RecordedWorker(TimedWorker):
    """Reports a worker's steps, and the chains of those that are sampled."""

    def __init__(self, parts: ChainParts) -> None:
        super().__init__(parts.recorder)
        self._parts, self._guard = parts, parts.recorder.guard
        self._taking = True
        """Whether the step's chains may be recorded; most steps are not, and ask for nothing."""

    def draft(self, run: Callable[[], Any], worker: Any, batch: Any) -> Any:
        """See TimedWorker."""
        if not self._taking:
            return super().draft(run, worker, batch)
        parts = self._parts
        names = tuple(req.rid for req in batch.reqs)
        call = SglangDraftCall(
            worker,
            batch,
            run,
            layers=parts.layers,
            missing=self._guard.run("first_depth", self._without_chain, names) or NOBODY,
            first=lambda: self._guard.run("first_depth", self._pass_first, names),
        )
        parts.recorder.draft(call)
        return call.result

    def extend(
        self,
        run: Callable[[], Any],
        worker: Any,
        batch: Any,
        rows: Callable[[], ForwardRows],
    ) -> Any:
        """See TimedWorker."""
        wanted = self._guard.run("extend_started", self._on_extend_started, batch, rows)
        if wanted is None:
            if self._guard.failed:
                self._guard.run("extend_ended", self._parts.taps.extended)
            return super().extend(run, worker, batch, rows)
        try:
            return super().extend(
                lambda: without_graph(worker, EXTEND_GRAPH, run), worker, batch, rows
            )
        finally:
            self._guard.run("extend_ended", self._on_extend_ended, batch)

    def _schedule(self, batch: Any) -> SglangStep | None:
        self._taking = True
        return self._guard.run("schedule", self._on_schedule, batch)

    def _on_schedule(self, batch: Any) -> SglangStep:
        parts, without = self._parts, NOBODY
        if batch.forward_mode.is_extend():
            for req in batch.reqs:
                WARM_UP.look(req)
            return step_of(batch, without)
        self._taking = parts.sampler.ahead()
        if self._taking:
            names = tuple(req.rid for req in batch.reqs)
            without = self._without_chain(names)
            if without:
                self._count_lost(names, without)
        return step_of(batch, without)

    def _count_lost(self, names: tuple[str, ...], without: frozenset[str]) -> None:
        """Count the chains that should have been recorded: SGLang's own requests and those that are
        not selected have none."""
        parts, lost = self._parts, [n in without and not is_own_name(n) for n in names]
        chosen = parts.recorder.selection.chosen(names)
        if chosen is not None:
            lost = [each and bool(mine) for each, mine in zip(lost, chosen, strict=True)]
        if any(lost):
            parts.writer.count_dropped(WITHOUT_FIRST_DEPTH, sum(lost))

    def _without_chain(self, names: tuple[str, ...]) -> frozenset[str]:
        """Return the requests of a recorded step of which no chain is written."""
        return self._parts.first.missing(names) | frozenset(filter(is_own_name, names))

    def _on_extend_started(self, batch: Any, rows: Callable[[], ForwardRows]) -> ForwardRows | None:
        parts, recorded = self._parts, self._parts.sampler.ahead()
        if not recorded and parts.first.is_empty:
            return None
        names = tuple(req.rid for req in batch.reqs)
        parts.first.drop(names)
        chosen = parts.recorder.selection.chosen(names)
        if not names or not recorded or (chosen is not None and not chosen.any()):
            return None
        wanted = rows()
        parts.taps.extending(wanted)
        return wanted

    def _on_extend_ended(self, batch: Any) -> None:
        states = self._parts.taps.extended()
        if states is not None and not self._guard.failed:
            self._parts.first.keep(tuple(req.rid for req in batch.reqs), states)

    def _pass_first(self, names: tuple[str, ...]) -> None:
        states = self._parts.first.take(names)
        if states is None:
            raise LookupError("no request's first depth is known")
        self._parts.taps.first_depth(states)


def rows_after_prefill(batch: Any) -> ForwardRows:
    """Return each request's last row; SGLang computes logits of these only."""
    lengths = torch.as_tensor(batch.extend_lens, dtype=torch.int64)
    return ForwardRows((lengths.cumsum(0) - 1).to(batch.seq_lens.device), pruned=True)


def rows_after_verification(accepted: torch.Tensor, width: int) -> ForwardRows:
    """Return each request's row of the last verified slot, among `width` rows a request.

    `accepted` [requests]: number of accepted tokens, the target's own included.
    """
    first = torch.arange(len(accepted), device=accepted.device) * width
    return ForwardRows(first + accepted.long() - 1, pruned=False)
