"""Machine code for a CPU's taps writes what its twin in PyTorch does."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.command import run_python
from support.mass_cases import MassCase
from support.tiny_drafter import on_host

from driftscope_probes import settings
from driftscope_probes.buffers import ChainBuffers, Layout
from driftscope_probes.cpu_kernels import (
    MANY_SCORES,
    CompiledKernels,
    Job,
    MassJob,
    PackedMeter,
    SideThread,
)
from driftscope_probes.kernels import Kernels, TorchKernels
from driftscope_probes.torch_masses import masses
from driftscope_probes.vllm.drafter import CpuAttnKeys

pytest.importorskip("numba")

LAYOUT = Layout(depths=3, layers=1, aux=3)
REQUESTS, TOKENS, SIZE, HEADS, VOCABULARY = 4, 11, 24, 2, 37
TYPES = [torch.float32, torch.bfloat16, torch.float16]
"""The last is measured by the twin itself."""


def _record(
    make: Callable[[ChainBuffers], Kernels],
    rows: list[int],
    dtype: torch.dtype,
    *,
    fleeting: bool = False,
    k: int = 3,
    special: float | None = None,
) -> ChainBuffers:
    """A chain of the same random tensors for whoever records it."""
    generator = torch.Generator().manual_seed(3)

    def some(*shape: int) -> torch.Tensor:
        return (3 * torch.randn(*shape, generator=generator)).to(dtype)

    def gone(x: torch.Tensor) -> None:
        if fleeting:
            x.fill_(99)

    buffers = ChainBuffers(LAYOUT, REQUESTS, torch.device("cpu"))
    buffers.add_layer("a", HEADS * 8, HEADS, dtype)
    kernels, batch = make(buffers), len(rows)
    kernels.begin(torch.tensor(rows), torch.arange(batch) + 70_000)
    captured = some(TOKENS, 3 * SIZE)
    kernels.rms_of_chunks(captured, "aux_rms", 3, fleeting=fleeting)
    gone(captured)
    kernels.rms_of_chunks(some(TOKENS, 2 * SIZE)[:, SIZE:], "aux_norm_rms", 1, 1)
    for depth in range(k):
        count = TOKENS if depth == 0 else batch + 2
        hidden, qkv, logits = some(count, SIZE), some(count, 40), some(batch + 2, VOCABULARY)
        if special is not None:
            logits[1, 5] = hidden[rows[1] if depth == 0 else 1, 7] = special
        kernels.advance(hidden)
        gone(hidden)
        kernels.copy_query("a", qkv[:, 8:24].view(count, HEADS, 8), fleeting=fleeting)
        kernels.rms(some(count, SIZE), "fed_rms")
        kernels.confidence(logits, fleeting=fleeting)
        gone(logits)
    kernels.finish()
    return buffers


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "k"), [([2, 5, 9], 3), ([7, 0, 3, 1], 1)])
@pytest.mark.parametrize("fleeting", [False, True])
def test_every_figure_is_the_twins(
    rows: list[int], dtype: torch.dtype, fleeting: bool, k: int
) -> None:
    wanted = _record(TorchKernels, rows, dtype, fleeting=fleeting, k=k)
    found = _record(CompiledKernels, rows, dtype, fleeting=fleeting, k=k)
    torch.testing.assert_close(found.values, wanted.values, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert torch.equal(found.queries["a"], wanted.queries["a"])
    assert torch.equal(
        found.part("position", 4).view(torch.int32)[:, 0][: len(rows)],
        torch.arange(len(rows)) + 70_000,
    )
    assert not found.part("entropy", len(rows))[:, :k].isnan().any()
    assert found.values[len(rows) :].isnan().all()


@pytest.mark.parametrize("special", [float("-inf"), float("nan")])
def test_logits_after_a_mask_and_what_is_not_a_number(special: float) -> None:
    wanted = _record(TorchKernels, [2, 5, 9], torch.float32, special=special)
    found = _record(CompiledKernels, [2, 5, 9], torch.float32, special=special)
    torch.testing.assert_close(found.values, wanted.values, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert found.part("top1", 3)[1].isnan().all() == (special != special)


PAGE, PAGES, DEPTHS = 8, 64, 5


@dataclass(frozen=True, kw_only=True)
class Packed(MassCase):
    """Three requests of other lengths over a cache of random keys."""

    positions: tuple[int, ...] = (40, 7, 63)
    prompts: tuple[int, ...] = (30, 9, 63)
    size: int = 16
    depths: int = DEPTHS
    longest: int = DEPTHS
    sink_slots: tuple[int, ...] = (0, 1)
    shuffled: bool = False
    """The cache has another order than the plain one."""

    @functools.cached_property
    def attention(self) -> Any:
        """An AttentionLayer of this situation."""
        generator = torch.Generator().manual_seed(7)
        cache = torch.randn(PAGES, self.kv_heads, PAGE, 2 * self.size, generator=generator)
        layer = SimpleNamespace(kv_cache=cache.to(self.dtype))
        reader, order = CpuAttnKeys(layer), torch.arange(self.size * PAGE)
        if self.shuffled:
            order = order[torch.randperm(len(order), generator=generator)]
        reader._order, reader.in_order = order, not self.shuffled
        reader._heads = 2 * np.arange(self.kv_heads)
        return SimpleNamespace(kind=self.kind, reader=reader, cache=lambda: layer.kv_cache)

    def meter(self, dtype: torch.dtype) -> PackedMeter:
        """One for keys of that type, whatever the cache has."""
        return PackedMeter({"layer": self.attention}, dtype)


PACKED = Packed()
SITUATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"depths": 2},
    {"depths": 1, "longest": 1},
    {"window": 6, "bias": True, "longest": 7},
    {"shuffled": True},
    {"dtype": torch.bfloat16},
    {"dtype": torch.bfloat16, "shuffled": True},
    {"window": 30, "bias": True},
    {"causal": False, "ahead": 1},
    {"ahead": 2},
    {"sink_slots": ()},
    {"sink_slots": (0, 9, 35)},
    {"sharpness": 40.0},
)


@pytest.mark.parametrize("changes", SITUATIONS, ids=str)
def test_machine_code_and_torch_agree(changes: dict[str, Any]) -> None:
    case = replace(PACKED, **changes)
    k, layer, chains = case.depths, case.attention, on_host(case.chains)
    generator = torch.Generator().manual_seed(9)
    # One block for any chain is left of what the longest needs.
    table = torch.randint(0, PAGES, (4, 10), generator=generator, dtype=torch.int32)
    queries = 2 * torch.randn(3, DEPTHS, case.heads * case.size, generator=generator)[:, :k]
    slots, wanted_bins = max(case.positions) + case.ahead + k, case.bins()
    wanted = masses(
        queries,
        lambda q: layer.reader.score(q, layer.cache(), table[:3], slots),
        chains,
        case.kind,
        wanted_bins if case.causal else None,
    )
    meter = case.meter(case.dtype)
    assert meter.takes(3 * k * case.heads * slots)
    with torch.inference_mode():  # as vLLM's workers do
        room = torch.full((3, DEPTHS, 5), -1.0)
        # As in a row of the buffers: other layers' numbers lie between.
        distances = torch.full((3, DEPTHS, 2, wanted_bins.shape[-1]), torch.nan)
    mean, bins = room[:, :k], distances[:, :k, 1]
    job = MassJob("layer", queries, None, mean.numpy(), table, bins if case.causal else None)
    fill = meter.plan([job], chains)
    assert fill is not None
    table.fill_(0)  # the engine goes on
    chains.position[:] = 0
    fill()
    assert (room[:, k:] == -1.0).all() and distances[:, :, 0].isnan().all(), "nothing else"
    torch.testing.assert_close(mean, wanted.mean(2), rtol=0, atol=2e-6, equal_nan=True)
    assert case.sink_slots == () or wanted.isfinite().any()
    torch.testing.assert_close(bins, wanted_bins, rtol=0, atol=2e-6, equal_nan=True)
    assert bins.isfinite().all() if case.causal else bins.isnan().all()


def test_what_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of other types, caches of another type than the drafter's, and much on many cores."""
    assert not PACKED.meter(torch.float16).takes(1)
    assert not PACKED.meter(torch.float64).takes(1)
    queries, mean = torch.zeros(3, DEPTHS, 4 * 16), np.zeros((3, DEPTHS, 5))
    wanted = MassJob("layer", queries, None, mean, torch.zeros(3, 10, dtype=torch.int32))
    assert PACKED.meter(torch.bfloat16).plan([wanted], on_host(PACKED.chains)) is None
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    takes = PACKED.meter(torch.float32).takes
    assert takes(MANY_SCORES) and not takes(MANY_SCORES + 1)


