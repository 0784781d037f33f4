"""The life of a draft step: a runner module reports it to the recorder, and it ends in the writer's
queue. `assemble_recorder` builds a worker's recorder from its drafter and its settings."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from driftscope.errors import ProbeError
from driftscope.trace.manifest import Manifest, Model
from driftscope.trace.records import edges_of
from driftscope.trace.writer import Encode, TraceWriter
from driftscope.vocabulary import SINK_FOUND, SINK_SOUGHT
from driftscope_probes.buffers import NO_MARKS, ChainBuffers, DeviceClock, Layout
from driftscope_probes.chain import (
    ChainMeasurement,
    HostTransfer,
    OptionalMasses,
    RecordedDraft,
)
from driftscope_probes.cpu_kernels import CompiledKernels, SideThread
from driftscope_probes.drafter import Drafter
from driftscope_probes.encoder import END, ChainEncoder, EncoderOptions
from driftscope_probes.engine import NO_LENGTHS, DraftCall, ScheduleReader, Verification
from driftscope_probes.guard import CORE, Guard
from driftscope_probes.kernels import Kernels, TorchKernels
from driftscope_probes.meter import Meter
from driftscope_probes.near_misses import KeptLogits
from driftscope_probes.sampler import AIM, SEEN, RequestSelection, Sampler, detail_choices
from driftscope_probes.settings import IN_GRAPH, SHADOW, Settings
from driftscope_probes.sink_search import MIN_CHAINS, MIN_REQUESTS, SinkSearch, SinkSet
from driftscope_probes.taps import ChainTaps, ForwardObserver, MakeTaps, Taps
from driftscope_probes.witness import StartWitness, WitnessResult

SINKS_SOUGHT = (
    "the search for the sink set had not finished: attention masses are recorded once it is found, "
    f"{MIN_CHAINS} recorded chains of {MIN_REQUESTS} requests into the run"
)
"""Note in the manifest of a run whose sink set has not been determined yet."""
TRIES = 3
"""Number of chains that the start-up witness may fail to measure."""
CHAINS = 2
"""Number of chains in a row that do not agree with the start-up witness before nothing more is
recorded: what is wrong with a drafter is wrong with each of its chains, while one may be of a step
that is like no other."""
IDENTIFIERS_OFF = "request ids are keyed hashes, and no trace context was recorded"
"""Note in the manifest of a run that was recorded with DRIFTSCOPE_IDENTIFIERS=off."""


def with_sinks(manifest: Manifest, sinks: SinkSet) -> Manifest:
    """Return `manifest` with the sink set that the search has found."""
    return replace(
        manifest,
        sink_tokens=len(sinks.slots),
        sink_slots=sinks.slots,
        sink_source=SINK_FOUND,
        notes=(*(note for note in manifest.notes if note != SINKS_SOUGHT), sinks.note),
    )


RANKS_EVERY = 64
"""Sampling interval, in draft steps, for tensor-parallel ranks, which cannot follow a budget. If a
recorded step costs half of another step's time, this stays within the default budget."""


def settings_of_rank(settings: Settings, rank: int, ranks: int) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings of one tensor-parallel rank, and notes about them for a reader.

    All ranks must record the same steps. A budget's rate would depend on each rank's own
    measurements, so the rate is fixed instead. Rank 0 writes what is identical on all ranks.
    """
    if rank > 0:
        settings = replace(settings, token_ids=False)
    if ranks == 1 or settings.every is not None:
        return settings, ()
    note = (
        f"one draft step in {RANKS_EVERY} was recorded, whatever it cost: with tensor parallelism "
        "there is no budget; DRIFTSCOPE_EVERY sets another rate"
    )
    return replace(settings, every=RANKS_EVERY), (note,)


def check_can_seek(settings: Settings, ranks: int, replicas: int) -> None:
    """Refuse a sink search in several processes: each sees its own heads or requests and could find
    another sink set."""
    if settings.sink_source == SINK_SOUGHT and max(ranks, replicas) > 1:
        raise ProbeError(
            "DRIFTSCOPE_SINK_TOKENS=auto searches for one sink set in one worker: record this "
            "engine once with tensor and data parallel size 1, then set the slots that the search "
            "finds"
        )


def settings_in_manifest(settings: Settings) -> dict[str, Any]:
    """Return the fields of a manifest that follow from the settings and the machine alone."""
    return {
        "hardware": _hardware(),
        "every": settings.every or 1,
        "budget": None if settings.every else settings.budget,
        "sink_tokens": len(settings.sink_slots),
        "sink_slots": settings.sink_slots,
        "sink_source": settings.sink_source,
    }


def _hardware() -> str:
    """Return the name of the GPU in use, or of the CPU with its number of cores; "" if the machine
    names none."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else ""


