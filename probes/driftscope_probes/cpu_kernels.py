"""The probe's machine code for a CPU: `CompiledKernels` and `PackedMeter`, and the
thread beside the engine's thread on which they may run.

`cpu_programs` has the compiled functions. On a CPU the cost of plain torch is that of its many
small operations, for which the engine's thread waits. Only jobs that do not need the interpreter
benefit from `SideThread`, because the engine continues with its next forward, whose Python code
occupies the interpreter all the time.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from driftscope_probes.buffers import Array, ChainBuffers
from driftscope_probes.drafter import AttentionLayer, PackedKeyReader
from driftscope_probes.kernels import TorchKernels
from driftscope_probes.settings import free_cpu_cores
from driftscope_probes.torch_masses import ChainSlots

JOIN_S = 5.0
"""Longest time that an engine's step waits for a job, in seconds. A job takes milliseconds; a
thread that hangs may lose its own rows but must never block the engine's next step."""


class Job:
    """A posted unit of work; `synchronize` waits for it, as it does for a CUDA event."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self.failed = False
        """Whether there is nothing to take: the job raised, never started, or was given up."""
        self.given_up = False
        """Whether nobody waits any more although the job may still run and write to its target."""
        self.spent_s = 0.0
        """CPU time of the job, in seconds. This and `failed` are valid once the job is over."""

    def synchronize(self) -> None:
        """Wait until the job is over, JOIN_S at most; then it is given up and has failed."""
        if not self._over.wait(JOIN_S):
            self.failed = self.given_up = True

    def refuse(self) -> None:
        """Finish the job without running it; it counts as failed."""
        self.failed = True
        self._over.set()

    def run(self, action: Callable[[], bool]) -> None:
        """Run `action`, which returns whether it succeeded and raises nothing."""
        begun, failed = time.thread_time(), True
        try:
            failed = not action()
        finally:
            self.spent_s = time.thread_time() - begun
            self.failed = failed or self.given_up
            self._over.set()

    @property
    def is_done(self) -> bool:
        """Whether waiting for the job would return at once."""
        return self._over.is_set()


class SideThread:
    """Runs one job at a time, on a thread that starts with the first job.

    =====================  =====================================================================
    `post(job, action)`    start a job and return at once
    `join()`               wait for the posted job, before any of its inputs is overwritten
    =====================  =====================================================================

    A thread that cannot be started (no processes left) or that does not finish within JOIN_S takes
    no more jobs: they are refused, which loses their rows and nothing else.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Job, Callable[[], bool]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Job | None = None
        self._stopped = False
        self.busy = False
        """Whether `join` might have to wait."""

    def post(self, job: Job, action: Callable[[], bool]) -> None:
        """Run `action`, see `Job.run`. Raises RuntimeError, once, if no thread can start."""
        if self._stopped:
            job.refuse()
            return
        if self._thread is None:
            try:
                self._thread = self._started()
            except RuntimeError:
                self._stopped = True
                job.refuse()
                raise
        self._last, self.busy = job, True
        self._jobs.put((job, action))

    def join(self) -> None:
        """Wait for the last job. Raises TimeoutError, once, if it does not finish."""
        if self._last is None:
            return
        job, self._last, self.busy = self._last, None, False
        job.synchronize()
        if job.given_up:
            self._stopped = True
            raise TimeoutError(f"the side thread's job did not finish in {JOIN_S:g} s")

    def _started(self) -> threading.Thread:
        thread = threading.Thread(
            target=self._work, args=(free_cpu_cores(),), name="driftscope-masses", daemon=True
        )
        thread.start()
        return thread

    def _work(self, cores: frozenset[int]) -> None:
        if cores:
            with contextlib.suppress(OSError):  # cores may have been removed since
                os.sched_setaffinity(0, cores)  # for this thread
        while True:
            job, action = self._jobs.get()
            job.run(action)
            del job, action  # otherwise they, and what they refer to, live until the next job


STATE, COPY, LOGITS = 7, 6, 2
"""Count of integers that describe a state, a copy and a depth's logits."""
_Ints = npt.NDArray[np.int64]
_Kept = tuple[int, int, bool]
"""Data that a tap stores of a state beside its tensor: the buffer column, the number of parts, and
whether only the wanted rows are measured."""


