"""The sink set found in the first chains: what counts, when it is decided, what follows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.runs import Spec, manifest
from support.tiny_drafter import HEADS, KV_HEADS, LAYERS, SCALE, SIZE, Batch, by_hand

from driftscope.trace.manifest import SINK_SOUGHT, read_manifest
from driftscope.trace.reader import Trace, read_trace
from driftscope.trace.writer import TraceWriter
from driftscope.trace.writer_files import create_run, rewrite_manifest
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
from driftscope_probes.vllm.drafter import VllmDrafter
from driftscope_probes.vllm.schedule import VllmSchedules

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

    def __init__(self, drafter: VllmDrafter, run: Path, planted: tuple[int, ...]) -> None:
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
        settings = Settings(
            trace=run, every=1, sink_tokens=None, sink_source=SINK_SOUGHT, per_head=True
        )
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
def seek(make_drafter: Callable[..., VllmDrafter], tmp_path: Path) -> Callable[..., Seeking]:
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
        assert all(row[name] is None for name in (*CLASSES, "head_mass"))
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