def masses_in_manifest(drafter: Drafter, settings: Settings, meter: Meter) -> dict[str, Any]:
    """Return the fields of a manifest on the masses that are recorded."""
    every = distance_every(meter, settings)
    return {
        "drafter_layers": len(drafter.layers),
        "attention_strategy": meter.strategy,
        "distance_every": every,
        "distance_edges": edges_of(drafter.k) if every else (),
    }


def model_in_manifest(name: str, architecture: str, dtype: object, config: Any) -> Model:
    """Return what identifies a model of this Hugging Face `config`, without its weights."""
    raw = json.dumps(config.to_dict(), sort_keys=True, default=str)
    return Model(
        name=name,
        architecture=architecture,
        config_digest=hashlib.sha256(raw.encode()).hexdigest()[:16],
        dtype=str(dtype).removeprefix("torch."),
    )


class Recorder:
    """Records steps: call `step_started`, perhaps `draft`, `step_ended` for each, in order."""

    def __init__(
        self,
        *,
        writer: TraceWriter,
        schedules: ScheduleReader,
        guard: Guard,
        clock: DeviceClock,
        taps: ChainTaps,
        sampler: Sampler,
        selection: RequestSelection,
        chain: ChainMeasurement,
        transfer: HostTransfer,
        recorded_draft: RecordedDraft,
        near_misses: KeptLogits,
        encode: Encode,
    ) -> None:
        """`schedules` reads what the engine schedules; `encode` builds the rows of finished steps,
        on the writer's thread."""
        self.near_misses = near_misses
        self._writer, self._encode, self._clock = writer, encode, clock
        self._schedules, self._new_requests = schedules, schedules.new_requests
        self._guard = guard
        self._attributed_s, self._core_attributed_s = 0.0, CORE.probe_s
        """Hook time attributed to finished steps, in seconds: the worker's, the engine core's."""
        self.taps, self.sampler, self.selection = taps, sampler, selection
        self._hooks, self._switch = taps.hooks, taps.switch
        self._chain, self._side_thread = chain, chain.side_thread
        self._transfer, self._run_served = transfer, recorded_draft.run
        self._run_recorded, self._take = self._run_served, sampler.take
        self._witness: StartWitness | None = None
        self._tries, self._judged, self._drafts_ahead = 0, 0, False
        self._report_verdict: Callable[[WitnessResult], None] = lambda _: None
        self.control: object | None = None
        """Object that changes this recorder at run time, kept for callers over RPC."""
        self._number = 0
        self._started, self._draft_s = time.perf_counter(), 0.0
        self._scheduled: Any = None
        self._lengths: Mapping[str, int] = NO_LENGTHS
        self._k: int | None = None
        """Depths of the draft in progress; None before the drafter runs."""
        self._awake = True
        """Whether the taps are installed, or the gate of their kernels may be open."""

    @property
    def meter(self) -> Meter:
        """Meter of the attention masses."""
        return self._chain.meter

    @property
    def search(self) -> SinkSearch | None:
        """Search for the sink set; None if the set is given or has been found."""
        return self._chain.search

    @property
    def device_bytes(self) -> int:
        """Memory of the probe's buffers on the drafter's device, in bytes."""
        return self._chain.device_bytes

    @property
    def guard(self) -> Guard:
        """Border between the recorder's hooks and the engine."""
        return self._guard

    @property
    def recording_step(self) -> bool:
        """Whether the step in progress, or the last one, is recorded."""
        return self._chain.capture is not None

    def witness_first(
        self, witness: StartWitness, report: Callable[[WitnessResult], None], *, drafts_ahead: bool
    ) -> None:
        """Record nothing of the inside until `witness` has recomputed a chain that agrees, or could
        not compute any of CHAINS; `report` is called with its last verdict. `drafts_ahead`: draft
        the chain once more, before, without CUDA graphs, of which Python sees nothing."""
        self._witness, self._report_verdict, self._drafts_ahead = witness, report, drafts_ahead
        self._run_recorded = self._run_witnessed

    def _run_witnessed(self, call: DraftCall) -> tuple[Any, Any, float]:
        """Draft while the witness watches."""
        witness = self._witness
        assert witness is not None  # noqa: S101  see `witness_first`
        self._guard.run("witness", witness.watch)
        try:
            if not self._drafts_ahead:
                return self._run_served(call)
            self._guard.run("witness", self._draft_ahead, witness, call)
        finally:
            self._guard.run("witness", witness.end)
        return self._run_served(call)

    def _draft_ahead(self, witness: StartWitness, call: DraftCall) -> None:
        witness.drafted(call.without_graphs())
        self._switch.serving()
        self._chain.restart()

    def _judge(self, drafts: Any) -> None:
        """Let the witness compare the chain that was just measured, of the tokens `drafts`."""
        witness, chain = self._witness, self._chain
        self._tries += 1
        if witness is None or (chain.values is None and self._tries < TRIES):
            return
        sinks = None if chain.search is not None else chain.meter.sink_slots
        aliases = self.taps.observer.aliased_columns
        verdict = witness.judge(chain.values, chain.layout, aliases, sinks, drafts)
        self._judged += 1
        if self._judged < CHAINS and not (verdict.fault is None and verdict.unsure is None):
            chain.forget()
            return
        self._witness, self._run_recorded = None, self._run_served
        if verdict.unsure is None and not verdict.states_agree:
            self._take = lambda: False
            chain.forget()
            self._hooks.uninstall()
        elif verdict.fault is not None:  # what was measured of this chain has wrong masses
            chain.search, chain.without_masses = None, True
            chain.forget()
        self._report_verdict(verdict)

    def step_started(self, scheduled: Any = None) -> None:
        """Start a step: the target model is about to run what the engine has `scheduled`."""
        self._started = time.perf_counter()
        self._scheduled, self._lengths = scheduled, NO_LENGTHS
        self._k, self._draft_s = None, 0.0
        if self._chain.capture is not None:
            self._chain.forget()
            self._switch.active = False
        if self._clock.on:
            self._clock.start()
        if self._side_thread.busy:
            self._guard.run("join", self._chain.wait_for_keys, scheduled, self._schedules)
        if scheduled is not None and getattr(scheduled, self._new_requests, True):
            self._guard.run("step_started", self._on_step_started, scheduled)

    def draft(self, call: DraftCall) -> Any:
        """Run the drafter, recorded if the step is sampled; return [B, K] int tokens."""
        if self._side_thread.busy:  # drafter and taps are about to write
            self._guard.run("join", self._side_thread.join)
        self._guard.run("draft_started", self._on_draft_started, call)
        if self._switch.active:
            drafts, shadow, self._draft_s = self._run_recorded(call)
            if self._switch.active or shadow is not None:
                self._switch.flush_notes()
                self._guard.run("draft_ended", self._on_draft_ended, drafts, shadow)
            self._switch.active = False
            return drafts
        if self._clock.on:
            self._clock.mark()
        begun = time.perf_counter()
        drafts = call.serve()
        self._draft_s = time.perf_counter() - begun
        if self._clock.on:
            self._clock.mark()
        return drafts

    def verified(self, describe: Callable[[], Verification]) -> None:
        """Measure how nearly the tokens were right that the target has just rejected; call this
        while `near_misses.waiting`, before the step's draft."""
        self._guard.run("verified", lambda: self.near_misses.verified(describe()))

    def add_draft_time(self, seconds: float) -> None:
        """Count time that the drafter ran outside of `draft` in the step in progress."""
        self._draft_s += seconds

    def step_ended(self, requests: Callable[[], int]) -> None:
        """Finish the step and pass it to the writer; `requests` counts those that it served."""
        step_s = time.perf_counter() - self._started
        self._guard.run("step_ended", self._on_step_ended, requests, step_s)

    def close(self) -> None:
        """Remove the taps and seal the trace."""
        self.taps.detach()
        self._guard.run("join", self._side_thread.join)
        self._writer.put((self._encode, END))
        self._writer.close()

    def _on_step_started(self, scheduled: Any) -> None:
        self.selection.learn(self._schedules.labels(scheduled))
        self._lengths = self._schedules.prompt_lengths(scheduled)

    def _on_draft_started(self, call: DraftCall) -> None:
        self._k = k = int(call.k)
        chain = self._chain
        if self.near_misses.wanted:  # of a chain that was not verified, or not finished
            self.near_misses.begin(wanted=False)
        if chain.search is not None:
            chain.take_sinks(chain.search)
        if k > 0 and self._take():  # counted by every rank, for all requests
            step = call.step()
            chosen = self.selection.chosen(step.requests)
            if chosen is None or chosen.any():
                self._awake = True
                self._switch.serving()
                self._hooks.install()
                at = call.on_device()
                chain.begin(step, chosen, at, self._number)
                self.near_misses.begin(wanted=chain.has_details and self._witness is None)
                if self._witness is not None:
                    self._witness.choose(step, at)
                self._switch.begin()
                return
        if self._awake:
            self._awake = False
            self._switch.serving()
            chain.kernels.skip()
            self._hooks.uninstall()

    def _on_draft_ended(self, drafts: Any, shadow: Any) -> None:
        chain = self._chain
        if shadow is None:
            chain.measure(at_once=self._witness is not None)
        if self._witness is not None:
            self._judge(drafts)
        if self._guard.failed:
            return
        self._transfer.send(drafts, shadow)
        if shadow is None and chain.capture is not None and chain.capture.values is not None:
            self.near_misses.drafted(chain.capture, drafts)
        if self._clock.on and chain.capture is not None and chain.capture.values is not None:
            self._clock.mark()

    def _on_step_ended(self, requests: Callable[[], int], step_s: float) -> None:
        self._number += 1
        guard = self._guard
        own_s, core_s, guard.failed = guard.taken_s, CORE.probe_s, False
        done = (
            self._number,
            time.time(),
            self._scheduled,
            self._lengths,
            self._k,
            self._chain.capture,
            self._clock.take() if self._clock.on else NO_MARKS,
            self.sampler.drawn_at,
            requests(),
            step_s,
            self._draft_s,
            own_s - self._attributed_s,
            core_s - self._core_attributed_s,
        )
        self._attributed_s, self._core_attributed_s = own_s, core_s
        self._writer.put((self._encode, done))