class _Description(NamedTuple):
    """Arguments of `measure` that describe a chain's tensors; see `_described_states`."""

    layout: tuple[Any, ...]
    """Layout of the tensors in memory and their columns, for which the description holds."""
    numbers: _Ints
    """States, copies and logits, in sequence."""
    addresses: _Ints
    """Indices of the tensors' addresses in `numbers`."""
    states: int
    copies: int
    size: int
    half: bool


class CompiledKernels(TorchKernels):
    """Kernels compiled with Numba; types other than float32 and bfloat16 use torch."""

    def __init__(self, buffers: ChainBuffers) -> None:
        """Raises ImportError without Numba."""
        from driftscope_probes.cpu_programs import measure

        super().__init__(buffers)
        self._measure = measure
        self._ints = buffers.values.numpy().view(np.int32)
        names = ("position", "top1", "entropy")
        self._places_of_all = np.array([self._columns[name] for name in names], dtype=np.int64)
        self._described: _Description | None = None
        """Description of the last chain whose tensors were all described."""

    def rms(self, x: torch.Tensor, name: str, *, fleeting: bool = False) -> None:
        """See Kernels."""
        if self._open:
            first = self._depth == 1
            if fleeting:
                x = x.index_select(0, self._rows) if first else self._cut(x).clone()
            self._tensors.append(x)
            self._kept.append((self._columns[name] + self._depth - 1, 1, first and not fleeting))

    def rms_of_outputs(
        self, outputs: Sequence[tuple[str, torch.Tensor]], *, fleeting: bool = False
    ) -> None:
        """See Kernels."""
        if fleeting:
            super().rms_of_outputs(outputs, fleeting=True)
        elif self._open:
            at, first = self._depth - 1, self._depth == 1
            for name, x in outputs:
                self._tensors.append(x)
                self._kept.append((self._columns[name] + at, 1, first))

    def rms_of_chunks(
        self, x: torch.Tensor, name: str, chunks: int, first: int = 0, *, fleeting: bool = False
    ) -> None:
        """See Kernels."""
        if self._batch:
            if fleeting:
                x = x.index_select(0, self._rows)
            self._tensors.append(x)
            self._kept.append((self._columns[name] + first, chunks, not fleeting))

    def finish(self) -> None:
        """See Kernels."""
        batch = self._batch
        if not batch:
            super().finish()
            return
        described = self._description()
        self._measure(
            described.numbers,
            described.states,
            described.copies,
            described.size,
            described.half,
            self._row_numbers[:batch],
            self._position.numpy(),
            self._values,
            self._ints[:batch],
            self._places_of_all,
        )
        if self._described is None:  # some need torch
            if self._states:
                self._measure_states()
            if self._logits and not described.size:
                self._measure_logits()
        self.skip()  # the addresses may be invalid from here on

    def _forget(self) -> None:
        super()._forget()
        self._tensors: list[torch.Tensor] = []
        """States to measure, of which `_kept` has the rest."""
        self._kept: list[_Kept] = []

    def _description(self) -> _Description:
        """Return the description of the chain's tensors. As a rule they lie in memory as those of
        the chain before did, so that only their addresses are new."""
        queries = self._queries
        for layer in queries:
            self._check_depths(layer, len(queries[layer]))
        tensors = [*self._tensors, *chain.from_iterable(queries.values()), *self._logits]
        layout = (
            self._kept,
            list(queries),
            len(self._logits),
            [x.dtype for x in tensors],
            [x.shape for x in tensors],
            [x.stride() for x in tensors],
        )
        described = self._described
        if described is None or described.layout != layout:
            return self._describe(layout, len(tensors))
        described.numbers[described.addresses] = [x.data_ptr() for x in tensors]
        return described

    def _describe(self, layout: tuple[Any, ...], tensors: int) -> _Description:
        states, copies = self._described_states(), self._described_queries()
        logits, size, half = self._described_logits()
        addresses = [
            *range(0, len(states), STATE),
            *range(len(states), len(states) + len(copies), COPY),
            *range(len(states) + len(copies), len(states) + len(copies) + len(logits), LOGITS),
        ]
        described = _Description(
            layout,
            np.array(states + copies + logits, dtype=np.int64),
            np.array(addresses, dtype=np.int64),
            len(states) // STATE,
            len(copies) // COPY,
            size,
            half,
        )
        self._described = described if len(addresses) == tensors else None
        return described

    def _described_states(self) -> list[int]:
        """Return for each state: address, row stride, size of a part, number of parts, buffer
        column of the first part, whether the wanted rows are meant (otherwise the first B), whether
        it is bfloat16."""
        described: list[int] = []
        for x, (column, parts, at_rows) in zip(self._tensors, self._kept, strict=True):
            half, strides = _HALF.get(x.dtype), x.stride()
            if half is None or len(strides) != 2 or strides[1] != 1:
                wanted = x.index_select(0, self._rows) if at_rows else self._cut(x)
                self._states.append((wanted, column, parts))
            else:
                size = x.size(1) // parts
                described += (x.data_ptr(), strides[0], size, parts, column, at_rows, half)
        return described

    def _described_queries(self) -> list[int]:
        """Return for each depth of a layer: address and row stride of its queries, whether the
        wanted rows are meant, address and row stride of the destination, and size of a row. Strides
        and sizes are in 2-byte units."""
        described: list[int] = []
        for layer, queries in self._queries.items():
            kept = self._buffers.queries[layer]
            if not all(_rows_fit(q) and q.dtype is kept.dtype for q in queries):
                self._gather_layer(queries, self._room_for(layer, len(queries)))
                continue
            halves = kept.element_size() // 2
            size, row, step = (n * halves for n in (kept.size(2), kept.stride(0), kept.stride(1)))
            place = kept.data_ptr()
            for depth, q in enumerate(queries):
                described += (q.data_ptr(), q.stride(0) * halves, depth == 0, place, row, size)
                place += 2 * step
        return described

    def _described_logits(self) -> tuple[list[int], int, bool]:
        """Return address and row stride by depth, the vocabulary size, whether bfloat16; size 0 if
        torch must measure them."""
        logits = self._logits
        if not logits or not all(_fits(x) and x.dtype == logits[0].dtype for x in logits):
            return [], 0, False
        described: list[int] = []
        for x in logits:
            described += (x.data_ptr(), x.stride(0))
        return described, logits[0].size(1), logits[0].dtype == torch.bfloat16


