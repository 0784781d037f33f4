"""Measures the attention masses of a drafted chain, layer by layer, into the chain buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from driftscope.vocabulary import MASSES
from driftscope_probes.buffers import Array, ChainBuffers, array_of
from driftscope_probes.cpu_kernels import QUICK_SCORES, MassJob, PackedMeter
from driftscope_probes.drafter import AttentionKind, AttentionLayer, Drafter, KeyReader
from driftscope_probes.engine import DeviceStep, DraftStep
from driftscope_probes.sink_search import SLOTS
from driftscope_probes.torch_masses import (
    ChainSlots,
    Score,
    at_once,
    masses,
    sink_mask,
    slot_weights,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layer:
    layer: AttentionLayer
    kind: AttentionKind
    reader: KeyReader


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerViews:
    """Views of the chain buffers for one layer, batch size and chain length. They are cached,
    because the buffers never move."""

    queries: torch.Tensor
    """[B, K, heads * size]."""
    lse: torch.Tensor
    """[B, K, heads]."""
    masses: torch.Tensor
    """[B, K, 5]."""
    mean: Array
    """`masses` as an array: a NumPy array on the host."""
    floats: Array | None
    """The memory of `queries`, where the host can read it directly."""


class MassPlan(NamedTuple):
    """Masses that are still to be measured."""

    fill: Callable[[], None]
    """Measures them, on any thread, before the engine's next draft."""
    run_inline: bool
    """Whether running `fill` takes less time than passing it to another thread. `fill` must then be
    called at once or not at all, because its inputs are not copied."""


