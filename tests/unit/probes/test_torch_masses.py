"""Masses by class of slot in float64, and the sink set found in the first chains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mass_cases import NULL, MassCase, score_of
from support.reference_engine import MASSES as REFERENCE_MASSES
from support.runs import Spec, manifest
from support.tiny_drafter import (
    HEADS,
    KV_HEADS,
    LAYERS,
    SCALE,
    SIZE,
    Batch,
    Worker,
    by_hand,
    on_host,
    tiny_drafter,
)
from support.waiting import until

from driftscope.inspect.reference.drafter import class_masses
from driftscope.trace.manifest import SINK_SOUGHT, read_manifest
from driftscope.trace.writer_files import rewrite_manifest
from driftscope.vocabulary import MASSES
from driftscope_probes.recorder import SINKS_SOUGHT, with_sinks
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
from driftscope_probes.torch_masses import at_once, masses, slot_weights

TOLERANCE = 1e-5


def _agree(case: MassCase, *, padding: float = 0.0) -> torch.Tensor:
    """Return the measured masses, which are those in float64, by class and by distance; each
    query's sum to 1."""
    bins = case.bins()
    measured = case.measured(padding=padding, distances=bins)
    assert measured.dtype == torch.float32
    for found, wanted in zip((measured, bins), case.expected(), strict=True):
        torch.testing.assert_close(found.double(), wanted, atol=TOLERANCE, rtol=0, equal_nan=True)
        assert (found.nan_to_num() >= 0).all()
    ones = torch.ones_like(bins[..., 0])
    torch.testing.assert_close(measured.nansum(-1).mean(2), ones, atol=1e-5, rtol=0)
    others = measured[..., [0, NULL]].nan_to_num().sum(-1).mean(2)
    torch.testing.assert_close(bins.sum(-1) + others, ones, atol=1e-5, rtol=0)
    return measured


def test_the_classes_are_the_references() -> None:
    assert MASSES[:4] == REFERENCE_MASSES
    case = MassCase(positions=(20, 5, 3), prompts=(12, 6, 2))
    measured = case.measured().mean(2)
    for b, (position, prompt) in enumerate(zip(case.positions, case.prompts, strict=True)):
        for d in range(case.depths):
            attention = case.weights(b, d + 1)[:, None, : position + d + 1]
            wanted = class_masses(attention, position + 1, prompt, len(case.sink_slots))[0]
            torch.testing.assert_close(measured[b, d, :4].double(), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("bias", [False, True])
def test_weights_of_the_first_slots_at_depth_1(
    causal: bool, window: int | None, bias: bool
) -> None:
    layer = {"window": window, "bias": bias, "causal": causal}
    case = MassCase(positions=(90, 17, 5), prompts=(40, 9, 2), **layer)
    keys, queries = case.tensors()
    found = slot_weights(queries.flatten(2), score_of(keys), case.chains, case.kind).double()
    wanted = torch.full_like(found, torch.nan)
    for b, position in enumerate(case.positions):
        weights, first = case.weights(b, 1, causal=causal).mean(0), case.first(position)
        told = slice(first, max(first, min(SLOTS, position - RECENT + 1)))
        wanted[b, told] = weights[told]
        wanted[b, SLOTS] = weights[: position + 1].sum() / (position + 1 - first)
    torch.testing.assert_close(found, wanted, atol=TOLERANCE, rtol=0, equal_nan=True)


@pytest.mark.parametrize("padding", [float("nan"), float("inf"), 1e30])
def test_what_lies_in_slots_after_the_chain_does_not_leak(padding: float) -> None:
    case = MassCase(positions=(3, 17, 8), prompts=(2, 9, 30))
    measured = _agree(case, padding=padding)
    torch.testing.assert_close(measured, case.measured(), atol=0, rtol=0, equal_nan=True)


def test_queries_of_half_precision_are_measured_in_float32() -> None:
    case = MassCase(positions=(10,), prompts=(5,), depths=2)
    keys, queries = case.tensors()
    half = queries.flatten(2).bfloat16()
    found, exact = (masses(q, score_of(keys), case.chains, case.kind) for q in (half, half.float()))
    assert torch.equal(found[..., :4], exact[..., :4])


@pytest.mark.parametrize("window", [None, 6])
def test_arrays_of_the_host_give_what_tensors_give(window: int | None) -> None:
    case = MassCase(positions=(3, 17, 8), prompts=(2, 9, 30), window=window)
    (keys, queries), bins, wanted_bins = case.tensors(), case.bins(), case.bins()
    found = masses(queries.flatten(2), score_of(keys), on_host(case.chains), case.kind, bins)
    wanted = case.measured(distances=wanted_bins)
    torch.testing.assert_close(bins, wanted_bins, rtol=0, atol=1e-6)
    torch.testing.assert_close(found, wanted, equal_nan=True, rtol=0, atol=1e-6)


PLAIN = MassCase(positions=(90, 4), prompts=(27, 3))
CASES = {
    "plain": MassCase(positions=(90, 7, 0, 33), prompts=(30, 8, 1, 30)),
    "grouped": MassCase(positions=(60,), prompts=(20,), heads=6, kv_heads=1),
    "sinks close by": MassCase(positions=(40, 3), prompts=(20, 2), sink_slots=(0, 2, 20, 39)),
    "no sink": MassCase(positions=(40, 3), prompts=(20, 2), sink_slots=()),
    "no sink in a window": MassCase(positions=(17, 6), prompts=(10, 7), sink_slots=(), window=8),
    **{f"window of {n}": replace(PLAIN, window=n) for n in (1, 2, 3, 8, 9, 60, 200)},
    **{f"chunks of {n}": replace(PLAIN, chunk=n) for n in (4, 16, 128)},
    "bias": replace(PLAIN, bias=True),
    "bias in a window": replace(PLAIN, bias=True, window=9),
    "soft cap": MassCase(positions=(90,), prompts=(27,), sharpness=20.0, softcap=3.0),
    "peaked": MassCase(positions=(90,), prompts=(27,), sharpness=60.0),
    "one token": MassCase(positions=(90, 0), prompts=(27, 1), depths=1),
}


@pytest.mark.parametrize("longer", [0, 3])
@pytest.mark.parametrize("name", CASES)
def test_masses_by_class_and_by_distance(name: str, longer: int) -> None:
    """Also of chains that are shorter than the run's longest, which the bins are made for."""
    _agree(replace(CASES[name], longest=CASES[name].depths + longer))


def test_passes_hold_a_bounded_number_of_scores() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert at_once(8, 5, 32, 1000, gpu) == 8
    assert at_once(256, 8, 32, 32_000, gpu) == 2
    assert at_once(256, 8, 64, 1_000_000, gpu) == 1, "one request is always taken"
    assert at_once(8, 8, 4, 1600, cpu) == 5, "a CPU's cache is small"


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60)), min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2), (3, 3), (6, 3)]),
    sinks=st.sets(st.integers(0, 45), min_size=1, max_size=6),
    more=st.fixed_dictionaries(
        {
            "sharpness": st.sampled_from([0.1, 1.0, 20.0]),
            "window": st.sampled_from([None, 2, 16]),
            "bias": st.booleans(),
            "seed": st.integers(0, 9),
        }
    ),
)
def test_masses_agree_and_sum_to_one(
    requests: list[tuple[int, int]], heads: tuple[int, int], sinks: set[int], more: Any
) -> None:
    positions, prompts = zip(*requests, strict=True)
    more |= {"heads": heads[0], "kv_heads": heads[1], "sink_slots": tuple(sorted(sinks))}
    case = MassCase(positions=positions, prompts=prompts, depths=3, **more)
    _agree(case, padding=float("nan"))


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


