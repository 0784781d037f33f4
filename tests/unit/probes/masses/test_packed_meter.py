"""Masses by machine code on packed keys: the same as `masses` in torch, which has its own truth."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from driftscope.trace.records import edges_of
from driftscope_probes.cpu_kernels import MANY_SCORES, QUICK_SCORES, MassJob, PackedMeter
from driftscope_probes.drafter import AttentionKind
from driftscope_probes.torch_masses import Chains, masses, sink_mask
from driftscope_probes.vllm.drafter import CpuAttnKeys

pytest.importorskip("numba")
HEADS, KV, SIZE, PAGE, PAGES, DEPTHS = 4, 2, 16, 8, 64, 5
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Three requests of other lengths over a cache of random keys."""

    window: int | None = None
    biases: bool = False
    shuffled: bool = False
    """The cache has another order than the plain one."""
    dtype: str = "float32"
    causal: bool = True
    ahead: int = 0
    sinks: tuple[int, ...] = (0, 1)
    k: int = DEPTHS
    longest: int = DEPTHS
    """Largest chain length of the run, which the bins by distance are made for."""
    sharpness: float = 1.0
    broken: bool = False
    """A key is not a number."""

    def layer(self) -> Any:
        generator = torch.Generator().manual_seed(7)
        cache = torch.randn(PAGES, KV, PAGE, 2 * SIZE, generator=generator)
        if self.broken:
            cache[:] = torch.nan
        return SimpleNamespace(kv_cache=cache.to(DTYPES[self.dtype]))

    def reader(self, layer: Any) -> CpuAttnKeys:
        reader = CpuAttnKeys(layer)
        order = torch.arange(SIZE * PAGE)
        if self.shuffled:
            order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(8))]
        reader._order, reader.in_order = order, not self.shuffled
        reader._heads = 2 * np.arange(KV)
        return reader

    def attention(self, layer: Any) -> Any:
        """An AttentionLayer of this situation."""
        return SimpleNamespace(
            kind=self.kind, reader=self.reader(layer), cache=lambda: layer.kv_cache
        )

    @property
    def kind(self) -> AttentionKind:
        return AttentionKind(
            heads=HEADS,
            kv_heads=KV,
            head_size=SIZE,
            scale=self.sharpness / SIZE**0.5,
            window=self.window,
            sinks=torch.linspace(-1.0, 2.0, HEADS) if self.biases else None,
        )

    @property
    def chains(self) -> Chains:
        position, prompt = np.array([40, 7, 63]), np.array([30, 9, 63])
        return Chains(
            k=self.k,
            position=position,
            prompt_tokens=prompt,
            sink_slots=np.array(self.sinks, dtype=np.int64),
            is_sink=sink_mask(self.sinks).numpy(),
            ahead=self.ahead,
            causal=self.causal,
            seen=int(min(prompt.min(), 8)),
        )

    def both(self) -> tuple[torch.Tensor, ...]:
        """By torch, and by machine code: by head and the mean; then the masses by distance by torch
        and by machine code, which are NaN unless they are defined."""
        layer, kind, chains = self.layer(), self.kind, self.chains
        reader = self.reader(layer)
        generator = torch.Generator().manual_seed(9)
        # One block for any chain is left of what the longest needs.
        table = torch.randint(0, PAGES, (4, 10), generator=generator, dtype=torch.int32)
        every = 2 * torch.randn(3, DEPTHS, HEADS * SIZE, generator=generator)
        queries = every[:, : self.k]
        slots = int(chains.position.max()) + self.ahead + self.k
        bins = torch.full((3, self.k, len(edges_of(self.longest))), torch.nan)
        wanted = masses(
            queries,
            lambda q: reader.score(q, layer.kv_cache, table[:3], slots),
            chains,
            kind,
            bins if self.causal else None,
        )
        meter = PackedMeter({"layer": self.attention(layer)}, DTYPES[self.dtype])
        assert meter.takes(3, self.k, slots)
        with torch.inference_mode():  # as vLLM's workers do
            room = torch.full((3, DEPTHS, 5), -1.0)
            heads = torch.full((3, self.k, HEADS, 5), -1.0)
            # As in a row of the buffers: other layers' numbers lie between.
            distances = torch.full((3, DEPTHS, 2, bins.shape[-1]), torch.nan)
        part = meter.part("layer", queries, room[:, : self.k].numpy())
        by_distance = distances[:, : self.k, 1] if self.causal else None
        fill = meter.plan([MassJob(part, table, heads, by_distance)], chains)
        assert fill is not None
        table.fill_(0)  # the engine goes on
        chains.position[:] = 0
        fill()
        assert (room[:, self.k :] == -1.0).all(), "nothing else is written"
        assert distances[:, :, 0].isnan().all()
        return wanted, heads, room[:, : self.k], bins, distances[:, : self.k, 1]


