"""Measures drafted chains beside the engine, from the keys that vLLM's CPU backend has packed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from driftscope_probes.attention import cache_of
from driftscope_probes.buffers import MASSES
from driftscope_probes.host import Array
from driftscope_probes.keys import CpuAttnKeys, KeyReader
from driftscope_probes.masses import AttentionKind, Chains

KEY_TYPES = {torch.float32: "float32", torch.bfloat16: "int16"}
"""As NumPy reads their bits; other keys are measured at once, with torch."""
LITTLE = 1 << 13
"""Scores of a layer up to which they are measured at once: handing them over takes longer."""
MUCH = 1 << 18
"""And beyond which torch measures them where vLLM computes on several cores, with all of them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """A layer's chains of a step: nothing of it changes before the next chain is drafted."""

    layer: str
    queries: torch.Tensor
    """[B, K, heads * head_size]."""
    table: torch.Tensor
    """[>= B, blocks] int32, the engine's own."""
    mean: Array
    """[B, K, 5], to be filled."""
    per_head: torch.Tensor | None
    """[B, K, heads, 5], to be filled if it is wanted."""


class PackedMeter:
    """All attention layers of a drafter, if Numba and `packed_masses` can have them."""

    def __init__(
        self, layers: Mapping[str, tuple[Any, AttentionKind, KeyReader]], dtype: torch.dtype
    ) -> None:
        """`dtype`: the keys'. Compiles, which may take seconds and happens once on a machine."""
        self._layers = {
            name: (layer, kind, reader)
            for name, (layer, kind, reader) in layers.items()
            if isinstance(reader, CpuAttnKeys) and not kind.softcap and kind.head_size % 4 == 0
        }
        self._dtype, self._run = dtype, None
        if layers and len(self._layers) == len(layers) and dtype in KEY_TYPES:
            self._run = _compiled(KEY_TYPES[dtype])
        self._known: dict[str, tuple[torch.Tensor, tuple[Any, ...]]] = {}
        self._biases = {
            name: _floats(kind.sinks) if kind.sinks is not None else np.empty(0, np.float32)
            for name, (_, kind, _) in self._layers.items()
        }

    def takes(self, batch: int, k: int, context: int) -> bool:
        """Whether chains of so many requests, up to that context, had better be measured here."""
        few = torch.get_num_threads() == 1 or self._scores(batch, k, context) <= MUCH
        return self._run is not None and few

    def little(self, batch: int, k: int, context: int) -> bool:
        """Whether they had better be measured at once."""
        return self._scores(batch, k, context) <= LITTLE

    def _scores(self, batch: int, k: int, context: int) -> int:
        heads = max((kind.heads for _, kind, _ in self._layers.values()), default=0)
        return batch * k * heads * context

    def plan(self, parts: Iterable[Part], chains: Chains) -> Callable[[], None] | None:
        """What fills the parts, on any thread; None where a cache is of another type. What the
        engine changes before its next draft is copied now."""
        run, sink_slots = self._run, np.ascontiguousarray(chains.sink_slots)
        if run is None:
            return None
        position, prompt = (
            np.array(x, dtype=np.int64) for x in (chains.position, chains.prompt_tokens)
        )
        tables: dict[int, npt.NDArray[np.int32]] = {}
        todo: list[tuple[Any, ...]] = []
        by_head: list[tuple[Array, Array]] = []
        for part in parts:
            layer, kind, reader = self._layers[part.layer]
            cache = cache_of(layer)
            if cache.dtype != self._dtype:
                return None
            table = tables.get(id(part.table))
            if table is None:
                table = np.array(part.table[: len(position)].numpy(), dtype=np.int32, order="C")
                tables[id(part.table)] = table
            found = np.empty((*part.queries.shape[:2], kind.heads, len(MASSES)), np.float32)
            todo.append((
                _floats(part.queries), *self._keys(part.layer, reader, cache), table, position,
                prompt, sink_slots, self._biases[part.layer], chains.ahead, chains.causal,
                kind.window or 0, kind.kv_heads, np.float32(kind.scale), found, part.mean,
            ))  # fmt: skip
            if part.per_head is not None:
                # Another thread may not write to vLLM's inference tensors but as arrays.
                by_head.append((part.per_head.numpy(), found))

        def fill() -> None:
            for arguments in todo:
                run(*arguments)
            for wanted, found in by_head:
                wanted[:] = found

        return fill

    def _keys(self, name: str, reader: CpuAttnKeys, cache: torch.Tensor) -> tuple[Any, ...]:
        """A layer's keys, their order, and whether that is the plain one."""
        known = self._known.get(name)
        if known is None or known[0] is not cache:  # vLLM may lay out its caches anew
            packed = reader.packed(cache)
            keys = (packed if cache.dtype == torch.float32 else packed.view(torch.int16)).numpy()
            known = self._known[name] = cache, (keys, reader.order(cache).numpy(), reader.in_order)
        return known[1]


def _compiled(key_type: str) -> Callable[..., None] | None:
    try:
        from driftscope_probes.masses_numba import packed_masses
    except ImportError:
        return None
    return packed_masses(key_type)


def _floats(x: torch.Tensor) -> npt.NDArray[np.float32]:
    found: npt.NDArray[np.float32] = np.ascontiguousarray(x.float().numpy())
    return found
