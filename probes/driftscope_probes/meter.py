"""Measures the attention masses of a drafted chain, layer by layer, into the chain's buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from driftscope_probes.attention import cache_of, kind_of, offer_lse
from driftscope_probes.buffers import MASSES, ChainBuffers
from driftscope_probes.drafter import Drafter
from driftscope_probes.keys import KeyReader, reader_for
from driftscope_probes.masses import AttentionKind, Chains, at_once, masses
from driftscope_probes.view import DeviceStep, DraftStep


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layer:
    layer: Any
    kind: AttentionKind
    reader: KeyReader


class Meter:
    """All attention layers of one drafter.

    `strategy` is "lse" where the served kernel's own log-sum-exp is at hand, so that only the
    short classes' keys are read; "keys" where every key is read, once per chain; "none" without
    attention.
    """

    def __init__(
        self, drafter: Drafter, buffers: ChainBuffers, sink_slots: tuple[int, ...], *,
        use_lse: bool, use_triton: bool,
    ) -> None:  # fmt: skip
        """Raises ProbeError for an attention backend that is not supported."""
        self._buffers, self._triton = buffers, use_triton
        self._layers = {
            name: _Layer(
                layer=layer, kind=kind_of(layer), reader=reader_for(drafter.backend, layer)
            )
            for name, layer in drafter.attention.items()
        }
        self._sinks = torch.tensor(sink_slots, dtype=torch.int64, device=drafter.device)
        for name, part in self._layers.items():
            kind = part.kind
            buffers.add_layer(name, kind.heads * kind.head_size, kind.heads, drafter.dtype)
        plain = all(part.kind.sinks is None for part in self._layers.values())
        can = drafter.backend == "FLASH_ATTN" and use_triton and plain
        self.strategy = "lse" if use_lse and can and offer_lse() else "keys"
        if not self._layers:
            self.strategy = "none"

    @property
    def heads(self) -> int:
        """Attention heads of a layer on this rank, 0 without attention."""
        return max((part.kind.heads for part in self._layers.values()), default=0)

    def measure(self, step: DraftStep, at: DeviceStep, per_head: torch.Tensor | None) -> None:
        """Fill the buffers' masses for the chains of a step.

        `per_head` [B, K, layers, heads, 5] float32 takes each head's, if wanted.
        """
        if not self._layers:
            return
        batch, layout = len(step.requests), self._buffers.layout
        chains = Chains(
            k=min(step.k, layout.depths),
            position=at.position,
            prompt_tokens=_to(step.prompt_tokens, self._buffers.device),
            sink_slots=self._sinks,
        )
        shape = (batch, layout.depths, layout.layers, len(MASSES))
        out = self._buffers.part("masses", batch).view(shape)[:, : chains.k]
        for index, (name, part) in enumerate(self._layers.items()):
            table = at.block_tables[name][:batch]
            heads = None if per_head is None else per_head[:, : chains.k, index]
            self._layer(name, part, chains, table, step.max_context, out[:, :, index], heads)

    def _layer(
        self, name: str, part: _Layer, chains: Chains, table: torch.Tensor, context: int,
        out: torch.Tensor, per_head: torch.Tensor | None,
    ) -> None:  # fmt: skip
        queries = self._buffers.queries[name][: len(out), : chains.k]
        cache = cache_of(part.layer)
        if self._triton and part.reader.paged:
            from driftscope_probes.masses_triton import paged_masses

            lse = self._buffers.lse[name][: len(out), : chains.k].contiguous()
            own = None if per_head is None else torch.empty_like(per_head).contiguous()
            paged_masses(
                queries, part.reader.pages(cache), table, chains, part.kind, out,
                max_context=context, lse=lse if self.strategy == "lse" else None, per_head=own,
            )  # fmt: skip
            if per_head is not None and own is not None:
                per_head.copy_(own)
            return
        # Everything that a query can see, a chain's own slots too.
        slots = min(context + chains.k, table.shape[1] * _page_size(cache))
        size = at_once(len(out), chains.k, part.kind.heads, slots)
        for first in range(0, len(out), size):
            some = slice(first, first + size)
            found = masses(
                queries[some], part.reader.gather(cache, table[some], slots), chains[some],
                part.kind,
            )  # fmt: skip
            out[some] = found.mean(2)
            if per_head is not None:
                per_head[some] = found


def _page_size(cache: torch.Tensor) -> int:
    return int(cache.shape[2])


def _to(array: Any, device: torch.device) -> torch.Tensor:
    """A few numbers: CUDA takes them along with the launch, without waiting for the device."""
    return torch.from_numpy(array).to(device, non_blocking=True)
