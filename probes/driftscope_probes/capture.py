"""A finished step on its way to the writer's thread, and the rows that it becomes there."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.trace.records import DraftRow, StepRow
from driftscope.trace.writer import TraceWriter
from driftscope_probes.buffers import MASSES, PER_DEPTH, Layout
from driftscope_probes.clock import Marks
from driftscope_probes.ring import Landing
from driftscope_probes.sampling import Sampler
from driftscope_probes.view import DraftStep

REMEMBERED_REQUESTS = 65_536
"""Requests of which the encoder remembers that their prompt came in chunks."""
SHADOW_DIFFERS = "shadow_differs"
"""Chains whose shadow, drafted eagerly, had other tokens than the served one: counted, and kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A step whose hooks are done."""

    number: int
    time_s: float
    step: DraftStep | None
    values: Landing | None
    """The chains' numbers; None when they were not recorded."""
    ids: Landing | None
    """[B, 2K] int32 bit for bit: the served tokens, then those of the chain that was measured."""
    compare_ids: bool
    keep_ids: bool
    head_mass: Landing | None
    """[B, K * layers * heads * 5]."""
    marks: Marks
    """On the device: before the draft, after it, after the probe's own work."""
    rate: float
    """In force when the step was drawn."""
    chosen: npt.NDArray[np.bool_] | None = None
    """[B]: whose chains are to be recorded; None: all."""
    execution: str
    requests: int
    step_s: float
    draft_s: float
    probe_s: float


class Encoder:
    """Makes rows of finished steps, in order, on the writer's thread."""

    def __init__(
        self, layout: Layout, *, heads: int, strategy: str, max_slots: int, writer: TraceWriter,
        sampler: Sampler,
    ) -> None:  # fmt: skip
        """`max_slots`: the engine's context limit; the drafter's forwards beyond it are void."""
        self._layout, self._columns = layout, layout.columns
        self._writer, self._sampler = writer, sampler
        self._heads, self._strategy, self._max_slots = heads, strategy, max_slots
        self._chunked: OrderedDict[str, None] = OrderedDict()

    def rows(self, done: Finished) -> list[DraftRow | StepRow]:
        """The step's row, then a row per recorded chain."""
        begun = time.thread_time()
        step = done.step
        rows: list[DraftRow | StepRow] = [
            StepRow(
                step=done.number,
                time_s=done.time_s,
                requests=done.requests,
                chains=0 if step is None else int((~step.prefilling).sum()),
                k=step.k if step else 0,
                recorded=done.values is not None,
                step_s=done.step_s,
                draft_s=done.draft_s,
                probe_s=done.probe_s,
                rate=done.rate,
                execution=done.execution,
                gpu_draft_s=done.marks.between(0, 1),
                gpu_probe_s=done.marks.between(1, 2),
            )  # fmt: skip
        ]
        if step is None:
            return rows
        self._remember(step.requests, step.prefilling)
        if done.values is not None:
            rows += self._chains(done, step, done.values.take())
            self._sampler.note_encoding(time.thread_time() - begun)
        self._writer.set_gauges(
            rate=self._sampler.rate if self._sampler.recording else 0.0,
            overhead=self._sampler.overhead, recording=self._sampler.recording,
        )  # fmt: skip
        return rows

    def _remember(self, requests: tuple[str, ...], prefilling: npt.NDArray[np.bool_]) -> None:
        for index in np.flatnonzero(prefilling):
            self._chunked[requests[index]] = None
        while len(self._chunked) > REMEMBERED_REQUESTS:
            self._chunked.popitem(last=False)

    def _chains(
        self, done: Finished, step: DraftStep, values: npt.NDArray[np.float32]
    ) -> Iterable[DraftRow]:
        k = min(step.k, self._layout.depths)
        drafts = self._tokens(done, k)
        by_head = None if done.head_mass is None else done.head_mass.take()
        position = self._part(values, "position").copy().view(np.int32)[:, 0]
        # Past the context limit vLLM's drafter runs on slots that are not there.
        void = position[:, None] + np.arange(k) >= self._max_slots
        depths = {name: self._per_depth(values, name, k, void) for name in PER_DEPTH}
        mass = self._masses(values, k, void)
        aux, normed = self._part(values, "aux_rms"), self._part(values, "aux_norm_rms")
        fc = self._part(values, "fc_rms")
        kept = ~step.prefilling if done.chosen is None else ~step.prefilling & done.chosen
        for b in np.flatnonzero(kept).tolist():
            yield DraftRow(
                step=done.number, time_s=done.time_s, request=step.requests[b],
                position=int(position[b]), prompt_tokens=int(step.prompt_tokens[b]),
                batch=len(step.requests), k=k, layers=self._layout.layers,
                chunked_prefill=step.requests[b] in self._chunked,
                **{name: _known(depth[b]) for name, depth in depths.items()},
                **{name: _known(mass[b, :, :, i]) for i, name in enumerate(MASSES)},
                aux_rms=_known(aux[b]), aux_norm_rms=_known(normed[b]),
                fc_rms=None if np.isnan(fc[b, 0]) else float(fc[b, 0]),
                token_ids=None if drafts is None else drafts[b].tolist(),
                rate=done.rate, heads=self._heads, strategy=self._strategy,
                execution=done.execution,
                head_mass=None if by_head is None else _known(by_head[b]),
            )  # type: ignore[arg-type]  # fmt: skip

    def _tokens(self, done: Finished, k: int) -> npt.NDArray[np.int32] | None:
        """The served tokens, if they are to be kept; a shadow's are held against them."""
        if done.ids is None:
            return None
        ids = done.ids.take().view(np.int32)
        served, measured = ids[:, :k], ids[:, ids.shape[1] // 2 :][:, :k]
        if done.compare_ids and (others := int((served != measured).any(-1).sum())):
            self._writer.count_dropped(SHADOW_DIFFERS, others)
        return served if done.keep_ids else None

    def _part(self, values: npt.NDArray[np.float32], name: str) -> npt.NDArray[np.float32]:
        at, size = self._columns[name]
        return values[:, at : at + size]

    def _per_depth(
        self, values: npt.NDArray[np.float32], name: str, k: int, void: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.float32]:
        part = self._part(values, name)[:, :k]
        part[void] = np.nan
        return part

    def _masses(
        self, values: npt.NDArray[np.float32], k: int, void: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.float32]:
        """[B, k, layers, 5]."""
        layout = self._layout
        part = self._part(values, "masses")
        shaped = part.reshape(len(values), layout.depths, layout.layers, len(MASSES))[:, :k]
        shaped[void] = np.nan
        return shaped


def _known(values: npt.NDArray[np.float32]) -> list[float] | None:
    """None where nothing was measured: the quantity does not exist for this drafter."""
    if not values.size or np.isnan(values).all():
        return None
    found: Any = values.reshape(-1).tolist()
    return found  # type: ignore[no-any-return]
