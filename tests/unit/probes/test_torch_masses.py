"""Masses by class of slot in float64, and the sink set found in the first chains."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reference_engine import MASSES as REFERENCE_MASSES
from support.runs import Spec, manifest
from support.tiny_drafter import (
    HEADS,
    KV_HEADS,
    LAYERS,
    SCALE,
    SIZE,
    Batch,
    by_hand,
    chains_of,
    on_host,
)

from driftscope.inspect.reference.drafter import class_masses
from driftscope.trace.manifest import SINK_SOUGHT, read_manifest
from driftscope.trace.reader import Trace, read_trace
from driftscope.trace.records import edges_of
from driftscope.trace.writer import TraceWriter
from driftscope.trace.writer_files import create_run, rewrite_manifest
from driftscope.vocabulary import MASSES
from driftscope_probes.drafter import AttentionKind, Drafter
from driftscope_probes.recorder import SINKS_SOUGHT, assemble_recorder, with_sinks
from driftscope_probes.settings import Settings
from driftscope_probes.sink_search import (
    MAX_CHAINS,
    MIN_CHAINS,
    MIN_REQUESTS,
    RECENT,
    SINK_FACTOR,
    SINK_SHARE,
    SLOTS,
    SinkSearch,
    SinkSet,
)
from driftscope_probes.torch_masses import ChainSlots, Score, at_once, masses, slot_weights
from driftscope_probes.vllm.schedule import VllmSchedules

TOLERANCE = 1e-5
HEAD_SIZE = 8
PADDED = 2
"""Slots after the last one that any query sees."""
NULL = MASSES.index("null_mass")


@dataclass(frozen=True, kw_only=True)
class Queries:
    """B requests with random keys and queries; `keys` [B, kv, size, slots of the longest + K]."""

    positions: tuple[int, ...]
    prompts: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 2
    depths: int = 4
    sink_slots: tuple[int, ...] = (0, 1, 2, 3)
    seed: int = 0
    sharpness: float = 1.0
    window: int | None = None
    chunk: int | None = None
    softcap: float = 0.0
    bias: bool = False
    block: int = 5
    """Slots of a block of keys."""

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        slots = max(self.positions) + self.depths
        keys = torch.randn(
            len(self.positions), self.kv_heads, HEAD_SIZE, slots, generator=generator
        )
        queries = torch.randn(
            len(self.positions), self.depths, self.heads, HEAD_SIZE, generator=generator
        )
        return keys, queries

    def kind(self) -> AttentionKind:
        return AttentionKind(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_size=HEAD_SIZE,
            scale=self.sharpness / HEAD_SIZE**0.5,
            window=self.window,
            chunk=self.chunk,
            softcap=self.softcap,
            sinks=torch.linspace(-1.0, 2.0, self.heads) if self.bias else None,
        )

    def chains(self) -> ChainSlots:
        seen = min(*self.prompts, *(position + 1 for position in self.positions))
        return chains_of(self.depths, self.positions, self.prompts, self.sink_slots, seen=seen)

    def measured(
        self, *, padding: float = 0.0, distances: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[B, depths, heads, 5] by the probe; slots after each chain hold `padding`."""
        keys, queries = self.tensors()
        padded = torch.full((*keys.shape[:3], keys.shape[-1] + PADDED), padding)
        for b, position in enumerate(self.positions):
            seen = position + self.depths
            padded[b, :, :, :seen] = keys[b, :, :, :seen]
        score = score_of(padded, self.block)
        return masses(queries.flatten(2), score, self.chains(), self.kind(), distances)

    def by_distance(self, longest: int) -> torch.Tensor:
        """[B, depths, bins] by the probe, for chains of at most `longest` tokens."""
        shape = (len(self.positions), self.depths, len(edges_of(longest)))
        found = torch.full(shape, torch.nan)
        self.measured(distances=found)
        return found

    def expected_by_distance(self, longest: int) -> torch.Tensor:
        """[B, depths, bins] in float64, slot by slot."""
        edges = edges_of(longest)
        out = torch.zeros(len(self.positions), self.depths, len(edges), dtype=torch.float64)
        for b, position in enumerate(self.positions):
            for d in range(self.depths):
                weights = self.weights(b, d + 1).mean(0)[:-1]
                for slot, weight in enumerate(weights.tolist()):
                    if slot > position or slot not in self.sink_slots:
                        distance = position + d - slot
                        out[b, d, sum(edge <= distance for edge in edges) - 1] += weight
        return out

    def weights(self, b: int, depth: int, *, causal: bool = True) -> torch.Tensor:
        """[heads, slots, then the bias] in float64, of one query alone; one of a block that is
        not causal sees all of it."""
        keys, queries = (t.double() for t in self.tensors())
        kind, own = self.kind(), self.positions[b] + depth - 1
        first = self.first(own)
        last = own if causal else self.positions[b] + self.depths - 1
        mine = keys[b].repeat_interleave(self.heads // self.kv_heads, dim=0)[..., first : last + 1]
        scores = (queries[b, depth - 1].unsqueeze(1) @ mine).squeeze(1) * kind.scale
        if self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        bias = torch.full((self.heads, 1), -torch.inf, dtype=torch.float64)
        if kind.sinks is not None:
            bias = kind.sinks.double()[:, None]
        weights = torch.cat((scores, bias), -1).softmax(-1)
        return torch.nn.functional.pad(weights, (first, 0))

    def first(self, own: int) -> int:
        """First slot that is seen from slot `own`."""
        if self.chunk is not None:
            return own // self.chunk * self.chunk
        return 0 if self.window is None else max(0, own - self.window + 1)

    def expected(self) -> torch.Tensor:
        """[B, depths, heads, 5] in float64, slot by slot."""
        out = torch.zeros(len(self.positions), self.depths, self.heads, 5, dtype=torch.float64)
        for b, (position, prompt) in enumerate(zip(self.positions, self.prompts, strict=True)):
            for d in range(self.depths):
                weights = self.weights(b, d + 1)
                for slot in range(weights.shape[1] - 1):
                    out[b, d, :, _class_of(slot, position, prompt, self.sink_slots)] += weights[
                        :, slot
                    ]
                out[b, d, :, NULL] = weights[:, -1] if self.bias else torch.nan
                if not self.sink_slots or max(self.sink_slots) < self.first(position + d):
                    out[b, d, :, 0] = torch.nan
        return out


def score_of(keys: torch.Tensor, block: int = 5) -> Score:
    """Products with [B, kv, size, slots] in blocks of slots, the last one filled up with NaN."""
    missing = -keys.shape[-1] % block
    whole = torch.nn.functional.pad(keys, (0, missing), value=torch.nan)
    blocks = whole.unflatten(-1, (-1, block)).movedim(-2, 1)
    return lambda q: q[:, None] @ blocks


def _class_of(slot: int, position: int, prompt: int, sink_slots: tuple[int, ...]) -> int:
    if slot > position:
        return MASSES.index("self_mass")
    if slot in sink_slots:
        return MASSES.index("sink_mass")
    return MASSES.index("prompt_mass" if slot < prompt else "generated_mass")


def _agree(batch: Queries, **kwargs: float) -> torch.Tensor:
    """Measured means over heads, [B, depths, 5]."""
    measured = batch.measured(**kwargs)
    assert measured.dtype == torch.float32
    torch.testing.assert_close(
        measured.double(), batch.expected(), atol=TOLERANCE, rtol=0, equal_nan=True
    )
    return measured.mean(2)


def test_the_classes_are_the_references() -> None:
    assert MASSES[:4] == REFERENCE_MASSES
    batch = Queries(positions=(20, 5, 3), prompts=(12, 6, 2))
    measured = batch.measured().mean(2)
    for b, (position, prompt) in enumerate(zip(batch.positions, batch.prompts, strict=True)):
        for d in range(batch.depths):
            attention = batch.weights(b, d + 1)[:, None, :-1]
            wanted = class_masses(attention, position + 1, prompt, len(batch.sink_slots))[0]
            torch.testing.assert_close(measured[b, d, :4].double(), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("bias", [False, True])
def test_weights_of_the_first_slots_at_depth_1(
    causal: bool, window: int | None, bias: bool
) -> None:
    batch = Queries(positions=(90, 17, 5), prompts=(40, 9, 2), window=window, bias=bias)
    keys, queries = batch.tensors()
    chains = replace(batch.chains(), causal=causal)
    found = slot_weights(queries.flatten(2), score_of(keys), chains, batch.kind()).double()
    for b, position in enumerate(batch.positions):
        weights = batch.weights(b, 1, causal=causal)[:, : position + 1].mean(0)
        first = 0 if window is None else max(0, position - window + 1)
        for slot in range(SLOTS):
            told = first <= slot <= position - RECENT
            expected = weights[slot] if told else torch.tensor(torch.nan).double()
            torch.testing.assert_close(
                found[b, slot], expected, atol=TOLERANCE, rtol=0, equal_nan=True
            )
        even = weights.sum() / (position + 1 - first)
        torch.testing.assert_close(found[b, SLOTS], even, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("padding", [float("nan"), float("inf"), 1e30])
def test_what_lies_in_slots_after_the_chain_does_not_leak(padding: float) -> None:
    batch = Queries(positions=(3, 17, 8), prompts=(2, 9, 30))
    _agree(batch, padding=padding)
    torch.testing.assert_close(
        batch.measured(padding=padding), batch.measured(), atol=0, rtol=0, equal_nan=True
    )


def test_queries_of_half_precision_are_measured_in_float32() -> None:
    batch = Queries(positions=(10,), prompts=(5,), depths=2)
    keys, queries = batch.tensors()
    half = queries.flatten(2).bfloat16()
    found, exact = (
        masses(q, score_of(keys), batch.chains(), batch.kind()) for q in (half, half.float())
    )
    assert torch.equal(found[..., :4], exact[..., :4])


@pytest.mark.parametrize("window", [None, 6])
def test_arrays_of_the_host_give_what_tensors_give(window: int | None) -> None:
    batch = Queries(positions=(3, 17, 8), prompts=(2, 9, 30), window=window)
    keys, queries = batch.tensors()
    bins = torch.zeros(3, batch.depths, len(edges_of(batch.depths)))
    found = masses(queries.flatten(2), score_of(keys), on_host(batch.chains()), batch.kind(), bins)
    torch.testing.assert_close(bins, batch.by_distance(batch.depths), rtol=0, atol=1e-6)
    assert torch.equal(found.isnan(), batch.measured().isnan())
    torch.testing.assert_close(found, batch.measured(), equal_nan=True, rtol=0, atol=1e-6)


CASES = {
    "plain": Queries(positions=(90, 7, 0, 33), prompts=(30, 8, 1, 30)),
    "grouped": Queries(positions=(60,), prompts=(20,), heads=6, kv_heads=1),
    "sinks close by": Queries(positions=(40, 3), prompts=(20, 2), sink_slots=(0, 2, 20, 39)),
    "no sink": Queries(positions=(40, 3), prompts=(20, 2), sink_slots=()),
    "no sink in a window": Queries(positions=(17, 6), prompts=(10, 7), sink_slots=(), window=8),
    **{
        f"window of {n}": Queries(positions=(90, 4), prompts=(27, 3), window=n)
        for n in (1, 2, 3, 8, 9, 200)
    },
    **{
        f"chunks of {n}": Queries(positions=(90, 4), prompts=(27, 3), chunk=n) for n in (4, 16, 128)
    },
    "wide window": Queries(positions=(90, 4), prompts=(27, 3), window=60),
    "bias": Queries(positions=(90, 4), prompts=(27, 3), bias=True),
    "bias in a window": Queries(positions=(90, 4), prompts=(27, 3), bias=True, window=9),
    "soft cap": Queries(positions=(90,), prompts=(27,), sharpness=20.0, softcap=3.0),
    "peaked": Queries(positions=(90,), prompts=(27,), sharpness=60.0),
    "one token": Queries(positions=(90, 0), prompts=(27, 1), depths=1),
}


@pytest.mark.parametrize("longer", [0, 3])
@pytest.mark.parametrize("name", CASES)
def test_masses_by_class_and_by_distance(name: str, longer: int) -> None:
    """Also of chains that are shorter than the run's longest, which the bins are made for."""
    batch = CASES[name]
    _agree(batch)
    found = batch.by_distance(batch.depths + longer).double()
    wanted = batch.expected_by_distance(batch.depths + longer)
    torch.testing.assert_close(found, wanted, atol=TOLERANCE, rtol=0)
    others = batch.measured()[..., [0, NULL]].nan_to_num().sum(-1).mean(2)
    torch.testing.assert_close(
        found.sum(-1) + others.double(), torch.ones_like(others).double(), atol=1e-5, rtol=0
    )
    assert (found >= 0).all()


def test_passes_hold_a_bounded_number_of_scores() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert at_once(8, 5, 32, 1000, gpu) == 8
    assert at_once(256, 8, 32, 32_000, gpu) == 2
    assert at_once(256, 8, 64, 1_000_000, gpu) == 1, "one request is always taken"
    assert at_once(8, 8, 4, 1600, cpu) == 5, "a CPU's cache is small"


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60)), min_size=1, max_size=4),
    kv_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 2]),
    sink_slots=st.sets(st.integers(0, 45), min_size=1, max_size=6).map(lambda s: tuple(sorted(s))),
    sharpness=st.sampled_from([0.1, 1.0, 20.0]),
    window=st.sampled_from([None, 2, 16]),
    bias=st.booleans(),
    seed=st.integers(0, 9),
)
def test_masses_agree_and_sum_to_one(
    requests: list[tuple[int, int]],
    kv_heads: int,
    group: int,
    sink_slots: tuple[int, ...],
    sharpness: float,
    window: int | None,
    bias: bool,
    seed: int,
) -> None:
    positions, prompts = zip(*requests, strict=True)
    batch = Queries(
        positions=positions,
        prompts=prompts,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        depths=3,
        sink_slots=sink_slots,
        sharpness=sharpness,
        window=window,
        bias=bias,
        seed=seed,
    )
    measured = _agree(batch, padding=float("nan"))
    ones = torch.ones(len(requests), 3)
    torch.testing.assert_close(measured.nansum(-1), ones, atol=1e-5, rtol=0)
    assert (measured.nan_to_num() >= 0).all()


