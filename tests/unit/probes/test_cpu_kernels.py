"""Machine code for a CPU's taps writes what its twin in PyTorch does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_drafter import chains_of, on_host

from driftscope.trace.records import edges_of
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
from driftscope_probes.drafter import AttentionKind
from driftscope_probes.kernels import Kernels, TorchKernels
from driftscope_probes.torch_masses import ChainSlots, masses
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


MASS_HEADS, KV, HEAD_SIZE, PAGE, PAGES, DEPTHS = 4, 2, 16, 8, 64, 5
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

    def layer(self) -> Any:
        generator = torch.Generator().manual_seed(7)
        cache = torch.randn(PAGES, KV, PAGE, 2 * HEAD_SIZE, generator=generator)
        return SimpleNamespace(kv_cache=cache.to(DTYPES[self.dtype]))

    def reader(self, layer: Any) -> CpuAttnKeys:
        reader = CpuAttnKeys(layer)
        order = torch.arange(HEAD_SIZE * PAGE)
        if self.shuffled:
            order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(8))]
        reader._order, reader.in_order = order, not self.shuffled
        reader._heads = 2 * np.arange(KV)
        return reader

    def attention(self, layer: Any) -> Any:
        """An AttentionLayer of this situation."""
        reader = self.reader(layer)
        return SimpleNamespace(kind=self.kind, reader=reader, cache=lambda: layer.kv_cache)

    def meter(self, dtype: torch.dtype) -> PackedMeter:
        """One for keys of that type, whatever the cache has."""
        return PackedMeter({"layer": self.attention(self.layer())}, dtype)

    @property
    def kind(self) -> AttentionKind:
        return AttentionKind(
            heads=MASS_HEADS,
            kv_heads=KV,
            head_size=HEAD_SIZE,
            scale=self.sharpness / HEAD_SIZE**0.5,
            window=self.window,
            sinks=torch.linspace(-1.0, 2.0, MASS_HEADS) if self.biases else None,
        )

    @property
    def chains(self) -> ChainSlots:
        more = {"ahead": self.ahead, "causal": self.causal, "seen": 8}
        return on_host(chains_of(self.k, (40, 7, 63), (30, 9, 63), self.sinks, **more))

    def both(self) -> tuple[torch.Tensor, ...]:
        """By torch by head, and by machine code the mean; then the masses by distance by torch and
        by machine code, which are NaN unless they are defined."""
        layer, kind, chains = self.layer(), self.kind, self.chains
        reader = self.reader(layer)
        generator = torch.Generator().manual_seed(9)
        # One block for any chain is left of what the longest needs.
        table = torch.randint(0, PAGES, (4, 10), generator=generator, dtype=torch.int32)
        every = 2 * torch.randn(3, DEPTHS, MASS_HEADS * HEAD_SIZE, generator=generator)
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
        assert meter.takes(3 * self.k * MASS_HEADS * slots)
        with torch.inference_mode():  # as vLLM's workers do
            room = torch.full((3, DEPTHS, 5), -1.0)
            # As in a row of the buffers: other layers' numbers lie between.
            distances = torch.full((3, DEPTHS, 2, bins.shape[-1]), torch.nan)
        mean = room[:, : self.k].numpy()
        by_distance = distances[:, : self.k, 1] if self.causal else None
        fill = meter.plan([MassJob("layer", queries, None, mean, table, by_distance)], chains)
        assert fill is not None
        table.fill_(0)  # the engine goes on
        chains.position[:] = 0
        fill()
        assert (room[:, self.k :] == -1.0).all(), "nothing else is written"
        assert distances[:, :, 0].isnan().all()
        return wanted, room[:, : self.k], bins, distances[:, : self.k, 1]


SITUATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"k": 2},
    {"k": 2, "longest": 2},
    {"k": 1, "longest": 1},
    {"window": 6, "biases": True, "longest": 7},
    {"shuffled": True},
    {"dtype": "bfloat16"},
    {"dtype": "bfloat16", "shuffled": True},
    {"window": 6},
    {"window": 30, "biases": True},
    {"biases": True},
    {"causal": False, "ahead": 1},
    {"ahead": 2},
    {"sinks": ()},
    {"sinks": (0, 9, 35)},
    {"sharpness": 40.0},
)


@pytest.mark.parametrize("changes", SITUATIONS, ids=str)
def test_machine_code_and_torch_agree(changes: dict[str, Any]) -> None:
    situation = Situation(**changes)
    wanted, mean, wanted_bins, bins = situation.both()
    torch.testing.assert_close(mean, wanted.mean(2), rtol=0, atol=2e-6, equal_nan=True)
    assert situation.sinks == () or wanted.isfinite().any()
    torch.testing.assert_close(bins, wanted_bins, rtol=0, atol=2e-6, equal_nan=True)
    assert bins.isfinite().all() if situation.causal else bins.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_keys_are_left_to_torch(dtype: torch.dtype) -> None:
    assert not Situation().meter(dtype).takes(1)


def test_so_are_caches_of_another_type_than_the_drafters() -> None:
    situation = Situation()
    meter = situation.meter(torch.bfloat16)
    queries, mean = torch.zeros(3, DEPTHS, MASS_HEADS * HEAD_SIZE), np.zeros((3, DEPTHS, 5))
    table = torch.zeros(3, 10, dtype=torch.int32)
    wanted = MassJob("layer", queries, None, mean, table)
    assert meter.plan([wanted], situation.chains) is None


def test_much_on_several_cores_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Situation().meter(torch.float32)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert meter.takes(MANY_SCORES)
    assert not meter.takes(MANY_SCORES + 1)


def test_a_job_runs_on_another_thread_and_join_waits_for_it() -> None:
    beside, go, seen = SideThread(), threading.Event(), list[int]()

    def work() -> bool:
        go.wait(10)
        seen.append(threading.get_ident())
        return True

    job = Job()
    beside.post(job, work)
    assert (seen, beside.busy, job.is_done) == ([], True, False)
    go.set()
    beside.join()
    assert seen and seen[0] != threading.get_ident()
    assert (beside.busy, job.is_done, job.failed) == (False, True, False)
    beside.join()


def test_jobs_run_in_order_and_say_whether_they_failed() -> None:
    beside, order = SideThread(), list[int]()
    jobs = [Job() for _ in range(3)]
    for number, job in enumerate(jobs):

        def work(number: int = number) -> bool:
            order.append(number)
            return number != 1

        beside.post(job, work)
    beside.join()
    assert order == [0, 1, 2]
    assert [job.failed for job in jobs] == [False, True, False]
    assert all(job.spent_s >= 0 for job in jobs)


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
        plain = {name: value for name, value in os.environ.items() if name != settings.CORES}
        return subprocess.run(
            [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{mine}}}); {script}"],
            env={**plain, **more},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    assert child() == f"[{mine}] {mine}"
    said = f"{mine},{mine + 7}"
    assert child(**{settings.CORES: said}) == f"[{mine}, {mine + 7}] {said}"
