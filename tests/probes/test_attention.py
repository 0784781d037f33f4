"""Masses by class of slot against the reference's definition and a float64 softmax over all slots.

The probe sees a padded batch, gathered keys and one query at a time; the check sees each request
alone, in float64, with nothing padded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftscope_probes.attention import CLASSES, ChainMasses
from driftscope_probes.reference.chain import MASSES, class_masses
from driftscope_probes.view import DraftStep

TOLERANCE = 1e-5
SIZE = 8
PADDED = 2
"""Slots after the longest context."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """B requests with random keys and queries; `keys` [B, kv, SIZE, slots of the longest + K]."""

    positions: tuple[int, ...]
    prompts: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 2
    depths: int = 4
    sink_tokens: int = 4
    seed: int = 0
    sharpness: float = 1.0

    @property
    def scale(self) -> float:
        return self.sharpness / SIZE**0.5

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        slots = max(self.positions) + self.depths
        keys = torch.randn(len(self.positions), self.kv_heads, SIZE, slots, generator=generator)
        queries = torch.randn(
            self.depths, len(self.positions), self.heads, SIZE, generator=generator
        )
        return keys, queries

    def step(self) -> DraftStep:
        batch = len(self.positions)
        return DraftStep(
            requests=tuple(f"r{b}" for b in range(batch)),
            prompt_tokens=np.array(self.prompts, dtype=np.int64),
            rows=torch.arange(batch),
            position=torch.tensor(self.positions),
            prefilling=np.zeros(batch, dtype=bool),
            k=self.depths,
        )

    def measured(self, *, padding: float = 0.0) -> torch.Tensor:
        """[depths, B, 4] by the probe; slots after each context hold `padding`."""
        keys, queries = self.tensors()
        length = max(self.positions) + 1 + PADDED + self.depths - 1
        context = torch.full((*keys.shape[:3], length), padding)
        for b, position in enumerate(self.positions):
            context[b, :, :, : position + 1] = keys[b, :, :, : position + 1]
        masses = ChainMasses(self.step(), context, self.sink_tokens, self.scale)
        own = torch.arange(len(self.positions))
        return torch.stack(
            [
                masses.measure(queries[d], keys[own, :, :, torch.tensor(self.positions) + d], d + 1)
                for d in range(self.depths)
            ]
        )

    def expected(self) -> torch.Tensor:
        """[depths, B, 4] in float64, by the reference's definition of the classes."""
        keys, queries = (t.double() for t in self.tensors())
        keys = keys.repeat_interleave(self.heads // self.kv_heads, dim=1)
        out = torch.empty(self.depths, len(self.positions), 4, dtype=torch.float64)
        for b, (position, prompt) in enumerate(zip(self.positions, self.prompts, strict=True)):
            for d in range(self.depths):
                visible = keys[b, :, :, : position + 1 + d]
                scores = torch.einsum("hs,hsl->hl", queries[d, b], visible) * self.scale
                attention = scores.softmax(-1).unsqueeze(1)
                out[d, b] = class_masses(attention, position + 1, prompt, self.sink_tokens)[0]
        return out


def _agree(batch: Batch, **kwargs: float) -> torch.Tensor:
    measured = batch.measured(**kwargs)  # type: ignore[arg-type]
    torch.testing.assert_close(measured.double(), batch.expected(), atol=TOLERANCE, rtol=0)
    return measured


def test_classes_come_in_the_references_order() -> None:
    assert tuple(f"{name}_mass" for name in CLASSES) == MASSES


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (4, 2), (6, 1)])
def test_grouped_queries_share_keys(heads: int, kv_heads: int) -> None:
    _agree(Batch(positions=(20,), prompts=(12,), heads=heads, kv_heads=kv_heads))


def test_requests_of_different_lengths_in_one_padded_batch() -> None:
    measured = _agree(Batch(positions=(40, 7, 0, 19), prompts=(30, 8, 1, 3)))
    alone = Batch(positions=(40,), prompts=(30,), depths=1).measured()
    assert alone.shape == (1, 1, 4)
    assert measured.shape == (4, 4, 4)


def test_the_prompt_class_ends_at_the_last_verified_slot() -> None:
    measured = _agree(Batch(positions=(9,), prompts=(50,)))
    assert measured[:, 0, 2].tolist() == [0.0] * 4
    assert (measured[:, 0, 1] > 0).all()


def test_a_context_shorter_than_the_sink_set_is_all_sink() -> None:
    measured = _agree(Batch(positions=(1,), prompts=(2,), sink_tokens=4))
    assert measured[0, 0].tolist() == pytest.approx([1.0, 0.0, 0.0, 0.0])
    assert (measured[:, 0, 1:3] == 0).all()


def test_a_prompt_shorter_than_the_sink_set_keeps_the_sum() -> None:
    measured = _agree(Batch(positions=(10,), prompts=(2,), sink_tokens=4))
    assert (measured[:, 0, 1] == 0).all()


def test_a_chain_has_no_mass_on_itself_at_depth_1() -> None:
    measured = _agree(Batch(positions=(12, 5), prompts=(6, 6)))
    assert (measured[0, :, 3] == 0).all()
    assert (measured[1:, :, 3] > 0).all()


@pytest.mark.parametrize("padding", [float("nan"), float("inf"), 1e30])
def test_what_lies_in_slots_after_the_context_does_not_leak(padding: float) -> None:
    batch = Batch(positions=(3, 17, 8), prompts=(2, 9, 30))
    assert torch.equal(_agree(batch, padding=padding), batch.measured(padding=0.0))


def test_peaked_attention_stays_finite() -> None:
    _agree(Batch(positions=(30,), prompts=(20,), sharpness=60.0))


def test_keys_of_half_precision_are_measured_in_float32() -> None:
    batch = Batch(positions=(10,), prompts=(5,), depths=2)
    keys, queries = batch.tensors()
    masses = ChainMasses(batch.step(), keys[..., :12].clone(), 4, batch.scale)
    for depth in (1, 2):
        own = keys[:, :, :, 9 + depth].bfloat16()
        assert masses.measure(queries[depth - 1].bfloat16(), own, depth).dtype == torch.float32


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60)), min_size=1, max_size=4),
    kv_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 2]),
    sink_tokens=st.integers(1, 8),
    sharpness=st.sampled_from([0.1, 1.0, 20.0]),
    seed=st.integers(0, 9),
)
def test_masses_agree_and_sum_to_one(
    requests: list[tuple[int, int]],
    kv_heads: int,
    group: int,
    sink_tokens: int,
    sharpness: float,
    seed: int,
) -> None:
    positions, prompts = zip(*requests, strict=True)
    batch = Batch(
        positions=positions,
        prompts=prompts,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        depths=3,
        sink_tokens=sink_tokens,
        sharpness=sharpness,
        seed=seed,
    )
    measured = _agree(batch, padding=float("nan"))
    torch.testing.assert_close(measured.sum(-1), torch.ones(3, len(requests)), atol=1e-5, rtol=0)
    assert (measured >= 0).all()
