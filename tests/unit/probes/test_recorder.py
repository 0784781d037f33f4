"""A worker's steps become rows; hooks that fail cost their chains and nothing else."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.recording_worker import Worker
from support.tiny_drafter import HEADS, LAYERS, Batch, Call, K, by_hand
from torch.utils._python_dispatch import TorchDispatchMode

from driftscope.vocabulary import BY_DEPTH as PER_DEPTH
from driftscope.vocabulary import MASSES
from driftscope_probes.buffers import SLOTS, ChainBuffers, Layout
from driftscope_probes.cpu_kernels import CompiledKernels
from driftscope_probes.engine import DeviceStep, DraftStep
from driftscope_probes.meter import MassPlan
from driftscope_probes.sampler import distance_choices
from driftscope_probes.settings import RECORDINGS
from driftscope_probes.vllm.drafter import VllmDrafter

AS_STORED: dict[str, float] = {"rtol": 1e-5, "atol": 5e-6}
"""Record files keep 16 bits of a mantissa; one class is what the others leave of 1."""


def _masses_are(row: dict[str, Any], truth: dict[str, Any]) -> None:
    np.testing.assert_allclose(row["distance_mass"], truth["distances"].reshape(-1), **AS_STORED)
    np.testing.assert_allclose(row["head_mass"], truth["masses"].reshape(-1), **AS_STORED)


def test_the_memory_that_is_stated_is_what_all_buffers_take(
    start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ChainBuffers] = []
    init = ChainBuffers.__init__
    monkeypatch.setattr(
        ChainBuffers,
        "__init__",
        lambda self, *a, **kw: (made.append(self), init(self, *a, **kw))[1],
    )
    worker = start(per_head=True, distance_every=1)
    stated = worker.recorder.device_bytes
    worker.step()
    (buffers,) = made
    tensors = [*vars(buffers).values(), *buffers.queries.values(), *buffers.lse.values()]
    optional = (worker.recorder._chain.heads, worker.recorder._chain.distances)
    tensors += [part._values for part in optional]
    assert stated == sum(x.nbytes for x in tensors if isinstance(x, torch.Tensor))
    worker.trace()


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("flags", [{}, {"fc_norm": True, "norm_output": True}])
def test_rows_hold_the_chain_computed_by_hand(
    start: Callable[..., Worker],
    make_drafter: Callable[..., VllmDrafter],
    recording: str,
    flags: dict[str, bool],
) -> None:
    worker = start(make_drafter(**flags), recording=recording, per_head=True, distance_every=1)
    without = Batch(SimpleNamespace(model=worker.drafter.model)).draft()
    for _ in range(3):
        worker.step()
    assert all(torch.equal(drafts, without) for drafts in worker.drafts), "the same are served"
    wanted = by_hand(worker.batches[0], worker.drafter.model, (0, 1))
    trace = worker.trace()
    assert trace.problems == ()
    rows = trace.draft.to_pylist()
    assert [row["request"] for row in rows] == ["a", "b"] * 3
    for row, truth in zip(rows[:2], wanted, strict=True):
        for name in (*PER_DEPTH, "aux_rms"):
            np.testing.assert_allclose(row[name], truth[name], rtol=1e-5, err_msg=name)
        assert row["fc_rms"] == pytest.approx(truth["fc_rms"][0], rel=1e-5)
        if flags:
            np.testing.assert_allclose(row["aux_norm_rms"], truth["aux_norm_rms"], rtol=1e-5)
        else:
            assert row["aux_norm_rms"] is None
        for i, name in enumerate(MASSES[:4]):
            means = truth["masses"].mean(2)[..., i]
            np.testing.assert_allclose(row[name], means.reshape(-1), **AS_STORED, err_msg=name)
        assert row["null_mass"] is None
        _masses_are(row, truth)
        assert (row["layers"], row["heads"], row["strategy"]) == (len(LAYERS), HEADS, "keys")
        assert row["execution"] == "eager"


@pytest.mark.parametrize(
    ("recording", "calls"),
    [
        ("in-graph", ["served", "served"]),
        ("eager", ["eager", "served"]),
        ("shadow", ["eager", "served", "served"]),
    ],
)
def test_how_recorded_and_other_steps_are_drafted(
    start: Callable[..., Worker], recording: str, calls: list[str]
) -> None:
    worker = start(recording=recording, every=2)
    worker.step()
    worker.step()
    assert worker.calls == calls
    assert [batch.made for batch in worker.batches] == [1, 0], "a step that is passed costs little"
    assert worker.trace().step.column("recorded").to_pylist() == [True, False]


def test_a_shadow_that_drafts_other_tokens_is_counted(start: Callable[..., Worker]) -> None:
    worker = start(recording="shadow", token_ids=True)
    honest = worker._draft

    def served_otherwise(how: str, batch: Batch) -> torch.Tensor:
        drafts = honest(how, batch)
        if how == "served":
            drafts[1, 2] = (drafts[1, 2] + 1) % 11
        return drafts

    worker._draft = served_otherwise  # type: ignore[method-assign]
    worker.step()
    trace = worker.trace()
    assert trace.statuses[0].dropped == {"shadow_differs": 1}
    ids = trace.draft.column("token_ids").to_pylist()
    assert ids == worker.drafts[0].tolist(), "what was served is kept"


def test_every_second_draft_step(start: Callable[..., Worker]) -> None:
    worker = start(every=2)
    for prefilling in ((False, False), None, (False, False), (False, False)):
        worker.step(prefilling)
    trace = worker.trace()
    assert trace.step.column("recorded").to_pylist() == [True, False, False, True]
    assert trace.step.column("chains").to_pylist() == [2, 0, 2, 2]
    assert trace.draft.column("step").to_pylist() == [1, 1, 4, 4]
    assert trace.draft.column("rate").to_pylist() == [0.5] * 4


def test_a_chain_carries_the_rate_that_it_was_drawn_at(start: Callable[..., Worker]) -> None:
    worker = start(every=None)
    worker.recorder.sampler.rate = 1.0
    note = worker.recorder.sampler.note

    def decide(*costs: Any, **of: Any) -> None:
        note(*costs, **of)
        worker.recorder.sampler.rate = 0.25  # as the governor may, when a step ends

    worker.recorder.sampler.note = decide  # type: ignore[method-assign]
    worker.step()
    trace = worker.trace()
    assert trace.draft.column("rate").to_pylist() == [1.0, 1.0]
    assert trace.step.column("rate").to_pylist() == [1.0]


def test_chains_of_other_lengths_do_not_mix(start: Callable[..., Worker]) -> None:
    worker = start(per_head=True, distance_every=1)
    worker.step(k=3)
    worker.step(k=2)
    worker.step(k=0)
    wanted = by_hand(worker.batches[1], worker.drafter.model, (0, 1))
    trace = worker.trace()
    assert trace.step.column("recorded").to_pylist() == [True, True, False]
    shorter = trace.draft.to_pylist()[2:]
    for row, truth in zip(shorter, wanted, strict=True):
        assert row["k"] == 2
        np.testing.assert_allclose(row["fed_rms"], truth["fed_rms"], rtol=1e-5)
        _masses_are(row, truth)


def test_some_recorded_steps_carry_masses_by_distance(start: Callable[..., Worker]) -> None:
    worker = start(distance_every=3)
    for _ in range(30):
        worker.step()
    trace = worker.trace()
    chosen = distance_choices(3)
    carries = [row is not None for row in trace.draft.column("distance_mass").to_pylist()]
    steps = trace.draft.column("step").to_pylist()
    assert carries == [chosen[step - 1] == 1 for step in steps]
    assert 10 < sum(carries) < 30
    assert trace.draft.column("sink_mass").null_count == 0


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_that_raise_cost_only_their_chains(
    start: Callable[..., Worker], when: str, recording: str
) -> None:
    worker = start(test_raise=when, recording=recording)
    without = Batch(SimpleNamespace(model=worker.drafter.model)).draft()
    worker.step()
    worker.step()
    assert all(torch.equal(drafts, without) for drafts in worker.drafts)
    trace = worker.trace()
    assert trace.draft.num_rows == 0
    (status,) = trace.statuses
    assert sum(status.errors.values()) > 0
    (problem,) = trace.problems
    assert "first: draft_started: InjectedError" in problem


def test_a_runner_that_is_laid_out_differently_costs_only_chains(
    start: Callable[..., Worker],
) -> None:
    worker = start()
    batch = Batch(worker.proposer)
    worker.recorder.step_started()
    drafts = worker.recorder.draft(Unreadable(batch, batch.draft, batch.draft))
    worker.recorder.step_ended(2)
    assert drafts.shape == (2, K)
    worker.step()
    trace = worker.trace()
    assert (trace.draft.num_rows, trace.step.num_rows) == (2, 2)
    assert trace.statuses[0].errors == {"draft_started": 1}


def test_steps_that_the_writer_does_not_keep_up_with_are_dropped_and_counted(
    start: Callable[..., Worker],
) -> None:
    worker, waiting = start(per_head=True), []
    put = worker.writer.put
    worker.writer.put = lambda work: bool(waiting.append(work))
    for _ in range(SLOTS + 6):
        worker.step()
    assert len(waiting) == SLOTS + 6
    worker.writer.put = put
    for work in waiting:
        put(work)
    waiting.clear()
    deadline = time.monotonic() + 20
    while worker.recorder._transfer._ring._free == [] and time.monotonic() < deadline:
        time.sleep(0.05)
    worker.step()
    trace = worker.trace()
    assert trace.step.column("recorded").to_pylist() == [True] * SLOTS + [False] * 6 + [True]
    assert trace.draft.num_rows == 2 * (SLOTS + 1)
    assert trace.draft.column("head_mass").null_count == 0
    assert trace.statuses[0].dropped == {"ring_full": 12}


def test_steps_that_the_queue_refuses_cost_no_slot(start: Callable[..., Worker]) -> None:
    worker = start(per_head=True, token_ids=True)
    put = worker.writer.put
    worker.writer.put = lambda _: False
    for _ in range(SLOTS + 6):
        worker.step()
    worker.writer.put = put
    worker.step()
    trace = worker.trace()
    assert trace.draft.num_rows == 2
    assert trace.statuses[0].dropped == {}


class Unreadable(Call):
    """A call of a runner with another layout."""

    def step(self) -> DraftStep:
        raise AttributeError("input_batch")


class Aside:
    """Masses taken beside the engine, when the test lets them."""

    def __init__(self, worker: Worker) -> None:
        self.go, self.fails = threading.Event(), False
        self._meter = worker.recorder.meter
        self._meter.plan = self._plan  # type: ignore[method-assign]

    def _plan(
        self,
        step: DraftStep,
        at: DeviceStep,
        per_head: torch.Tensor | None,
        distances: torch.Tensor | None,
    ) -> MassPlan:
        def fill() -> None:
            assert threading.current_thread().name == "driftscope-masses"
            assert self.go.wait(10)
            if self.fails:
                raise RuntimeError("no keys")
            self._meter.measure(step, at, per_head, distances)

        return MassPlan(fill=fill, run_inline=False)


def test_masses_taken_beside_the_engine_are_the_same(start: Callable[..., Worker]) -> None:
    worker = start(per_head=True, distance_every=1)
    aside = Aside(worker)
    worker.step()  # nobody has waited
    wanted = by_hand(worker.batches[0], worker.drafter.model, (0, 1))
    aside.go.set()
    trace = worker.trace()
    assert trace.problems == ()
    for row, truth in zip(trace.draft.to_pylist(), wanted, strict=True):
        means = truth["masses"].mean(2)[..., 0]
        np.testing.assert_allclose(row["sink_mass"], means.reshape(-1), **AS_STORED)
        np.testing.assert_allclose(row["in_rms"], truth["in_rms"], rtol=1e-5)
        _masses_are(row, truth)


def test_masses_by_head_asked_for_during_a_step_begin_with_the_next_chain(
    start: Callable[..., Worker],
) -> None:
    worker = start()
    aside = Aside(worker)
    aside.go.set()
    plan = worker.recorder.meter.plan

    def asked(*step: Any) -> MassPlan | None:
        worker.recorder.per_head = True  # as a change over RPC may, on another thread
        return plan(*step)

    worker.recorder.meter.plan = asked  # type: ignore[method-assign]
    worker.step()
    worker.step()
    trace = worker.trace()
    assert trace.problems == ()
    by_head = [row is not None for row in trace.draft.column("head_mass").to_pylist()]
    assert by_head == [False, False, True, True]


def test_masses_that_fail_beside_the_engine_cost_their_chains(start: Callable[..., Worker]) -> None:
    worker = start()
    aside = Aside(worker)
    aside.go.set()
    worker.step()
    worker.recorder._side_thread.join()
    aside.fails = True
    worker.step()
    trace = worker.trace()
    assert trace.step.column("recorded").to_pylist() == [True, False]
    assert set(trace.draft.column("step").to_pylist()) == {1}
    assert trace.statuses[0].errors == {"masses": 1}


@pytest.mark.parametrize(
    ("scheduled", "shares", "waits"),
    [
        ({}, False, False),
        ({"kv_connector_metadata": object()}, False, True),
        ({"new_block_ids_to_zero": [3]}, False, True),
        ({}, True, True),
    ],
)
def test_whoever_may_write_to_the_drafters_keys_waits_for_them(
    start: Callable[..., Worker], scheduled: dict[str, Any], shares: bool, waits: bool
) -> None:
    worker = start()
    aside = Aside(worker)
    worker.recorder._chain.__dict__["_shares_cache"] = shares
    worker.step()
    threading.Timer(0.2, aside.go.set).start()
    worker.recorder.step_started(SimpleNamespace(scheduled_new_reqs=[], **scheduled))
    assert aside.go.is_set() == waits
    assert worker.recorder._side_thread.busy != waits
    worker.trace()


@pytest.mark.parametrize("read", [True, False])
def test_the_next_draft_waits_for_the_masses(start: Callable[..., Worker], read: bool) -> None:
    worker = start(every=2)
    aside = Aside(worker)
    worker.step()
    threading.Timer(0.2, aside.go.set).start()
    if read:
        worker.step()  # not recorded, but it writes keys as well
        assert aside.go.is_set()
        assert len(worker.trace().draft) == 2
        return
    worker.recorder.sampler.set(every=1)
    served = worker.recorder.draft(
        Unreadable(Batch(worker.proposer), aside.go.is_set, lambda: None)
    )
    assert served is True, "the drafter ran after the masses were taken"
    assert worker.trace().statuses[0].errors == {"draft_started": 1}


DOCS = Path(__file__).parents[3] / "docs"
OPERATORS, CALLS = "torch operators", "calls of the probe's functions"
COST_OF_DEPTH = {OPERATORS: 0, CALLS: 36}
"""Operations of a depth from the third on, of a drafter with two layers of attention."""
STEPS = 16


class Operators(TorchDispatchMode):
    """Counts the torch operators of this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def calls_in(step: Callable[[], None]) -> int:
    """Return how many of the probe's functions a step calls on this thread."""
    found: Counter[bool] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found["driftscope_probes" in frame.f_code.co_filename] += 1

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return found[True]