PLANTED = (0, 7)
EVEN = 0.001
CLASSES = ("sink_mass", "prompt_mass", "generated_mass", "self_mass")


def _rows(n: int, held: dict[int, float], seen: int = SLOTS) -> np.ndarray:
    """n chains that see the first `seen` slots, of which some hold more than EVEN."""
    rows = np.full((n, SLOTS + 1), np.nan, dtype=np.float32)
    rows[:, :seen], rows[:, SLOTS] = EVEN, EVEN
    for slot, weight in held.items():
        rows[:, slot] = weight
    return rows


def _names(n: int) -> list[str]:
    return [f"r{i % MIN_REQUESTS}" for i in range(n)]


def _found(*parts: np.ndarray) -> SinkSet | None:
    search = SinkSearch()
    for rows in parts:
        search.add(_names(len(rows)), rows)
    return search.sinks


def test_slots_that_hold_mass_over_many_chains() -> None:
    found = _found(_rows(MIN_CHAINS, {0: 0.4, 7: 0.05}))
    assert found is not None
    assert found.slots == (0, 7)
    assert found.note == (
        "sink set, searched in 64 chains of 8 requests: slot 0 with 40.0% of the attention at "
        "depth 1 (400.0 times an average slot), slot 7 with 5.0% of the attention at depth 1 "
        "(50.0 times an average slot)"
    )


