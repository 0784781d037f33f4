"""Measures drafted chains parallel to the engine, from keys that vLLM's CPU backend has packed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from driftscope.vocabulary import MASSES
from driftscope_probes.base.host_arrays import Array
from driftscope_probes.drafter.attention_layer import AttentionLayer
from driftscope_probes.drafter.key_reader import PackedKeyReader
from driftscope_probes.masses.torch_masses import Chains

KEY_TYPES = {torch.float32: "float32", torch.bfloat16: "int16"}
"""NumPy type for the bits of each key type; other keys are measured at once, with torch."""
QUICK_SCORES = 1 << 16
"""Number of a layer's scores up to which they are measured at once, because handing them over to
another thread takes longer."""
MANY_SCORES = 1 << 18
"""Number of a layer's scores above which torch measures them if vLLM computes on several cores,
because torch uses all of these."""
_NO_BINS = np.empty((0, 0, 0), np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MassSlot:
    """Memory of one layer for chains of one shape; its contents change from step to step."""

    layer: str
    queries: torch.Tensor
    """[B, K, heads * head_size]."""
    mean: Array
    """[B, K, 5], to be filled."""
    floats: Array | None
    """The queries' own memory, if it can be read directly."""
    by_head: npt.NDArray[np.float32]
    """[B, K, heads, 5], room for each head's masses."""


class MassJob(NamedTuple):
    """One job: a step's inputs for a MassSlot, unchanged until the next chain is drafted."""

    part: MassSlot
    table: torch.Tensor
    """[>= B, blocks] int32, owned by the engine."""
    per_head: torch.Tensor | None
    """[B, K, heads, 5], to be filled if it is given."""
    distances: torch.Tensor | None = None
    """[B, K, bins], to be filled if it is given."""


class PackedMeter:
    """Measures all attention layers of a drafter, if Numba and `packed_masses` support them."""

    def __init__(self, layers: Mapping[str, AttentionLayer], dtype: torch.dtype) -> None:
        """`dtype`: type of the keys. Compiles the kernel: this may take seconds, once per
        machine."""
        self._layers = {
            name: (layer, layer.kind, layer.reader)
            for name, layer in layers.items()
            if isinstance(layer.reader, PackedKeyReader)
            and not layer.kind.softcap
            and layer.kind.head_size % 4 == 0
        }
        self._dtype, self._run = dtype, None
        if layers and len(self._layers) == len(layers) and dtype in KEY_TYPES:
            self._run = _compiled(KEY_TYPES[dtype])
        self._room: dict[str, npt.NDArray[np.float32]] = {}
        """Memory of each layer for slots of every shape, of which one is in use at a time."""
        self._known: dict[str, tuple[torch.Tensor, tuple[Any, ...]]] = {}
        self._of_layer: dict[str, tuple[Any, ...]] = {
            name: (
                _floats(kind.sinks) if kind.sinks is not None else np.empty(0, np.float32),
                kind.window or 0,
                kind.kv_heads,
                np.float32(kind.scale),
            )
            for name, (_, kind, _) in self._layers.items()
        }
        """Further arguments of `packed_masses` for each layer."""
        self._heads = max((kind.heads for _, kind, _ in self._layers.values()), default=0)

    def part(self, layer: str, queries: torch.Tensor, mean: Array) -> MassSlot:
        """Return the memory of a layer for chains of one shape; see MassSlot."""
        _, kind, _ = self._layers[layer]
        plain = queries.dtype == torch.float32 and queries.is_contiguous()
        shape = (*queries.shape[:2], kind.heads, len(MASSES))
        size, room = math.prod(shape), self._room.get(layer, np.empty(0, np.float32))
        if room.size < size:  # slots in use keep the previous memory alive
            room = self._room[layer] = np.empty(2 * size, np.float32)
        return MassSlot(
            layer=layer,
            queries=queries,
            mean=mean,
            floats=queries.numpy() if plain else None,
            by_head=room[:size].reshape(shape),
        )

    def takes(self, batch: int, k: int, context: int) -> bool:
        """Return whether `batch` chains with up to `context` slots should be measured here."""
        few = torch.get_num_threads() == 1 or self._scores(batch, k, context) <= MANY_SCORES
        return self._run is not None and few

    def is_quick(self, batch: int, k: int, context: int) -> bool:
        """Return whether these chains should be measured at once."""
        return self._scores(batch, k, context) <= QUICK_SCORES

    def _scores(self, batch: int, k: int, context: int) -> int:
        return batch * k * self._heads * context

    def plan(
        self, wanted: Iterable[MassJob], chains: Chains, *, at_once: bool = False
    ) -> Callable[[], None] | None:
        """Return a function that fills the slots, on any thread, or None if a cache has another
        type. Unless it is called `at_once`, inputs that the engine changes before its next draft
        are copied now."""
        run, sink_slots, causal = self._run, chains.sink_slots, chains.causal
        if run is None:
            return None
        position, prompt = chains.position, chains.prompt_tokens
        if not at_once:
            position, prompt = position.copy(), prompt.copy()
        tables: dict[int, npt.NDArray[np.int32]] = {}
        todo: list[tuple[Any, ...]] = []
        copies: list[tuple[Array, Array]] = []
        for part, table, per_head, distances in wanted:
            layer, _, reader = self._layers[part.layer]
            cache = layer.cache()
            if cache.dtype != self._dtype:
                return None
            blocks = tables.get(id(table))
            if blocks is None:
                blocks = tables[id(table)] = _blocks(table, len(position), at_once=at_once)
            queries = part.floats if part.floats is not None else _floats(part.queries)
            biases, *rest = self._of_layer[part.layer]
            todo.append(
                (
                    queries,
                    *self._keys(part.layer, reader, cache),
                    blocks,
                    position,
                    prompt,
                    sink_slots,
                    biases,
                    chains.ahead,
                    causal,
                    *rest,
                    part.by_head,
                    part.mean,
                    _NO_BINS if distances is None else distances.numpy(),
                )
            )
            if per_head is not None:
                # Another thread may write to vLLM's inference tensors only as arrays.
                copies.append((per_head.numpy(), part.by_head))

        def fill() -> None:
            for arguments in todo:
                run(*arguments)
            for room, by_head in copies:
                room[:] = by_head

        return fill

    def _keys(self, name: str, reader: PackedKeyReader, cache: torch.Tensor) -> tuple[Any, ...]:
        """Return a layer's keys, their order, and whether that order is the plain one."""
        known = self._known.get(name)
        if known is None or known[0] is not cache:  # vLLM may reallocate its caches
            packed = reader.packed(cache)
            keys = (packed if cache.dtype == torch.float32 else packed.view(torch.int16)).numpy()
            known = self._known[name] = cache, (keys, reader.order(cache).numpy(), reader.in_order)
        return known[1]


def _compiled(key_type: str) -> Callable[..., None] | None:
    try:
        from driftscope_probes.masses.numba_masses import packed_masses
    except ImportError:
        return None
    return packed_masses(key_type)


def _blocks(table: torch.Tensor, rows: int, *, at_once: bool) -> npt.NDArray[np.int32]:
    """Return the first `rows` rows, shared with the engine if `at_once`, otherwise copied."""
    blocks: npt.NDArray[np.int32] = table.numpy()[:rows]
    if at_once and blocks.dtype == np.int32 and blocks.flags.c_contiguous:
        return blocks
    return np.array(blocks, dtype=np.int32, order="C")


def _floats(x: torch.Tensor) -> npt.NDArray[np.float32]:
    array: npt.NDArray[np.float32] = np.ascontiguousarray(x.float().numpy())
    return array