class Meter:
    """Measures all attention layers of one drafter.

    `strategy` is "lse" if the serving kernel provides its log-sum-exp, so that only the keys of the
    short classes are read; "keys" if every key is read, once per chain; "none" without attention.
    """

    def __init__(
        self,
        drafter: Drafter,
        buffers: ChainBuffers,
        sink_slots: tuple[int, ...],
        *,
        use_triton: bool,
    ) -> None:
        """Raises ProbeError for an unsupported attention backend."""
        self._buffers, self._drafter = buffers, drafter.kind
        self._triton = use_triton and drafter.kind.causal
        self._on_host = buffers.device.type == "cpu" and not self._triton
        self._layers = {
            name: _Layer(layer=layer, kind=layer.kind, reader=layer.reader)
            for name, layer in drafter.layers.items()
        }
        self._packed = PackedMeter(
            drafter.layers if self._on_host else {},
            drafter.dtype,
        )
        self._rooms: dict[tuple[str, int, int, int], LayerViews] = {}
        self.set_sinks(sink_slots)
        for name, part in self._layers.items():
            heads = part.kind.heads
            buffers.add_layer(name, heads * part.layer.query_size, heads, drafter.dtype)
        kinds = [part.kind for part in self._layers.values()]
        plain = all(kind.sinks is None and kind.chunk is None for kind in kinds)
        lse = self._triton and plain and drafter.offer_lse()
        self.strategy = "lse" if lse else "keys"
        if not self._layers:
            self.strategy = "none"

    @property
    def heads(self) -> int:
        """Number of attention heads of a layer on this rank; 0 without attention."""
        return max((part.kind.heads for part in self._layers.values()), default=0)

    @property
    def sorts_by_distance(self) -> bool:
        """Whether masses by distance are defined: there is attention, and no query sees a slot
        after its own."""
        return len(self._layers) > 0 and self._drafter.causal

    def set_sinks(self, slots: tuple[int, ...]) -> None:
        """Set the sink slots from the next step on; called on the serving thread."""
        device = self._buffers.device
        self.sink_slots = slots
        self._sinks = self._plain(torch.tensor(slots, dtype=torch.int64, device=device))
        self._is_sink = self._plain(sink_mask(slots).to(device))

    def measure(
        self, step: DraftStep, at: DeviceStep, distances: torch.Tensor | None = None
    ) -> None:
        """Fill the buffers' masses for the chains of a step, and `distances` [B, K, layers, bins]
        float32 with the masses by distance, if it is given."""
        if not self._layers:
            return
        batch, context = len(step.requests), self._context(at)
        chains = self._chains(step, at, seen=int(at.prompt_tokens.min()))
        for index, (name, part) in enumerate(self._layers.items()):
            table = at.block_tables[name][:batch]
            bins = None if distances is None else distances[:, : chains.k, index]
            room = self._room(name, batch, len(at.rows), chains.k)
            self._layer(part, room, chains, table, context, bins)

    def plan(
        self, step: DraftStep, at: DeviceStep, distances: torch.Tensor | None = None
    ) -> MassPlan | None:
        """Return a plan that replaces `measure` without the interpreter; None if impossible."""
        batch, rows, chains = len(step.requests), at.rows.shape[0], self._chains(step, at)
        k = chains.k
        scores = batch * k * self._packed.heads * self._context(at)
        if not self._packed.takes(scores):
            return None
        run_inline = scores <= QUICK_SCORES
        wanted = list[MassJob]()
        for index, name in enumerate(self._layers):
            room, table = self._room(name, batch, rows, k), at.block_tables[name]
            bins = None if distances is None else distances[:, :k, index]
            wanted.append(MassJob(name, room.queries, room.floats, room.mean, table, bins))
        fill = self._packed.plan(wanted, chains, at_once=run_inline)
        return None if fill is None else MassPlan(fill, run_inline)

    def slot_weights(self, step: DraftStep, at: DeviceStep) -> torch.Tensor:
        """Return the `driftscope_probes.torch_masses.slot_weights` [B, SLOTS + 1], averaged
        over the layers in which a slot is seen. They are computed from the keys with every
        strategy, because they are needed for a few chains only."""
        batch, chains, context = len(step.requests), self._chains(step, at), self._context(at)
        shape = (len(self._layers), batch, SLOTS + 1)
        weights = torch.full(shape, torch.nan, device=self._buffers.device)
        for of_layer, (name, part) in zip(weights, self._layers.items(), strict=True):
            cache, table = part.layer.cache(), at.block_tables[name][:batch]
            room = self._room(name, batch, len(at.rows), chains.k)
            queries = part.reader.queries(room.queries)
            slots = _slots(context, chains, table, cache)
            size = at_once(batch, chains.k, part.kind.heads, slots, queries.device)
            for first in range(0, batch, size):
                some = slice(first, first + size)
                score = _scorer(part.reader, cache, table[some], slots)
                of_layer[some] = slot_weights(queries[some], score, chains[some], part.kind)
        return weights.nanmean(0)

    def _k(self, step: DraftStep, at: DeviceStep) -> int:
        return min(step.k, self._buffers.layout.depths * (at.rows.shape[0] // len(step.requests)))

    def _chains(self, step: DraftStep, at: DeviceStep, seen: int = 0) -> ChainSlots:
        kind = self._drafter
        position = at.position + kind.lead if kind.lead else at.position
        return ChainSlots(
            k=self._k(step, at),
            position=position.numpy() if self._on_host else position,
            prompt_tokens=at.prompt_tokens
            if self._on_host
            else torch.from_numpy(at.prompt_tokens).to(self._buffers.device, non_blocking=True),
            sink_slots=self._sinks,
            is_sink=self._is_sink,
            ahead=kind.ahead,
            causal=kind.causal,
            seen=seen,
        )

    def _plain(self, x: torch.Tensor) -> Array:
        """Return `x` as `masses` takes it, unless a Triton kernel takes it."""
        return array_of(x) if self._on_host else x

    def _context(self, at: DeviceStep) -> int:
        """Return the number of slots before the first query's own slot."""
        return at.max_context + self._drafter.lead + self._drafter.ahead

    def _room(self, name: str, batch: int, rows: int, k: int) -> LayerViews:
        """Return the views of a layer; the buffers have a row for each chain or for each query."""
        key = (name, batch, rows, k)
        if key not in self._rooms:
            buffers, layout = self._buffers, self._buffers.layout
            shape = (rows, layout.depths, layout.layers, len(MASSES))
            every = _by_request(buffers.part("masses", rows).view(shape), batch)
            masses_ = every[:, :k, list(self._layers).index(name)]
            queries = _by_request(buffers.queries[name][:rows], batch)[:, :k]
            plain = queries.dtype == torch.float32 and queries.is_contiguous()
            self._rooms[key] = LayerViews(
                queries=queries,
                floats=queries.numpy() if self._on_host and plain else None,
                lse=_by_request(buffers.lse[name][:rows], batch)[:, :k],
                masses=masses_,
                mean=array_of(masses_),
            )
        return self._rooms[key]

    def _layer(
        self,
        part: _Layer,
        room: LayerViews,
        chains: ChainSlots,
        table: torch.Tensor,
        context: int,
        distances: torch.Tensor | None,
    ) -> None:
        cache, queries = part.layer.cache(), part.reader.queries(room.queries)
        if self._triton and part.reader.paged and part.kind.chunk is None:
            from driftscope_probes.triton_masses import paged_masses

            paged_masses(
                queries,
                part.reader.pages(cache),
                table,
                chains,
                part.kind,
                room.masses,
                max_context=context,
                distances=distances,
                lse=room.lse.contiguous() if self.strategy == "lse" else None,
            )
            return
        slots, batch = _slots(context, chains, table, cache), len(queries)
        size = at_once(batch, chains.k, part.kind.heads, slots, queries.device)
        if size == batch:  # usual case; splitting would cost as much as some of the sums
            score = _scorer(part.reader, cache, table, slots)
            room.mean[:] = _mean(masses(queries, score, chains, part.kind, distances))
            return
        for first in range(0, batch, size):
            some = slice(first, first + size)
            score = _scorer(part.reader, cache, table[some], slots)
            bins = None if distances is None else distances[some]
            by_head = masses(queries[some], score, chains[some], part.kind, bins)
            room.mean[some] = _mean(by_head)


def _mean(by_head: torch.Tensor) -> Array:
    """Return the mean over heads of [B, K, heads, 5]."""
    of_heads = array_of(by_head)
    return of_heads.sum(2) / of_heads.shape[2]


def _by_request(values: torch.Tensor, batch: int) -> torch.Tensor:
    """View [B * queries, depths, ...] as [B, queries * depths, ...]; one of the two is 1."""
    queries, depths = values.shape[0] // batch, values.shape[1]
    if queries == 1:
        return values
    return values.view(batch, queries, depths, *values.shape[2:]).flatten(1, 2)


def _scorer(reader: KeyReader, cache: torch.Tensor, table: torch.Tensor, slots: int) -> Score:
    return lambda queries: reader.score(queries, cache, table, slots)


def _slots(context: int, chains: ChainSlots, table: torch.Tensor, cache: torch.Tensor) -> int:
    """Return the number of slots that a query can see, including the chain's own slots."""
    return min(context + chains.k, table.shape[1] * page_size(cache))


def page_size(cache: torch.Tensor) -> int:
    """Return the slots per block; the layout is [blocks, heads, page, size] or, for latents,
    [blocks, page, size]."""
    return int(cache.shape[1 if cache.dim() == 3 else 2])