@pytest.mark.parametrize(
    ("held", "even", "slots"),
    [
        (SINK_SHARE * 1.01, SINK_SHARE / SINK_FACTOR, (3,)),
        (SINK_SHARE * 0.99, SINK_SHARE / SINK_FACTOR / 10, ()),
        (0.2, 0.2 / SINK_FACTOR * 0.99, (3,)),
        (0.2, 0.2 / SINK_FACTOR * 1.01, ()),
    ],
)
def test_both_thresholds_count(held: float, even: float, slots: tuple[int, ...]) -> None:
    rows = _rows(MIN_CHAINS, {3: held})
    rows[:, SLOTS] = even
    found = _found(rows)
    assert found is not None
    assert found.slots == slots
    if not slots:
        assert found.note.startswith(
            "no sink found, searched in 64 chains of 8 requests: of the first 64 slots the "
            "strongest is slot 3 with "
        )


def test_it_waits_for_enough_chains_of_enough_requests() -> None:
    search = SinkSearch()
    search.add(_names(MIN_CHAINS - 1), _rows(MIN_CHAINS - 1, {0: 0.5}))
    assert search.sinks is None
    search = SinkSearch()
    for _ in range(MAX_CHAINS - 1):
        search.add(["one"], _rows(1, {0: 0.5}))
    assert search.sinks is None, "one request, whatever it holds"
    search.add(["one"], _rows(1, {0: 0.5}))
    assert search.sinks is not None
    assert search.sinks.slots == (0,)


