"""Requests with random keys and queries, whose attention masses follow slot by slot in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from support.tiny_drafter import chains_of, sorted_weights

from driftscope.trace.records import edges_of
from driftscope.vocabulary import MASSES
from driftscope_probes.drafter import AttentionKind
from driftscope_probes.torch_masses import ChainSlots, Score, masses

NULL = MASSES.index("null_mass")


@dataclass(frozen=True, kw_only=True)
class MassCase:
    """B requests with random keys and queries; `keys` [B, kv, size, slots of the longest + K]."""

    positions: tuple[int, ...]
    prompts: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 2
    size: int = 8
    depths: int = 4
    sink_slots: tuple[int, ...] = (0, 1, 2, 3)
    seed: int = 0
    sharpness: float = 1.0
    window: int | None = None
    chunk: int | None = None
    softcap: float = 0.0
    bias: bool = False
    dtype: torch.dtype = torch.float32
    causal: bool = True
    ahead: int = 0
    longest: int = 0
    """Largest chain length of the run, which the bins by distance are made for; 0: `depths`."""

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        batch, slots = len(self.positions), max(self.positions) + self.depths
        keys = torch.randn(batch, self.kv_heads, self.size, slots, generator=generator)
        queries = torch.randn(batch, self.depths, self.heads, self.size, generator=generator)
        return keys.to(self.dtype), queries.to(self.dtype)

    @property
    def kind(self) -> AttentionKind:
        return AttentionKind(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_size=self.size,
            scale=self.sharpness / self.size**0.5,
            window=self.window,
            chunk=self.chunk,
            softcap=self.softcap,
            sinks=torch.linspace(-1.0, 2.0, self.heads) if self.bias else None,
        )

    @property
    def chains(self) -> ChainSlots:
        seen = min(*self.prompts, *(position + 1 for position in self.positions))
        more = {"seen": seen, "causal": self.causal, "ahead": self.ahead}
        return chains_of(self.depths, self.positions, self.prompts, self.sink_slots, **more)

    def bins(self) -> torch.Tensor:
        """[B, depths, bins], not filled."""
        edges = edges_of(self.longest or self.depths)
        return torch.full((len(self.positions), self.depths, len(edges)), torch.nan)

    def measured(
        self, *, padding: float = 0.0, distances: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[B, depths, heads, 5] by the probe; slots after each chain hold `padding`."""
        keys, queries = self.tensors()
        padded = torch.nn.functional.pad(keys.float(), (0, 2), value=padding)
        for b, position in enumerate(self.positions):
            padded[b, :, :, position + self.depths :] = padding
        return masses(queries.flatten(2), score_of(padded), self.chains, self.kind, distances)

    def scores(self, b: int, depth: int, *, causal: bool = True) -> torch.Tensor:
        """[heads, slots] in float64, of one query alone; -inf where it sees nothing. One of a block
        that is not causal sees all of it."""
        keys, queries = (t.double() for t in self.tensors())
        own = self.positions[b] + depth - 1
        shared = keys[b].repeat_interleave(self.heads // self.kv_heads, dim=0)
        scores = (queries[b, depth - 1].unsqueeze(1) @ shared).squeeze(1) * self.kind.scale
        if self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        slot = torch.arange(scores.shape[1])
        last = own if causal else self.positions[b] + self.depths - 1
        return scores.masked_fill((slot < self.first(own)) | (slot > last), -torch.inf)

    def weights(self, b: int, depth: int, *, causal: bool = True) -> torch.Tensor:
        """[heads, slots, then the bias] in float64."""
        scores, sinks = self.scores(b, depth, causal=causal), self.kind.sinks
        bias = torch.full((self.heads,), -torch.inf) if sinks is None else sinks
        return torch.cat((scores, bias.double()[:, None]), -1).softmax(-1)

    def first(self, own: int) -> int:
        """First slot that is seen from slot `own`."""
        if self.chunk is not None:
            return own // self.chunk * self.chunk
        return 0 if self.window is None else max(0, own - self.window + 1)

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Masses by class [B, depths, heads, 5] and by distance [B, depths, bins] in float64."""
        bins = self.bins().double()
        out = torch.zeros(*bins.shape[:2], self.heads, 5, dtype=torch.float64)
        for b, (position, prompt) in enumerate(zip(self.positions, self.prompts, strict=True)):
            for d in range(self.depths):
                weights, own = self.weights(b, d + 1), position + d
                place = position, prompt, own, self.sink_slots, self.longest or self.depths
                out[b, d], bins[b, d] = sorted_weights(weights[:, :-1], *place)
                if self.bias:
                    out[b, d, :, NULL] = weights[:, -1]
                if not self.sink_slots or max(self.sink_slots) < self.first(own):
                    out[b, d, :, 0] = torch.nan
        return out, bins


def score_of(keys: torch.Tensor, block: int = 5) -> Score:
    """Products with [B, kv, size, slots] in blocks of slots, the last one filled up with NaN."""
    missing = -keys.shape[-1] % block
    whole = torch.nn.functional.pad(keys, (0, missing), value=torch.nan)
    blocks = whole.unflatten(-1, (-1, block)).movedim(-2, 1)
    return lambda q: q[:, None] @ blocks