def operations(worker: Worker, k: int) -> Counter[str]:
    """Return the most frequent count of each kind in a step that drafts chains of `k` tokens."""
    worker.step(k=k)
    every: dict[str, list[int]] = {OPERATORS: [], CALLS: []}
    for _ in range(STEPS):
        with Operators() as operators:
            worker.step(k=k)
        every[OPERATORS].append(operators.count)
        every[CALLS].append(calls_in(lambda: worker.step(k=k)))
    return Counter({kind: Counter(counts).most_common(1)[0][0] for kind, counts in every.items()})


@pytest.fixture
def drafter(make_drafter: Callable[..., VllmDrafter]) -> VllmDrafter:
    """Drafts greedily, so that nothing changes the logits that it keeps."""
    made = make_drafter(k=8)
    made.config.speculative_config.draft_sample_method = "greedy"
    return made


def test_a_depth_adds_no_torch_operator(
    start: Callable[..., Worker], drafter: VllmDrafter, tmp_path: Path
) -> None:
    added = {}
    for every in (1, 1 << 30):
        worker = start(drafter, every=every, trace=tmp_path / str(every))
        assert isinstance(worker.recorder._chain.kernels, CompiledKernels)
        seven, eight = (operations(worker, k) for k in (7, 8))
        added[every] = {kind: eight[kind] - seven[kind] for kind in eight}
        worker.recorder.close()
    recorded, passed = added[1], added[1 << 30]
    assert passed[CALLS] == 0, "hooks rest in steps that are not recorded"
    assert {kind: recorded[kind] - passed[kind] for kind in recorded} == COST_OF_DEPTH
    assert f"only {COST_OF_DEPTH[CALLS]} calls" in (DOCS / "overhead.md").read_text("utf-8")


def test_the_page_about_gpus_says_how_much_a_round_copies() -> None:
    row = ChainBuffers(Layout(depths=4, layers=1, aux=3), 1, torch.device("cpu")).values
    assert f"moves {row.nbytes} bytes for each request" in (DOCS / "gpu.md").read_text("utf-8")
