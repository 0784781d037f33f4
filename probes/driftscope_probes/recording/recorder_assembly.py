"""Builds a worker's recorder from its drafter and its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from driftscope.trace.format.distance_bins import edges_of
from driftscope.trace.write.writer import TraceWriter
from driftscope.vocabulary import MASSES, SINK_SOUGHT
from driftscope_probes.base.chain_buffers import ChainBuffers, Layout
from driftscope_probes.base.device_clock import DeviceClock
from driftscope_probes.base.guard import Guard
from driftscope_probes.base.settings import IN_GRAPH, SHADOW, Settings
from driftscope_probes.base.side_thread import SideThread
from driftscope_probes.drafter.drafter import Drafter
from driftscope_probes.masses.meter import Meter
from driftscope_probes.masses.sink_search import SinkSearch
from driftscope_probes.recording.chain_encoder import ChainEncoder
from driftscope_probes.recording.chain_measurement import ChainMeasurement, MeasurementParts
from driftscope_probes.recording.encoder_options import EncoderOptions
from driftscope_probes.recording.host_transfer import HostTransfer
from driftscope_probes.recording.optional_masses import OptionalMasses
from driftscope_probes.recording.recorded_draft import RecordedDraft
from driftscope_probes.recording.recorder import Recorder, RecorderParts
from driftscope_probes.steps.distance_choice import distance_choices
from driftscope_probes.steps.request_selection import RequestSelection
from driftscope_probes.steps.sampler import AIM, SEEN, Sampler
from driftscope_probes.steps.step_schedule import ScheduleReader
from driftscope_probes.taps.chain_taps import MakeTaps
from driftscope_probes.taps.kernels import Kernels, TorchKernels
from driftscope_probes.taps.taps import Taps


def assemble_recorder(
    drafter: Drafter,
    settings: Settings,
    writer: TraceWriter,
    *,
    schedules: ScheduleReader,
    masses_only: bool = False,
    make_taps: MakeTaps = Taps,
    make_sampler: Callable[..., Sampler] = Sampler,
) -> Recorder:
    """Return a recorder whose taps are not attached yet.

    `schedules` reads what the engine schedules. `make_taps` and `make_sampler` are for an engine
    whose drafter is not one module that one call runs at all depths. `masses_only`: another rank
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
    parts = MeasurementParts(
        buffers=buffers,
        kernels=kernels,
        meter=meter,
        heads=OptionalMasses(
            (*by_layer, meter.heads, len(MASSES)), drafter.max_requests, drafter.device
        ),
        distances=OptionalMasses(
            (*by_layer, len(edges_of(drafter.k))), drafter.max_requests, drafter.device
        ),
        carries_distances=distance_choices(distance_every(meter, settings)),
        observer=taps.observer,
        side_thread=SideThread(),
    )
    sought = settings.sink_source == SINK_SOUGHT and meter.heads > 0
    search = SinkSearch() if sought else None
    chain = ChainMeasurement(
        drafter, layout, parts, guard, per_head=settings.per_head, search=search
    )
    options = EncoderOptions(
        heads=meter.heads,
        strategy=meter.strategy,
        max_slots=drafter.max_slots - drafter.kind.lead,
        aliases=taps.observer.aliased_columns,
        masses_only=masses_only,
        compare_ids=settings.recording == SHADOW,
        keep_ids=settings.token_ids,
    )
    selection = RequestSelection(settings.labels)
    return Recorder(
        RecorderParts(
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
            encode=ChainEncoder(layout, options, writer, sampler, schedules, search).handed_over,
        )
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
            from driftscope_probes.taps.numba_kernels import CompiledKernels
        except ImportError:  # no Numba
            return TorchKernels(buffers)
        return CompiledKernels(buffers)
    from driftscope_probes.taps.triton_kernels import TritonKernels

    return TritonKernels(buffers)


def _meter(drafter: Drafter, buffers: ChainBuffers, settings: Settings) -> Meter:
    return Meter(
        drafter,
        buffers,
        settings.sink_slots,
        use_lse=settings.strategy != "keys",
        use_triton=_on_gpu(drafter),
    )