def test_jobs_run_in_order_on_another_thread_and_join_waits_for_them() -> None:
    beside, go, order = SideThread(), threading.Event(), list[tuple[int, bool]]()
    jobs = [Job() for _ in range(3)]
    for number, job in enumerate(jobs):

        def work(number: int = number) -> bool:
            go.wait(10)
            order.append((number, threading.current_thread() is threading.main_thread()))
            return number != 1

        beside.post(job, work)
    assert (order, beside.busy, jobs[0].is_done) == ([], True, False)
    go.set()
    beside.join()
    assert (order, beside.busy) == ([(0, False), (1, False), (2, False)], False)
    assert [(job.is_done, job.failed) for job in jobs] == [
        (True, False),
        (True, True),
        (True, False),
    ]
    assert all(job.spent_s >= 0 for job in jobs)
    beside.join()


def test_what_ends_its_thread_has_failed_and_keeps_nobody_waiting() -> None:
    job = Job()

    def ends() -> bool:
        raise SystemExit

    with pytest.raises(SystemExit):
        job.run(ends)
    assert (job.is_done, job.failed) == (True, True)


def test_a_thread_that_cannot_start_refuses_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the one raised when the container's limit of processes is reached."""

    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_more)
    beside, jobs = SideThread(), [Job(), Job()]
    with pytest.raises(RuntimeError, match="start new thread"):
        beside.post(jobs[0], lambda: True)
    beside.post(jobs[1], lambda: True)
    beside.join()
    for job in jobs:
        job.synchronize()
        assert (job.is_done, job.failed) == (True, True)


