"""Hooks SGLang's EAGLE and n-gram workers, and the target's if nothing drafts, and reports their
steps and chains to a recorder; the only module that knows their methods' arguments.

A step is one `forward_batch_generation`: it drafts from depth 2 on, verifies, and extends the
drafter's cache by the verified tokens, which is depth 1 of the next step's chains. The n-gram
worker drafts without a model: acceptance and timing. Written against
sglang.srt.speculative.eagle_worker_v2 and ngram_worker, and sglang.srt.managers.tp_worker, 0.5.23.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from driftscope.errors import ProbeError, UnknownDrafterError
from driftscope.trace.status import DRAFTER, TARGET
from driftscope.trace.writer import TraceWriter
from driftscope.trace.writer_files import check_unused, create_run, rewrite_manifest
from driftscope_probes import process_writer
from driftscope_probes.control import Control
from driftscope_probes.drafter import Drafter
from driftscope_probes.engine import NOBODY
from driftscope_probes.process_writer import note_loads, open_writer, role_of
from driftscope_probes.recorder import (
    Recorder,
    assemble_recorder,
    check_can_seek,
    settings_of_rank,
    with_sinks,
)
from driftscope_probes.settings import EAGER, Settings, settings_from
from driftscope_probes.sglang.chain import (
    EXTEND_GRAPH,
    AheadSampler,
    DrafterTaps,
    FirstDepths,
    ForwardRows,
    SglangDraftCall,
    without_graph,
)
from driftscope_probes.sglang.drafter import open_drafter
from driftscope_probes.sglang.run_manifest import manifest_of, ranks_of, run_id
from driftscope_probes.sglang.scheduler import (
    WARM_UP,
    SglangSchedules,
    SglangStep,
    is_own_name,
    observe_scheduler,
    step_of,
)
from driftscope_probes.start_guard import (
    EXPORT,
    INTERNALS,
    StartGuard,
    handed_down,
    leave_note,
    warn,
)
from driftscope_probes.step_record import StepTimer

WITHOUT_FIRST_DEPTH = "first_depth_unknown"
"""Count of chains that were not recorded because their first depth was not."""


class TimedWorker:
    """Reports the steps of a worker of which only timing is recorded.

    =====================  ====================================================================
    `step(run, batch)`     run one step
    `draft(run, ...)`      run the drafter from depth 2 on
    `extend(run, ...)`     run the forward that is depth 1 of the next chains
    =====================  ====================================================================
    """

    def __init__(self, recorder: Recorder | StepTimer) -> None:
        self._recorder = recorder

    def step(self, run: Callable[[], Any], batch: Any) -> Any:
        """Return the result of a step of a ScheduleBatch."""
        recorder, requests = self._recorder, len(getattr(batch, "reqs", ()))
        recorder.step_started(self._schedule(batch))
        result = run()
        recorder.step_ended(lambda: requests)
        return result

    def draft(self, run: Callable[[], Any], worker: Any, batch: Any) -> Any:
        """Return what `EagleDraftWorker.draft` returns."""
        call = SglangDraftCall(worker=worker, batch=batch, original=run)
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

    def __init__(
        self, recorder: Recorder, first: FirstDepths, layers: tuple[str, ...], writer: TraceWriter
    ) -> None:
        """`layers`: names of the drafter's attention layers."""
        super().__init__(recorder)
        self._first, self._layers, self._writer = first, layers, writer
        self._guard, self._selection = recorder.guard, recorder.selection
        taps: Any = recorder.taps
        sampler: Any = recorder.sampler
        self._taps: DrafterTaps = taps
        self._sampler: AheadSampler = sampler
        self._taking = True
        """Whether the step's chains may be recorded; most steps are not, and ask for nothing."""

    def draft(self, run: Callable[[], Any], worker: Any, batch: Any) -> Any:
        """See TimedWorker."""
        if not self._taking:
            return super().draft(run, worker, batch)
        names = self._guard.run("first_depth", _names, batch) or ()
        call = SglangDraftCall(
            worker=worker,
            batch=batch,
            original=run,
            layers=self._layers,
            missing=self._guard.run("first_depth", self._without_chain, names) or NOBODY,
            first=lambda: self._guard.run("first_depth", self._pass_first, names),
        )
        self._recorder.draft(call)
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
                self._guard.run("extend_ended", self._taps.extended)
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
        without = NOBODY
        if batch.forward_mode.is_extend():
            for req in batch.reqs:
                WARM_UP.look(req)
            return step_of(batch, without)
        self._taking = self._sampler.ahead()
        if self._taking:
            names = tuple(req.rid for req in batch.reqs)
            without = self._without_chain(names)
            if without:
                self._count_lost(names, without)
        return step_of(batch, without)

    def _count_lost(self, names: tuple[str, ...], without: frozenset[str]) -> None:
        """Count the chains that should have been recorded: SGLang's own requests and those that are
        not selected have none."""
        lost = [n in without and not is_own_name(n) for n in names]
        chosen = self._selection.chosen(names)
        if chosen is not None:
            lost = [is_lost and bool(keep) for is_lost, keep in zip(lost, chosen, strict=True)]
        if any(lost):
            self._writer.count_dropped(WITHOUT_FIRST_DEPTH, sum(lost))

    def _without_chain(self, names: tuple[str, ...]) -> frozenset[str]:
        """Return the requests of a recorded step of which no chain is written."""
        return self._first.missing(names) | frozenset(filter(is_own_name, names))

    def _on_extend_started(self, batch: Any, rows: Callable[[], ForwardRows]) -> ForwardRows | None:
        recorded = self._sampler.ahead()
        if not recorded and self._first.is_empty:
            return None
        names = tuple(req.rid for req in batch.reqs)
        self._first.drop(names)
        chosen = self._selection.chosen(names)
        if not names or not recorded or (chosen is not None and not chosen.any()):
            return None
        wanted = rows()
        self._taps.extending(wanted)
        return wanted

    def _on_extend_ended(self, batch: Any) -> None:
        states = self._taps.extended()
        if states is not None and not self._guard.failed:
            self._first.keep(tuple(req.rid for req in batch.reqs), states)

    def _pass_first(self, names: tuple[str, ...]) -> None:
        states = self._first.take(names)
        if states is None:
            raise LookupError("no request's first depth is known")
        self._taps.first_depth(states)