_HALF = {torch.float32: 0, torch.bfloat16: 1}
"""Data types that the compiled kernels read; the value is 1 for bfloat16."""


def _fits(x: torch.Tensor) -> bool:
    """Return whether a tensor has the layout [rows, dim] that the kernels read."""
    return x.dim() == 2 and _rows_fit(x)


def _rows_fit(x: torch.Tensor) -> bool:
    """Return whether a row's numbers are contiguous; the shape may be [rows, heads, size]."""
    strides = x.stride()
    if strides[-1] != 1 or x.dtype not in _HALF:
        return False
    return len(strides) == 2 or (len(strides) == 3 and strides[1] == x.size(2))


KEY_TYPES = {torch.float32: "float32", torch.bfloat16: "int16"}
"""NumPy type for the bits of each key type; other keys are measured at once, with torch."""
QUICK_SCORES = 1 << 16
"""Number of a layer's scores up to which they are measured at once, because handing them over to
another thread takes longer."""
MANY_SCORES = 1 << 18
"""Number of a layer's scores above which torch measures them if vLLM computes on several cores,
because torch uses all of these."""
_NO_BINS = np.empty((0, 0, 0), np.float32)


class MassJob(NamedTuple):
    """One layer's inputs of a step, unchanged until the next chain is drafted."""

    layer: str
    queries: torch.Tensor
    """[B, K, heads * head_size]."""
    floats: Array | None
    """The queries' own memory, if it can be read directly."""
    mean: Array
    """[B, K, 5], to be filled."""
    table: torch.Tensor
    """[>= B, blocks] int32, owned by the engine."""
    distances: torch.Tensor | None = None
    """[B, K, bins], to be filled if it is given."""