def test_a_job_that_does_not_come_back_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftscope_probes.cpu_kernels.JOIN_S", 0.05)
    beside, go, over = SideThread(), threading.Event(), threading.Event()

    def work() -> bool:
        go.wait(10)
        over.set()
        return True

    job, later = Job(), Job()
    beside.post(job, work)
    with pytest.raises(TimeoutError, match="did not finish"):
        beside.join()
    beside.post(later, lambda: True)
    assert (job.failed, job.given_up, later.failed) == (True, True, True)
    beside.join()
    go.set()
    assert over.wait(10)
    assert job.failed, "what it did after it was given up does not count"


def test_the_thread_keeps_off_the_cores_that_the_engine_is_bound_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "engine_cores", lambda: frozenset({0, 1, 2}))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    assert settings.free_cpu_cores() == {0, 2}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert settings.free_cpu_cores() == {0, 1, 2}, "bound to none"


@pytest.mark.process
def test_the_first_process_says_what_cores_there_are() -> None:
    """A worker may find itself bound to some of them before it has any say."""
    script = (
        "import os; from driftscope_probes import settings as cores; "
        "print(sorted(cores.engine_cores()), os.environ[cores.CORES])"
    )
    mine = min(os.sched_getaffinity(0))

    def child(**more: str) -> str:
        bound = f"import os; os.sched_setaffinity(0, {{{mine}}}); {script}"
        return run_python("-c", bound, **more).stdout.strip()

    assert child() == f"[{mine}] {mine}"
    said = f"{mine},{mine + 7}"
    assert child(**{settings.CORES: said}) == f"[{mine}, {mine + 7}] {said}"