def assemble_recorder(
    drafter: Drafter,
    settings: Settings,
    writer: TraceWriter,
    *,
    schedules: ScheduleReader,
    later_rank: bool = False,
    make_taps: MakeTaps = Taps,
    make_sampler: Callable[..., Sampler] = Sampler,
) -> Recorder:
    """Return a recorder whose taps are not attached yet.

    `schedules` reads what the engine schedules. `make_taps` and `make_sampler` are for an engine
    whose drafter is not one module that one call runs at all depths. `later_rank`: another rank
    writes everything that does not depend on attention heads. Raises ProbeError for an
    unsupported attention backend.
    """
    layout = Layout(depths=drafter.k, layers=len(drafter.layers), aux=drafter.aux_states)
    guard = Guard(writer, test_raise=settings.test_raise, adds_to=(writer,))
    sampler = make_sampler(every=settings.every, budget=settings.budget, seen=SEEN, aim=AIM)
    clock = DeviceClock(drafter.device)
    buffers = _buffers(drafter, layout)
    kernels, meter = _kernels(buffers), _meter(drafter, buffers, settings)
    graphs_record = _on_gpu(drafter) and settings.recording == IN_GRAPH
    taps = make_taps(drafter, kernels, guard, in_graph=graphs_record)
    by_layer = (layout.depths, layout.layers)
    sought = settings.sink_source == SINK_SOUGHT and meter.heads > 0
    search = SinkSearch() if sought else None
    chain = ChainMeasurement(
        drafter,
        layout,
        guard,
        search=search,
        buffers=buffers,
        kernels=kernels,
        meter=meter,
        distances=OptionalMasses(
            (*by_layer, len(edges_of(drafter.k))), drafter.max_requests, drafter.device
        ),
        carries_details=detail_choices(settings.distance_every),
        observer=taps.observer,
        side_thread=SideThread(),
    )
    near_misses = KeptLogits(drafter)
    if not later_rank and isinstance(taps.observer, ForwardObserver):
        taps.observer.near_misses = near_misses
    options = EncoderOptions(
        heads=meter.heads,
        strategy=meter.strategy,
        max_slots=drafter.max_slots - drafter.kind.lead,
        aliases=taps.observer.aliased_columns,
        later_rank=later_rank,
        compare_ids=settings.recording == SHADOW,
        keep_ids=settings.token_ids,
    )
    selection = RequestSelection(settings.labels)
    return Recorder(
        writer=writer,
        schedules=schedules,
        guard=guard,
        clock=clock,
        taps=taps,
        sampler=sampler,
        selection=selection,
        chain=chain,
        transfer=HostTransfer(drafter, layout, settings, writer, chain),
        recorded_draft=RecordedDraft(settings.recording, chain, taps.switch, guard, clock),
        near_misses=near_misses,
        encode=ChainEncoder(layout, options, writer, sampler, schedules, search).handed_over,
    )


def distance_every(meter: Meter, settings: Settings) -> int:
    """Return one recorded chain in how many carries masses by distance; 0 if none can."""
    return settings.distance_every if meter.sorts_by_distance else 0


def _on_gpu(drafter: Drafter) -> bool:
    return drafter.device.type == "cuda"


def _buffers(drafter: Drafter, layout: Layout) -> ChainBuffers:
    """Return buffers with a row for each query, for a drafter with several queries per request."""
    queries = drafter.queries
    by_query = replace(layout, depths=layout.depths // queries)
    return ChainBuffers(by_query, drafter.max_requests * queries, drafter.device)


def _kernels(buffers: ChainBuffers) -> Kernels:
    if buffers.device.type != "cuda":
        try:
            return CompiledKernels(buffers)
        except ImportError:  # no Numba
            return TorchKernels(buffers)
    from driftscope_probes.triton_kernels import TritonKernels

    return TritonKernels(buffers)


def _meter(drafter: Drafter, buffers: ChainBuffers, settings: Settings) -> Meter:
    return Meter(
        drafter,
        buffers,
        settings.sink_slots,
        use_triton=_on_gpu(drafter),
    )