class PackedMeter:
    """Measures all attention layers of a drafter, if Numba and `packed_masses` support them."""

    def __init__(self, layers: Mapping[str, AttentionLayer], dtype: torch.dtype) -> None:
        """`dtype`: type of the keys. Compiles the kernel: this may take seconds, once per
        machine."""
        self._layers = {
            name: (layer, layer.kind, layer.reader)
            for name, layer in layers.items()
            if isinstance(layer.reader, PackedKeyReader)
            and not layer.kind.softcap
            and not layer.kind.chunk
            and layer.kind.head_size % 4 == 0
        }
        self._dtype = dtype
        self._run: Callable[..., None] | None = None
        if layers and len(self._layers) == len(layers) and dtype in KEY_TYPES:
            with contextlib.suppress(ImportError):  # no Numba
                from driftscope_probes.cpu_programs import packed_masses

                self._run = packed_masses(KEY_TYPES[dtype])
        self._known: dict[str, tuple[torch.Tensor, tuple[Any, ...]]] = {}
        self._of_layer: dict[str, tuple[Any, ...]] = {
            name: (
                _floats(kind.sinks) if kind.sinks is not None else np.empty(0, np.float32),
                kind.window or 0,
                kind.heads,
                kind.kv_heads,
                np.float32(kind.scale),
            )
            for name, (_, kind, _) in self._layers.items()
        }
        """Further arguments of `packed_masses` for each layer."""
        self.heads = max((kind.heads for _, kind, _ in self._layers.values()), default=0)

    def takes(self, scores: int) -> bool:
        """Return whether chains with so many scores of a layer should be measured here."""
        few = scores <= MANY_SCORES or torch.get_num_threads() == 1
        return self._run is not None and few

    def plan(
        self, wanted: Iterable[MassJob], chains: ChainSlots, *, at_once: bool = False
    ) -> Callable[[], None] | None:
        """Return a function that fills the slots, on any thread, or None if a cache has another
        type. Unless it is called `at_once`, inputs that the engine changes before its next draft
        are copied now."""
        run, sink_slots, causal = self._run, chains.sink_slots, chains.causal
        if run is None:
            return None
        position, prompt = chains.position, chains.prompt_tokens
        if not at_once:
            position, prompt = position.copy(), prompt.copy()
        tables: dict[int, npt.NDArray[np.int32]] = {}
        todo: list[tuple[Any, ...]] = []
        for name, own, floats, mean, table, distances in wanted:
            layer, _, reader = self._layers[name]
            cache = layer.cache()
            if cache.dtype != self._dtype:
                return None
            blocks = tables.get(id(table))
            if blocks is None:
                blocks = tables[id(table)] = _blocks(table, len(position), at_once=at_once)
            queries = floats if floats is not None else _floats(own)
            biases, *rest = self._of_layer[name]
            todo.append(
                (
                    queries,
                    *self._keys(name, reader, cache),
                    blocks,
                    position,
                    prompt,
                    sink_slots,
                    biases,
                    chains.ahead,
                    causal,
                    *rest,
                    mean,
                    _NO_BINS if distances is None else distances.numpy(),
                )
            )

        def fill() -> None:
            for arguments in todo:
                run(*arguments)

        return fill

    def _keys(self, name: str, reader: PackedKeyReader, cache: torch.Tensor) -> tuple[Any, ...]:
        """Return a layer's keys, their order, and whether that order is the plain one."""
        known = self._known.get(name)
        if known is None or known[0] is not cache:  # vLLM may reallocate its caches
            packed = reader.packed(cache)
            keys = (packed if cache.dtype == torch.float32 else packed.view(torch.int16)).numpy()
            known = self._known[name] = cache, (keys, reader.order(cache).numpy(), reader.in_order)
        return known[1]


def _blocks(table: torch.Tensor, rows: int, *, at_once: bool) -> npt.NDArray[np.int32]:
    """Return the first `rows` rows, shared with the engine if `at_once`, otherwise copied."""
    blocks: npt.NDArray[np.int32] = table.numpy()[:rows]
    if at_once and blocks.dtype == np.int32 and blocks.flags.c_contiguous:
        return blocks
    return np.array(blocks, dtype=np.int32, order="C")


def _floats(x: torch.Tensor) -> npt.NDArray[np.float32]:
    array: npt.NDArray[np.float32] = np.ascontiguousarray(x.float().numpy())
    return array