@pytest.mark.parametrize(
    "situation",
    [
        Situation(),
        Situation(k=2),
        Situation(k=2, longest=2),
        Situation(longest=1, k=1),
        Situation(longest=7, window=6, biases=True),
        Situation(shuffled=True),
        Situation(dtype="bfloat16"),
        Situation(dtype="bfloat16", shuffled=True),
        Situation(window=6),
        Situation(window=30, biases=True),
        Situation(biases=True),
        Situation(causal=False, ahead=1),
        Situation(ahead=2),
        Situation(sinks=()),
        Situation(sinks=(0, 9, 35)),
        Situation(sharpness=40.0),
    ],
    ids=str,
)
def test_machine_code_and_torch_agree(situation: Situation) -> None:
    wanted, heads, mean, wanted_bins, bins = situation.both()
    torch.testing.assert_close(heads, wanted, rtol=0, atol=2e-6, equal_nan=True)
    torch.testing.assert_close(mean, wanted.mean(2), rtol=0, atol=2e-6, equal_nan=True)
    assert situation.sinks == () or wanted.isfinite().any()
    torch.testing.assert_close(bins, wanted_bins, rtol=0, atol=2e-6, equal_nan=True)
    assert bins.isfinite().all() if situation.causal else bins.isnan().all()


def test_what_is_not_a_number_is_not_hidden() -> None:
    _, heads, _, _, bins = Situation(broken=True).both()
    assert heads.isnan().all()
    assert bins.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_keys_are_left_to_torch(dtype: torch.dtype) -> None:
    situation = Situation()
    layer = situation.layer()
    layers = {"layer": situation.attention(layer)}
    assert not PackedMeter(layers, dtype).takes(1, 1, 1)


def test_so_are_caches_of_another_type_than_the_drafters() -> None:
    situation = Situation()
    layer = situation.layer()
    meter = PackedMeter({"layer": situation.attention(layer)}, torch.bfloat16)
    queries, mean = torch.zeros(3, DEPTHS, HEADS * SIZE), np.zeros((3, DEPTHS, 5))
    table = torch.zeros(3, 10, dtype=torch.int32)
    wanted = MassJob(meter.part("layer", queries, mean), table, None)
    assert meter.plan([wanted], situation.chains) is None


def test_much_on_several_cores_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    situation = Situation()
    layer = situation.layer()
    meter = PackedMeter({"layer": situation.attention(layer)}, torch.float32)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert meter.takes(1, 1, MANY_SCORES // HEADS)
    assert not meter.takes(1, 1, MANY_SCORES // HEADS + 1)
    assert meter.is_quick(1, 1, QUICK_SCORES // HEADS)
    assert not meter.is_quick(1, 1, QUICK_SCORES // HEADS + 1)


def test_parts_of_all_shapes_share_their_room() -> None:
    situation = Situation()
    layer = situation.layer()
    meter = PackedMeter({"layer": situation.attention(layer)}, torch.float32)
    found = [
        meter.part("layer", torch.zeros(b, DEPTHS, HEADS * SIZE), np.zeros((b, DEPTHS, 5))).by_head
        for b in range(1, 65)
    ]
    assert [part.shape[0] for part in found] == list(range(1, 65))
    assert all(part.flags.c_contiguous for part in found)
    held = {id(part.base): part.base.nbytes for part in found if part.base is not None}
    assert sum(held.values()) <= 4 * found[-1].nbytes