def _names(batch: Any) -> tuple[str, ...]:
    return tuple(req.rid for req in batch.reqs)


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


PROBE = "_driftscope_probe"
"""Attribute of an EagleDraftWorker that holds its TimedWorker or RecordedWorker."""
_UNKNOWN = ("pp_size", "attn_cp_size", "dcp_size", "enable_dp_attention")
"""Server arguments of parallelism of which this driftscope was not tested."""


def attach(worker: Any) -> None:
    """Attach a recorder to an EagleDraftWorker if the probe is on, or else time its steps.

    Raises an exception only with DRIFTSCOPE_STRICT=1.
    """
    guard = StartGuard()
    with guard:
        settings = settings_from(os.environ)
        if settings is None or handed_down() is not None or hasattr(worker, PROBE):
            return
        _attach(worker, replace(settings, recording=EAGER))
    if guard.fault is not None:
        if hasattr(worker, PROBE):
            delattr(worker, PROBE)
        leave_note(Path(os.environ["DRIFTSCOPE_TRACE"]), guard.fault, "worker0")


def _attach(worker: Any, settings: Settings) -> None:
    for name in _UNKNOWN:
        value = getattr(worker.server_args, name, 1)
        if value is True or int(value or 1) > 1:
            raise ProbeError(
                f"{name} = {value} is not supported by this driftscope in SGLang; tp_size and "
                "dp_size are"
            )
    ranks = ranks_of(worker.server_args)
    check_unused(settings.trace, run_id(worker.server_args))  # before anything is written or hooked
    check_can_seek(settings, ranks.ranks, ranks.replicas)
    settings, notes = settings_of_rank(settings, ranks.rank, ranks.ranks)
    drafter, lost = _drafter_of(worker) if worker.speculative_num_steps else (None, "")
    writer = open_writer(settings, role_of(ranks.place))
    with contextlib.ExitStack() as undo:
        undo.callback(writer.close)
        with StartGuard(EXPORT):
            process_writer.publish(writer, settings)
        probe: TimedWorker | None = None
        if drafter is not None:
            inside = StartGuard(INTERNALS, quiet=True)
            with inside:
                probe = _recorded(worker, drafter, settings, writer, notes)
            if inside.fault is not None:
                lost = f"{INTERNALS}: {inside.fault.reason}"
        if probe is None:
            probe = _timed(worker, settings, writer, lost)
        observe_scheduler(worker, settings, ranks.rank, ranks.replica)
        with StartGuard("updates of the weights are not noted"):
            note_loads(writer, worker.target_worker.model_runner.model, TARGET)
            note_loads(writer, getattr(worker.draft_runner, "model", None), DRAFTER)
        undo.pop_all()
    setattr(worker, PROBE, probe)


def _drafter_of(worker: Any) -> tuple[Drafter | None, str]:
    """Return the drafter, or else why its inside cannot be recorded."""
    try:
        return open_drafter(worker), ""
    except UnknownDrafterError as error:
        return None, str(error)
    except (AttributeError, KeyError, TypeError, ImportError) as error:
        return None, f"{INTERNALS}: this SGLang is not laid out as driftscope knows it ({error!r})"


def _timed(worker: Any, settings: Settings, writer: TraceWriter, note: str) -> TimedWorker:
    """Begin a run of acceptance and timing; without a `note` nothing is missing, because nothing
    drafts."""
    create_run(settings.trace, manifest_of(worker, settings, note), join=True)
    if note:
        writer.set_gauges(reason=note)
        warn(f"{note}; acceptance and timing are recorded")
    return TimedWorker(StepTimer(settings, writer, SglangSchedules()))