def test_contexts_that_say_nothing_do_not_keep_it_looking() -> None:
    found = _found(_rows(MAX_CHAINS, {}, seen=0))
    assert found is not None
    assert found.slots == ()
    assert found.note.endswith(
        "more than 8 slots long, or had the first 64 slots in its attention window"
    )


def test_a_manifest_that_cannot_be_written_puts_it_off() -> None:
    search, told = SinkSearch(), []

    def tell(found: SinkSet) -> None:
        told.append(found)
        if len(told) == 1:
            raise OSError(28, "No space left on device")

    search.report = tell
    with pytest.raises(OSError, match="No space"):
        search.add(_names(MIN_CHAINS), _rows(MIN_CHAINS, {0: 0.5}))
    assert search.sinks is None
    search.add(["r0"], _rows(1, {0: 0.5}))
    assert search.sinks is told[1]
    search.add(["r0"], _rows(1, {0: 0.5}))
    assert len(told) == 2


class Long(Batch):
    """Contexts long enough to say something of slots 0 and 7, which hold attention if planted."""

    positions, prompt_tokens = (20, 19), (12, 10)
    block_table = torch.tensor([[7, 2, 9, 4, 10, 1], [5, 11, 0, 3, 8, 6]])

    def __init__(self, holder: Any, *, planted: tuple[int, ...], number: int) -> None:
        super().__init__(holder)
        self.view = self.view._replace(requests=(f"a{number}", f"b{number}"))
        self.keys[:, :, :] *= 0.1
        for layer, queries in enumerate(self._queries()):
            for b in range(2):
                for slot in planted:
                    self.keys[layer, b, slot] = _answering(queries[b], score=5.0)
        self._write_context()

    def _queries(self) -> list[torch.Tensor]:
        """[2, heads, SIZE] at depth 1, layer by layer: keys do not matter to them."""
        model = self.holder.model
        hidden, out, found = model.combine_hidden_states(self.aux), 0.0, []
        for qkv in model.model.qkv:
            hidden = hidden + out
            sizes = [HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE]
            q, _, v = qkv(hidden).split(sizes, dim=-1)
            found.append(q[self.rows].view(2, HEADS, SIZE))
            out = v.repeat(1, HEADS // KV_HEADS)
        return found


def _answering(queries: torch.Tensor, score: float) -> torch.Tensor:
    """[kv_heads, SIZE] keys whose score is `score` for each of the [heads, SIZE] queries."""
    groups = queries.view(KV_HEADS, HEADS // KV_HEADS, SIZE)
    wanted = torch.full((*groups.shape[:2], 1), score / SCALE)
    return (torch.linalg.pinv(groups) @ wanted).squeeze(-1)


class Seeking:
    """A run whose sink set is looked for."""

    def __init__(self, drafter: Drafter, run: Path, planted: tuple[int, ...]) -> None:
        self.run, self.planted, self.drafter = run, planted, drafter
        written = replace(
            manifest(Spec()),
            sink_slots=(),
            sink_tokens=0,
            sink_source=SINK_SOUGHT,
            notes=("another note", SINKS_SOUGHT),
            k=3,
            drafter_layers=len(LAYERS),
        )
        create_run(run, written)
        settings = Settings(trace=run, every=1, sink_tokens=None, sink_source=SINK_SOUGHT)
        self.recorder = assemble_recorder(
            drafter, settings, TraceWriter(run, source="worker0-1"), schedules=VllmSchedules()
        )
        assert self.recorder.search is not None
        self.recorder.search.report = lambda found: rewrite_manifest(
            run, with_sinks(written, found)
        )
        self.proposer = SimpleNamespace(model=drafter.model)
        self.recorder.taps.attach(self.proposer, "model")
        self.steps = 0

    def step(self) -> Long:
        batch = Long(self.proposer, planted=self.planted, number=self.steps)
        self.steps += 1
        self.recorder.step_started()
        self.recorder.draft(batch.call)
        self.recorder.step_ended(2)
        return batch

    def until_found(self) -> None:
        search = self.recorder.search
        assert search is not None
        for _ in range(MIN_CHAINS // 2):
            assert search.sinks is None
            self.step()
        deadline = time.monotonic() + 20
        while search.sinks is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert search.sinks is not None

    def trace(self) -> Trace:
        self.recorder.close()
        return read_trace(self.run)


@pytest.fixture
def seek(make_drafter: Callable[..., Drafter], tmp_path: Path) -> Callable[..., Seeking]:
    return lambda planted: Seeking(make_drafter(), tmp_path / "run", planted)


def _masses_are_by_hand(seeking: Seeking, slots: tuple[int, ...]) -> None:
    """Before, no masses; from the next step on, those of the set."""
    batch = seeking.step()
    trace = seeking.trace()
    assert trace.problems == ()
    rows = trace.draft.to_pylist()
    assert len(rows) == MIN_CHAINS + 2
    for row in rows[:MIN_CHAINS]:
        assert row["strategy"] == "none"
        assert all(row[name] is None for name in CLASSES)
        assert row["fed_rms"] is not None
    wanted = by_hand(batch, seeking.drafter.model, slots)
    for row, truth in zip(rows[MIN_CHAINS:], wanted, strict=True):
        assert row["strategy"] == "keys"
        for at, name in enumerate(CLASSES):
            mean = truth["masses"].mean(2)[..., at].reshape(-1)
            if name == "sink_mass" and not slots:
                assert row[name] is None
            else:
                np.testing.assert_allclose(row[name], mean, rtol=1e-5, atol=5e-6)


def test_a_planted_sink_is_found_and_measured(seek: Callable[..., Seeking]) -> None:
    seeking = seek(PLANTED)
    assert read_manifest(seeking.run).sink_slots == ()
    seeking.until_found()
    found = read_manifest(seeking.run)
    assert (found.sink_slots, found.sink_source, found.sink_tokens) == (PLANTED, "found", 2)
    first, note = found.notes
    assert first == "another note"
    assert note.startswith("sink set, searched in 64 chains of 64 requests: slot 0 with ")
    assert not list(seeking.run.glob("manifest.partial"))
    _masses_are_by_hand(seeking, PLANTED)


def test_without_a_sink_none_is_found_and_its_class_is_absent(seek: Callable[..., Seeking]) -> None:
    seeking = seek(())
    seeking.until_found()
    found = read_manifest(seeking.run)
    assert (found.sink_slots, found.sink_source, found.sinkless) == ((), "found", True)
    assert found.notes[-1].startswith("no sink found, searched in 64 chains of 64 requests")
    _masses_are_by_hand(seeking, ())


def test_a_slot_just_before_the_query_is_recent_and_no_sink(seek: Callable[..., Seeking]) -> None:
    seeking = seek((20 - RECENT + 3,))
    seeking.until_found()
    assert read_manifest(seeking.run).sinkless
    seeking.trace()


def test_a_run_that_ends_while_it_looks(seek: Callable[..., Seeking]) -> None:
    seeking = seek(PLANTED)
    seeking.step()
    trace = seeking.trace()
    assert (trace.manifest.sink_source, trace.manifest.sink_slots) == (SINK_SOUGHT, ())
    assert SINKS_SOUGHT in trace.manifest.notes
    assert trace.draft.column("self_mass").null_count == trace.draft.num_rows == 2
