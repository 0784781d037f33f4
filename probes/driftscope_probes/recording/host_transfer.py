"""Sends the numbers of recorded chains to host memory, where the writer's thread takes them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from driftscope.trace.write.writer import TraceWriter
from driftscope_probes.base.chain_buffers import Layout
from driftscope_probes.base.guard import Guard
from driftscope_probes.base.host_ring import HostRing, Landing
from driftscope_probes.base.settings import Settings
from driftscope_probes.base.side_thread import Job
from driftscope_probes.drafter.drafter import Drafter
from driftscope_probes.masses.sink_search import SLOTS
from driftscope_probes.recording.chain_measurement import ChainMeasurement


class HostTransfer:
    """The rings of one drafter. A chain that finds no free slot is dropped and counted."""

    def __init__(
        self,
        drafter: Drafter,
        layout: Layout,
        settings: Settings,
        writer: TraceWriter,
        chain: ChainMeasurement,
    ) -> None:
        """`layout` of a chain; `chain` measures those that are sent."""
        self._chain, self._writer, self._keep_ids = chain, writer, settings.token_ids
        self._side_guard = Guard(writer, test_raise=settings.test_raise)
        requests, device = drafter.max_requests, drafter.device
        self._ring = HostRing(requests, layout.width, device)
        self._ids_ring = HostRing(requests, 2 * drafter.k, device)
        self._weights_ring = HostRing(requests, SLOTS + 1, device) if chain.search else None

    def send(self, drafts: Any, shadow: Any) -> None:
        """Start copying the chain that was measured, without waiting.

        `drafts` [B, K] are the served tokens, `shadow` those of the measured chain if that was
        another one.
        """
        chain, capture, values = self._chain, self._chain.capture, self._chain.values
        if capture is None or values is None:
            return
        batch = len(values)
        if chain.masses is None:
            capture.values = self._ring.send(values)
            if chain.has_head_masses:
                capture.head_mass = chain.heads.send(batch)
            if chain.has_distances:
                capture.distance_mass = chain.distances.send(batch)
            if chain.slot_weights is not None and self._weights_ring is not None:
                capture.slot_weights = self._weights_ring.send(chain.slot_weights)
        elif (rows := self._ring.hold(batch, values.shape[1], job := Job())) is not None:
            by_head = chain.heads.hold(batch, job) if chain.has_head_masses else None
            by_distance = chain.distances.hold(batch, job) if chain.has_distances else None
            capture.values, capture.head_mass, capture.distance_mass = rows, by_head, by_distance
            fill = functools.partial(self._fill, chain.masses, values, rows, by_head, by_distance)
            succeeds = functools.partial(self._side_guard.succeeds, "masses", fill)
            chain.side_thread.post(job, succeeds)
        if self._ring.filling:
            self._writer.flush_soon()
        if capture.values is None:
            self._writer.count_dropped("ring_full", batch)
        elif self._keep_ids or shadow is not None:
            both = torch.cat([drafts[:batch], (drafts if shadow is None else shadow)[:batch]], -1)
            capture.ids = self._ids_ring.send(both.to(torch.int32).view(torch.float32))

    def _fill(
        self,
        masses: Callable[[], None],
        values: torch.Tensor,
        rows: Landing,
        by_head: Landing | None,
        by_distance: Landing | None,
    ) -> None:
        """Measure the masses on the side thread, and fill the slots reserved for them."""
        masses()
        rows.fill(values)
        if by_head is not None:
            self._chain.heads.fill(by_head, len(values))
        if by_distance is not None:
            self._chain.distances.fill(by_distance, len(values))
