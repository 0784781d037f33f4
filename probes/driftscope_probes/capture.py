"""A finished step on its way to the writer's thread, and the rows that it becomes there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.trace.records import DraftRow, StepRow
from driftscope_probes.buffers import MASSES, PER_DEPTH, Layout
from driftscope_probes.ring import Landing
from driftscope_probes.view import DraftStep

REMEMBERED_REQUESTS = 65_536
"""Requests of which the encoder remembers that their prompt came in chunks."""
_SHORT = np.uint32


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A step whose hooks are done."""

    number: int
    time_s: float
    step: DraftStep | None
    values: Landing | None
    """The chains' numbers; None when they were not recorded."""
    drafts: Landing | None
    head_mass: Landing | None
    rate: float
    execution: str
    requests: int
    step_s: float
    draft_s: float
    probe_s: float


class Encoder:
    """Makes rows of finished steps, in order, on the writer's thread."""

    def __init__(self, layout: Layout, *, heads: int, strategy: str, max_slots: int) -> None:
        """`max_slots`: the engine's context limit; the drafter's forwards beyond it are void."""
        self._layout, self._columns = layout, layout.columns
        self._heads, self._strategy, self._max_slots = heads, strategy, max_slots
        self._chunked: OrderedDict[str, None] = OrderedDict()

    def rows(self, done: Finished) -> Iterator[DraftRow | StepRow]:
        """The step's row, then a row per recorded chain."""
        step = done.step
        yield StepRow(
            step=done.number, time_s=done.time_s, requests=done.requests,
            chains=0 if step is None else int((~step.prefilling).sum()),
            k=step.k if step else 0, recorded=done.values is not None, step_s=done.step_s,
            draft_s=done.draft_s, probe_s=done.probe_s,
        )  # fmt: skip
        if step is None:
            return
        self._remember(step.requests, step.prefilling)
        if done.values is not None:
            yield from self._chains(done, step, done.values.take())

    def _remember(self, requests: tuple[str, ...], prefilling: npt.NDArray[np.bool_]) -> None:
        for index in np.flatnonzero(prefilling):
            self._chunked[requests[index]] = None
        while len(self._chunked) > REMEMBERED_REQUESTS:
            self._chunked.popitem(last=False)

    def _chains(
        self, done: Finished, step: DraftStep, values: npt.NDArray[np.float32]
    ) -> Iterable[DraftRow]:
        drafts = None if done.drafts is None else done.drafts.take().view(np.int32)
        k = min(step.k, self._layout.depths)
        position = self._part(values, "position").view(np.int32)[:, 0]
        # Past the context limit vLLM's drafter runs on slots that are not there.
        void = position[:, None] + np.arange(k) >= self._max_slots
        depths = {name: self._per_depth(values, name, k, void) for name in PER_DEPTH}
        mass = self._masses(values, k, void)
        aux, normed = self._part(values, "aux_rms"), self._part(values, "aux_norm_rms")
        fc = self._part(values, "fc_rms")
        for b in np.flatnonzero(~step.prefilling).tolist():
            yield DraftRow(
                step=done.number, time_s=done.time_s, request=step.requests[b],
                position=int(position[b]), prompt_tokens=int(step.prompt_tokens[b]),
                batch=len(step.requests), k=k, layers=self._layout.layers,
                chunked_prefill=step.requests[b] in self._chunked,
                **{name: _known(depth[b]) for name, depth in depths.items()},
                **{name: _known(mass[b, :, :, i]) for i, name in enumerate(MASSES)},
                aux_rms=_known(aux[b]), aux_norm_rms=_known(normed[b]),
                fc_rms=None if np.isnan(fc[b, 0]) else float(fc[b, 0]),
                token_ids=None if drafts is None else drafts[b, :k].tolist(),
            )  # type: ignore[arg-type]  # fmt: skip

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
