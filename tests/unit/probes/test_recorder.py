"""A worker's steps become rows; hooks that fail cost their chains and nothing else."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from support.command import run_python
from support.runs import verify
from support.tiny_drafter import HEADS, LAYERS, Batch, Call, K, Worker, by_hand, tiny_drafter
from support.waiting import until
from torch.utils._python_dispatch import TorchDispatchMode

from driftscope.trace.status import read_statuses
from driftscope.vocabulary import BY_DEPTH as PER_DEPTH
from driftscope.vocabulary import MASSES
from driftscope_probes import request_rows as module
from driftscope_probes.buffers import SLOTS, ChainBuffers, HostRing, Landing
from driftscope_probes.chain import OptionalMasses
from driftscope_probes.cpu_kernels import CompiledKernels
from driftscope_probes.engine import DeviceStep, DraftStep
from driftscope_probes.meter import MassPlan
from driftscope_probes.process_writer import open_writer, sample
from driftscope_probes.request_rows import ANSWER_TOKENS, PromptDigests
from driftscope_probes.sampler import detail_choices
from driftscope_probes.settings import RECORDINGS, Settings

Start = Callable[..., Worker]
AS_STORED: dict[str, float] = {"rtol": 1e-5, "atol": 5e-6}
"""Record files keep 16 bits of a mantissa; one class is what the others leave of 1."""


def _masses_are(row: dict[str, Any], truth: dict[str, Any]) -> None:
    np.testing.assert_allclose(row["distance_mass"], truth["distances"].reshape(-1), **AS_STORED)
    means = truth["masses"].mean(2)
    for at, name in enumerate(MASSES[:4]):
        np.testing.assert_allclose(row[name], means[..., at].reshape(-1), **AS_STORED, err_msg=name)
    assert row["null_mass"] is None


def test_the_memory_that_is_stated_is_what_all_buffers_take(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, init = list[ChainBuffers](), ChainBuffers.__init__

    def noted(self: ChainBuffers, *args: Any, **more: Any) -> None:
        made.append(self)
        init(self, *args, **more)

    monkeypatch.setattr(ChainBuffers, "__init__", noted)
    worker = start(distance_every=1)
    stated = worker.recorder.device_bytes
    worker.step()
    (buffers,) = made
    tensors = [*vars(buffers).values(), *buffers.queries.values(), *buffers.lse.values()]
    tensors.append(worker.recorder._chain.distances._values)
    assert stated == sum(x.nbytes for x in tensors if isinstance(x, torch.Tensor))
    worker.trace()


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("flags", [{}, {"fc_norm": True, "norm_output": True}])
def test_rows_hold_the_chain_computed_by_hand(
    start: Start, recording: str, flags: dict[str, bool]
) -> None:
    worker = start(tiny_drafter(**flags), recording=recording, distance_every=1)
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
        for name in (*PER_DEPTH, "aux_rms", *["aux_norm_rms"] * bool(flags)):
            np.testing.assert_allclose(row[name], truth[name], rtol=1e-5, err_msg=name)
        assert row["fc_rms"] == pytest.approx(truth["fc_rms"][0], rel=1e-5)
        assert flags or row["aux_norm_rms"] is None
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
    start: Start, recording: str, calls: list[str]
) -> None:
    worker = start(recording=recording, every=2)
    worker.step()
    worker.step()
    assert worker.calls == calls
    assert [batch.made for batch in worker.batches] == [1, 0], "a step that is passed costs little"
    assert worker.trace().step.column("recorded").to_pylist() == [True, False]


def test_a_shadow_that_drafts_other_tokens_is_counted(start: Start) -> None:
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


def test_every_second_draft_step(start: Start) -> None:
    worker = start(every=2)
    for prefilling in ((False, False), None, (False, False), (False, False)):
        worker.step(prefilling)
    trace = worker.trace()
    assert trace.step.column("recorded").to_pylist() == [True, False, False, True]
    assert trace.step.column("chains").to_pylist() == [2, 0, 2, 2]
    assert trace.draft.column("step").to_pylist() == [1, 1, 4, 4]
    assert trace.draft.column("rate").to_pylist() == [0.5] * 4


def test_a_chain_carries_the_rate_that_it_was_drawn_at(start: Start) -> None:
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


def test_chains_of_other_lengths_do_not_mix(start: Start) -> None:
    worker = start(distance_every=1)
    for k in (3, 2, 0):
        worker.step(k=k)
    wanted = by_hand(worker.batches[1], worker.drafter.model, (0, 1))
    trace = worker.trace()
    assert trace.step.column("recorded").to_pylist() == [True, True, False]
    for row, truth in zip(trace.draft.to_pylist()[2:], wanted, strict=True):
        assert row["k"] == 2
        np.testing.assert_allclose(row["fed_rms"], truth["fed_rms"], rtol=1e-5)
        _masses_are(row, truth)


def test_the_first_recorded_steps_and_some_later_ones_carry_masses_by_distance(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftscope_probes.chain.FIRST_WITH_DETAILS", 6)
    worker = start(distance_every=3)
    for _ in range(30):
        worker.step()
    trace = worker.trace()
    chosen = detail_choices(3)
    carries = [row is not None for row in trace.draft.column("distance_mass").to_pylist()]
    steps = trace.draft.column("step").to_pylist()
    first = {step for at, step in enumerate(steps) if at < 6}
    assert carries == [step in first or chosen[step - 1] == 1 for step in steps]
    assert 10 < sum(carries) < len(carries)
    assert trace.draft.column("sink_mass").null_count == 0


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_that_raise_cost_only_their_chains(start: Start, when: str, recording: str) -> None:
    worker = start(test_raise=when, recording=recording)
    without = Batch(SimpleNamespace(model=worker.drafter.model)).draft()
    worker.step()
    worker.step()
    assert all(torch.equal(drafts, without) for drafts in worker.drafts)
    trace = worker.trace()
    assert trace.draft.num_rows == 0
    assert sum(trace.statuses[0].errors.values()) > 0
    (problem,) = trace.problems
    assert "first: draft_started: InjectedError" in problem


def test_a_runner_that_is_laid_out_differently_costs_only_chains(start: Start) -> None:
    worker = start()
    batch = Batch(worker.proposer)
    worker.recorder.step_started()
    drafts = worker.recorder.draft(Unreadable(batch, batch.draft, batch.draft))
    worker.recorder.step_ended(lambda: 2)
    assert drafts.shape == (2, K)
    worker.step()
    trace = worker.trace()
    assert (trace.draft.num_rows, trace.step.num_rows) == (2, 2)
    assert trace.statuses[0].errors == {"draft_started": 1}


@pytest.mark.parametrize("refuses", [False, True])
def test_steps_that_the_writer_does_not_keep_up_with_are_dropped_and_counted(
    start: Start, refuses: bool
) -> None:
    """Steps that the queue refuses cost no slot."""
    worker, waiting = start(distance_every=1, token_ids=True), list[Any]()
    put = worker.writer.put
    worker.writer.put = lambda work: not refuses and bool(waiting.append(work))
    for _ in range(SLOTS + 6):
        worker.step()
    worker.writer.put = put
    if not refuses:
        assert len(waiting) == SLOTS + 6
        while waiting:
            put(waiting.pop(0))
        until(lambda: worker.recorder._transfer._ring._free != [])
    worker.step()
    trace = worker.trace()
    recorded = [True] if refuses else [True] * SLOTS + [False] * 6 + [True]
    assert trace.step.column("recorded").to_pylist() == recorded
    assert trace.draft.num_rows == 2 * sum(recorded)
    assert trace.draft.column("distance_mass").null_count == 0
    assert trace.statuses[0].dropped == ({} if refuses else {"ring_full": 12})


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

    def _plan(self, step: DraftStep, at: DeviceStep, distances: torch.Tensor | None) -> MassPlan:
        def fill() -> None:
            assert threading.current_thread().name == "driftscope-masses"
            assert self.go.wait(10)
            if self.fails:
                raise RuntimeError("no keys")
            self._meter.measure(step, at, distances)

        return MassPlan(fill=fill, run_inline=False)


def test_masses_taken_beside_the_engine_are_the_same(start: Start) -> None:
    """Those that fail cost their chains."""
    worker = start(distance_every=1)
    aside = Aside(worker)
    worker.step()  # nobody has waited
    wanted = by_hand(worker.batches[0], worker.drafter.model, (0, 1))
    aside.go.set()
    worker.recorder._side_thread.join()
    aside.fails = True
    worker.step()
    trace = worker.trace()
    assert trace.step.column("recorded").to_pylist() == [True, False]
    assert trace.statuses[0].errors == {"masses": 1}
    for row, truth in zip(trace.draft.to_pylist(), wanted, strict=True):
        assert row["step"] == 1
        np.testing.assert_allclose(row["in_rms"], truth["in_rms"], rtol=1e-5)
        _masses_are(row, truth)


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
    start: Start, scheduled: dict[str, Any], shares: bool, waits: bool
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
def test_the_next_draft_waits_for_the_masses(start: Start, read: bool) -> None:
    """A step that is not recorded writes keys as well, and so does one that cannot be read."""
    worker = start(every=2)
    aside = Aside(worker)
    worker.step()
    threading.Timer(0.2, aside.go.set).start()
    if read:
        worker.step()
        assert aside.go.is_set()
    else:
        worker.recorder.sampler.set(every=1)
        call = Unreadable(Batch(worker.proposer), aside.go.is_set, lambda: None)
        assert worker.recorder.draft(call) is True, "the drafter ran after the masses were taken"
    trace = worker.trace()
    assert len(trace.draft) == 2
    assert trace.statuses[0].errors == ({} if read else {"draft_started": 1})


OPERATORS, CALLS = "torch operators", "calls of the probe's functions"
COST_OF_DEPTH = {OPERATORS: 0, CALLS: 17}
"""Operations of a depth after the first, of a drafter with two layers of attention."""
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


def test_a_depth_adds_no_torch_operator(start: Start, tmp_path: Path) -> None:
    """The drafter drafts greedily, so that nothing changes the logits that it keeps."""
    added, drafter = {}, replace(tiny_drafter(k=8), samples=False)
    for every in (1, 1 << 30):
        worker = start(drafter, every=every, trace=tmp_path / str(every))
        assert isinstance(worker.recorder._chain.kernels, CompiledKernels)
        seven, eight = (operations(worker, k) for k in (7, 8))
        added[every] = {kind: eight[kind] - seven[kind] for kind in eight}
        worker.recorder.close()
    recorded, passed = added[1], added[1 << 30]
    assert passed[CALLS] == 0, "hooks rest in steps that are not recorded"
    assert {kind: recorded[kind] - passed[kind] for kind in recorded} == COST_OF_DEPTH


CPU = torch.device("cpu")


def _sent(ring: HostRing, value: float) -> Landing:
    landing = ring.send(torch.full((1, 3), value))
    assert landing is not None
    return landing


def test_later_changes_of_the_source_and_of_the_slot_do_not_show() -> None:
    ring, source = HostRing(4, 3, CPU, slots=1), torch.full((4, 3), 1.0)
    landing = ring.send(source)
    assert landing is not None
    source.fill_(2.0)  # the next chain is drafted
    taken = landing.take()
    again = ring.send(source)
    assert again is not None
    assert (taken == 1.0).all(), "what was taken is not in the slot any more"
    assert (again.take() == 2.0).all()


def test_a_full_ring_takes_nothing_and_a_slot_is_free_once() -> None:
    ring = HostRing(4, 3, CPU, slots=2)
    for _ in range(5):
        _sent(ring, 0.0)  # forgotten
    first, second = _sent(ring, 1.0), _sent(ring, 2.0)
    assert ring.send(torch.ones(1, 3)) is None
    assert (first.take() == 1.0).all()
    del first
    assert (_sent(ring, 4.0).take() == 4.0).all(), "a slot that was taken is free"
    held = _sent(ring, 5.0)
    assert ring.send(torch.ones(1, 3)) is None, "no slot is free twice"
    assert (second.take() == 2.0).all() and (held.take() == 5.0).all()


def test_optional_masses_take_room_when_first_asked_for() -> None:
    heads = OptionalMasses((3, 2, 4, 5), 4, CPU)
    room = heads.take(2)
    assert room.shape == (2, 3, 2, 4, 5) and room.isnan().all()
    room[1] = 7.0
    landing = heads.send(2)
    assert landing is not None
    taken = landing.take()
    assert taken.shape == (2, 3 * 2 * 4 * 5) and (taken[1] == 7.0).all()
    assert heads.take(2).isnan().all(), "nothing of the step before is left"


KEY, OTHER_KEY = b"k" * 16, b"o" * 16
FIRST, ANSWER = [5, 6, 7, 8, 9], [101, 102, 103]


def _request(prompt: Sequence[int] | None, answer: Sequence[int] = (), **more: Any) -> Any:
    tokens = None if prompt is None else list(prompt)
    return SimpleNamespace(prompt_token_ids=tokens, output_token_ids=list(answer), **more)


def test_equal_prompts_have_equal_digests_and_others_do_not() -> None:
    """The key decides which agree, and images are part of a prompt; one of embeddings has none."""
    digests, other_key = PromptDigests(KEY), PromptDigests(OTHER_KEY)
    first, again, other = (digests.of(_request(p, ANSWER)) for p in (FIRST, FIRST, FIRST[::-1]))
    assert first[0] is not None and len(first[0]) == 16
    assert first == again == PromptDigests(KEY).of(_request(FIRST, ANSWER))
    images = [[SimpleNamespace(identifier=name)] for name in ("cat", "dog")]
    pictures = [digests.of(_request(FIRST, mm_features=image))[0] for image in images]
    others = [other[0], other_key.of(_request(FIRST))[0], *pictures]
    assert len({first[0], *others}) == 5
    assert digests.of(_request(None, ANSWER)) == (None, None)
    assert digests.of(_request(FIRST, ANSWER, prompt_embeds=object())) == (None, None)


def test_a_later_turn_belongs_to_the_conversation_that_it_continues() -> None:
    """The end of an answer may be tokenised anew."""
    digests = PromptDigests(KEY)
    first, _ = digests.of(_request(FIRST, ANSWER))
    second, of_second = digests.of(_request([*FIRST, *ANSWER, 20, 21], [7, 7]))
    third, of_third = digests.of(_request([*FIRST, *ANSWER, 20, 21, 7, 7, 30], [1]))
    assert of_second == of_third == first
    assert len({first, second, third}) == 3
    answer = list(range(200, 200 + 2 * ANSWER_TOKENS))
    first, _ = digests.of(_request(FIRST, answer))
    assert digests.of(_request([*FIRST, *answer[:-1], 999, 20], [1]))[1] == first


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param([*FIRST, 20, 21, 22, 23], id="only the prompt is repeated, not the answer"),
        pytest.param([*FIRST, 101, 102, 9, 20], id="another answer"),
        pytest.param([4, *FIRST, *ANSWER, 20], id="at another place"),
        pytest.param([*FIRST, *ANSWER[:2]], id="shorter than what it would continue"),
    ],
)
def test_another_prompt_begins_a_conversation_of_its_own(prompt: list[int]) -> None:
    digests = PromptDigests(KEY)
    digests.of(_request(FIRST, ANSWER))
    own, conversation = digests.of(_request(prompt, [1]))
    assert conversation == own


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_ANSWERS", 10)
    digests = PromptDigests(KEY)
    names = [digests.of(_request([n, n], [n]))[0] for n in range(1, 31)]
    assert digests.of(_request([30, 30, 30, 1], [2]))[1] == names[-1], "the latest is known"
    own, conversation = digests.of(_request([1, 1, 1, 1], [2]))
    assert own == conversation, "the first is forgotten"
    assert len(digests._roots) == sum(digests._lengths.values()) == 10


GROW = """
import os
from driftscope_probes.process_writer import sample
(before,) = sample("worker0-1")
held = bytearray(os.urandom(1 << 20) * 64)
(after,) = sample("worker0-1")
print((after.process_bytes - before.process_bytes) / len(held))
"""


@pytest.mark.process
def test_a_sample_follows_the_process() -> None:
    """One of its own: this one frees memory when it likes."""
    assert 0.8 < float(run_python("-c", GROW).stdout) < 1.5
    (after,) = sample("worker0-1")
    assert 0 < after.host_available_bytes < 1 << 50
    assert after.gpu_used_bytes is None
    assert after.source == "worker0-1"


def test_an_idle_process_is_named_after_its_role_and_records_nothing(tmp_path: Path) -> None:
    writer = open_writer(Settings(trace=tmp_path / "run"), "worker0")
    time.sleep(0.5)
    writer.close()
    assert not list((tmp_path / "run").glob("resource-*"))
    (status,) = read_statuses(tmp_path / "run")
    assert status.source == f"worker0-{os.getpid()}"


def test_samples_come_with_traffic_and_at_most_one_a_second(tmp_path: Path) -> None:
    writer = open_writer(Settings(trace=tmp_path / "run"), "worker0")
    begin = time.monotonic()
    for i in range(8):
        writer.put(verify(0, i, time.time(), i, 8, 1))
        time.sleep(0.2)
    lasted = time.monotonic() - begin
    writer.close()
    (segment,) = (tmp_path / "run").glob("resource-*.parquet")
    assert 1 <= pq.read_table(segment).num_rows <= 1 + lasted