class Seeking(Worker):
    """Looks for the sink set of contexts in which these slots hold attention."""

    planted: tuple[int, ...] = ()

    def long_step(self) -> Batch:
        batch = Long(self.proposer, planted=self.planted, number=len(self.batches))
        self.step(batch=batch)
        return batch

    def until_found(self) -> None:
        search = self.recorder.search
        assert search is not None
        for _ in range(MIN_CHAINS // 2):
            assert search.sinks is None
            self.long_step()
        until(lambda: search.sinks is not None)


@pytest.fixture
def seek(tmp_path: Path) -> Callable[..., Seeking]:
    run = tmp_path / "run"
    notes = ("another note", SINKS_SOUGHT)
    sought = {"sink_slots": (), "sink_source": SINK_SOUGHT, "notes": notes}
    spec = Spec(k=3, layers=len(LAYERS), **sought)  # type: ignore[arg-type]

    def started(planted: tuple[int, ...]) -> Seeking:
        settings = Settings(trace=run, every=1, sink_tokens=None, sink_source=SINK_SOUGHT)
        seeking = Seeking(tiny_drafter(), settings, spec)
        seeking.planted = planted
        assert seeking.recorder.search is not None
        seeking.recorder.search.report = lambda found: rewrite_manifest(
            run, with_sinks(manifest(spec), found)
        )
        return seeking

    return started


@pytest.mark.parametrize(
    ("planted", "slots", "note"),
    [
        (PLANTED, PLANTED, "sink set, searched in 64 chains of 64 requests: slot 0 with "),
        ((), (), "no sink found, searched in 64 chains of 64 requests"),
        # Just before the query a slot is recent and no sink.
        ((20 - RECENT + 3,), (), "no sink found, searched in 64 chains of 64 requests"),
    ],
    ids=["planted", "none", "recent"],
)
def test_a_planted_sink_is_found_and_measured(
    seek: Callable[..., Seeking], planted: tuple[int, ...], slots: tuple[int, ...], note: str
) -> None:
    """Before, no masses; from the next step on, those of the set, or of no sink."""
    seeking = seek(planted)
    run = seeking.settings.trace
    assert read_manifest(run).sink_slots == ()
    seeking.until_found()
    found = read_manifest(run)
    assert (found.sink_slots, found.sink_source, found.sink_tokens) == (slots, "found", len(slots))
    assert found.sinkless is not bool(slots)
    assert found.notes[0] == "another note" and found.notes[1].startswith(note)
    assert not list(run.glob("manifest.partial"))
    wanted = by_hand(seeking.long_step(), seeking.drafter.model, slots)
    trace = seeking.trace()
    assert trace.problems == ()
    rows = trace.draft.to_pylist()
    assert len(rows) == MIN_CHAINS + 2
    for row in rows[:MIN_CHAINS]:
        assert row["strategy"] == "none" and row["fed_rms"] is not None
        assert all(row[name] is None for name in CLASSES)
    for row, truth in zip(rows[MIN_CHAINS:], wanted, strict=True):
        assert row["strategy"] == "keys"
        means = truth["masses"].mean(2)
        for at, name in enumerate(CLASSES):
            if name == "sink_mass" and not slots:
                assert row[name] is None
            else:
                mean = means[..., at].reshape(-1)
                np.testing.assert_allclose(row[name], mean, rtol=1e-5, atol=5e-6)


def test_a_run_that_ends_while_it_looks(seek: Callable[..., Seeking]) -> None:
    seeking = seek(PLANTED)
    seeking.long_step()
    trace = seeking.trace()
    assert (trace.manifest.sink_source, trace.manifest.sink_slots) == (SINK_SOUGHT, ())
    assert SINKS_SOUGHT in trace.manifest.notes
    assert trace.draft.column("self_mass").null_count == trace.draft.num_rows == 2