def _recorded(
    worker: Any,
    drafter: Drafter,
    settings: Settings,
    writer: TraceWriter,
    notes: tuple[str, ...],
) -> RecordedWorker:
    """Begin a run with the drafter's inside."""
    ranks = ranks_of(worker.server_args)
    recorder = assemble_recorder(
        drafter,
        settings,
        writer,
        schedules=SglangSchedules(),
        make_taps=DrafterTaps,
        make_sampler=AheadSampler,
        later_rank=ranks.rank > 0,
    )
    recorder.taps.attach(worker, "draft_runner")
    manifest = manifest_of(worker, settings, drafter=drafter, meter=recorder.meter)
    manifest = replace(
        manifest, notes=(*manifest.notes, *notes), device_bytes=recorder.device_bytes
    )
    create_run(settings.trace, manifest, join=True)
    if recorder.search is not None:
        recorder.search.report = lambda sinks: rewrite_manifest(
            settings.trace, with_sinks(manifest, sinks)
        )
    control = Control(
        settings.trace, writer, recorder.selection, recorder, governed=ranks.ranks == 1
    )
    control.watch()
    recorder.control = control
    first = FirstDepths(2 * drafter.max_requests)
    return RecordedWorker(recorder, first, tuple(drafter.layers), writer)


VIEW = "_driftscope_view"
"""Attribute of a worker without a drafting model that holds its WorkerView."""


class WorkerView:
    """The attributes of an EagleDraftWorker that a recording reads, of another worker, whose
    drafts come from no model or which has none."""

    topk = 1
    draft_runner = None
    """No model drafts."""

    def __init__(self, worker: Any, target_worker: Any, k: int) -> None:
        """`k`: nodes of the tree that is verified, without its root; 0 if nothing drafts."""
        self.server_args, self.device = worker.server_args, worker.device
        self.target_worker = target_worker
        self.speculative_num_draft_tokens = k + 1
        self.speculative_num_steps = k


def _then(action: Callable[[Any], None]) -> Callable[[Any], Callable[..., Any]]:
    """Return a hook that runs `action` on a worker once it has initialised."""

    def around(original: Any) -> Callable[..., Any]:
        def initialise(worker: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(worker, *args, **kwargs)
            with StartGuard():
                action(worker)
            return result

        return initialise

    return around


def _attach_view(worker: Any, target_worker: Any, k: int) -> None:
    """Attach a timer to a worker without a drafting model."""
    view = WorkerView(worker, target_worker, k)
    attach(view)
    setattr(worker, VIEW, view)


def _attach_target(worker: Any) -> None:
    if worker.model_config.is_generation and worker.server_args.speculative_algorithm is None:
        _attach_view(worker, worker, 0)


init_drafter = _then(lambda worker: attach(worker))
init_target = _then(_attach_target)
init_ngram = _then(
    lambda worker: _attach_view(worker, worker.target_worker, int(worker.draft_token_num) - 1)
)
"""Hooks of what the workers do last before they serve."""


def _probe_of(worker: Any, batch: Any) -> Any:
    """Return what records a worker's steps; None if nothing does, or if a ScheduleBatch has no
    requests, as that of an idle rank."""
    drafting = getattr(worker, VIEW, None) or getattr(worker, "_draft_worker", worker)
    return getattr(drafting, PROBE, None) if getattr(batch, "reqs", None) else None


def step(original: Any) -> Callable[..., Any]:
    """Hook a worker's forward_batch_generation."""

    def forward_batch_generation(worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        probe = _probe_of(worker, batch)
        if probe is None:
            return original(worker, batch, *args, **kwargs)
        return probe.step(lambda: original(worker, batch, *args, **kwargs), batch)

    return forward_batch_generation


def draft(original: Any) -> Callable[..., Any]:
    """Hook a drafting method; an n-gram worker's prepares a prefill, too, which drafts nothing."""

    def drafting(worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        probe, view = _probe_of(worker, batch), getattr(worker, VIEW, None)
        drafts = not kwargs.get("with_topology") if view is None else batch.forward_mode.is_decode()
        if probe is None or not drafts:
            return original(worker, batch, *args, **kwargs)
        run = functools.partial(original, worker, batch, *args, **kwargs)
        return probe.draft(run, worker if view is None else view, batch)

    return drafting


def _extends(rows: Callable[..., ForwardRows]) -> Callable[[Any], Callable[..., Any]]:
    """Return a hook of a method that extends the drafter's cache; `rows` are the wanted ones, from
    its arguments."""

    def around(original: Any) -> Callable[..., Any]:
        def extend(worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
            probe = _probe_of(worker, batch)
            if probe is None:
                return original(worker, batch, *args, **kwargs)
            run = functools.partial(original, worker, batch, *args, **kwargs)
            return probe.extend(run, worker, batch, lambda: rows(worker, batch, *args))

        return extend

    return around


extend_for_prefill = _extends(lambda _, batch, *__: rows_after_prefill(batch))
extend_for_decode = _extends(
    lambda worker, _, verified, *__: rows_after_verification(
        verified.accept_lens, worker.speculative_num_draft_tokens
    )
)
"""Hooks of EagleDraftWorker."""
