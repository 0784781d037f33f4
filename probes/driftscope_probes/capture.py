"""What the hooks saw in one draft step, and the rows that it becomes on the writer's thread."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from driftscope.trace.records import DraftRow, StepRow
from driftscope_probes.view import DraftStep

REMEMBERED_REQUESTS = 65_536
"""Requests of which the encoder remembers that their prompt came in chunks."""


class Capture:
    """Columns of one recorded step: name -> [B] float32 tensors, one per depth (and layer)."""

    def __init__(self, step: DraftStep) -> None:
        self.step = step
        self.depth = 0
        self._columns: list[tuple[str, torch.Tensor]] = []

    @property
    def rows(self) -> torch.Tensor | slice:
        """Where the requests' rows lie in the forward of the current depth."""
        return self.step.rows if self.depth <= 1 else slice(len(self.step.requests))

    def add(self, name: str, values: torch.Tensor) -> None:
        """Append a [B] column."""
        self._columns.append((name, values))

    def to_host(self) -> HostColumns:
        """One tensor, one asynchronous copy; valid once `HostColumns.arrays` is called."""
        stacked = torch.stack([values.float() for _, values in self._columns])
        return HostColumns([name for name, _ in self._columns], HostCopy(stacked))


class HostCopy:
    """A tensor on its way to the host."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._event: Any = None
        if tensor.device.type == "cpu":
            self._host = tensor
        else:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def array(self) -> npt.NDArray[Any]:
        """Wait for the copy; called on the writer's thread."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.numpy()


@dataclass(frozen=True, slots=True)
class HostColumns:
    """Columns on the host."""

    names: list[str]
    copy: HostCopy

    def arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        """name -> [B, depths (times layers)] float32."""
        values, index = self.copy.array(), defaultdict(list)
        for i, name in enumerate(self.names):
            index[name].append(i)
        return {name: values[places].T for name, places in index.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A step whose hooks are done, on its way to the writer."""

    number: int
    time_s: float
    step: DraftStep | None
    prefilling: HostCopy | npt.NDArray[np.bool_] | None
    position: HostCopy | None
    columns: HostColumns | None
    drafts: HostCopy | None
    requests: int
    step_s: float
    draft_s: float
    probe_s: float


class Encoder:
    """Makes rows of finished steps, in order, on the writer's thread."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._chunked: OrderedDict[str, None] = OrderedDict()

    def rows(self, done: Finished) -> Iterator[DraftRow | StepRow]:
        """The step's row, then a row per recorded chain."""
        prefilling = _array(done.prefilling)
        step = done.step
        chains = 0 if step is None or prefilling is None else int((~prefilling).sum())
        yield StepRow(
            step=done.number, time_s=done.time_s, requests=done.requests, chains=chains,
            k=step.k if step else 0, recorded=done.columns is not None, step_s=done.step_s,
            draft_s=done.draft_s, probe_s=done.probe_s,
        )  # fmt: skip
        if step is None or prefilling is None:
            return
        self._remember(step.requests, prefilling)
        if done.columns is not None and done.position is not None:
            yield from self._chains(done, step, prefilling)

    def _remember(self, requests: tuple[str, ...], prefilling: npt.NDArray[np.bool_]) -> None:
        for index in np.flatnonzero(prefilling):
            self._chunked[requests[index]] = None
        while len(self._chunked) > REMEMBERED_REQUESTS:
            self._chunked.popitem(last=False)

    def _chains(
        self, done: Finished, step: DraftStep, prefilling: npt.NDArray[np.bool_]
    ) -> Iterable[DraftRow]:
        assert done.columns is not None and done.position is not None
        columns, position = done.columns.arrays(), done.position.array()
        drafts = None if done.drafts is None else done.drafts.array()

        def values(name: str, b: int) -> list[float] | None:
            return columns[name][b].tolist() if name in columns else None

        for b in np.flatnonzero(~prefilling).tolist():
            fc = values("fc_rms", b)
            yield DraftRow(
                step=done.number, time_s=done.time_s, request=step.requests[b],
                position=int(position[b]), prompt_tokens=int(step.prompt_tokens[b]),
                batch=len(step.requests), k=step.k, layers=self._layers,
                chunked_prefill=step.requests[b] in self._chunked,
                sink_mass=values("sink_mass", b), prompt_mass=values("prompt_mass", b),
                generated_mass=values("generated_mass", b), self_mass=values("self_mass", b),
                null_mass=values("null_mass", b), in_rms=values("in_rms", b),
                prenorm_rms=values("prenorm_rms", b), postnorm_rms=values("postnorm_rms", b),
                fed_rms=values("fed_rms", b), top1=values("top1", b), entropy=values("entropy", b),
                aux_rms=values("aux_rms", b), aux_norm_rms=values("aux_norm_rms", b),
                fc_rms=fc[0] if fc else None,
                token_ids=None if drafts is None else drafts[b].tolist(),
            )  # fmt: skip


def _array(mask: HostCopy | npt.NDArray[np.bool_] | None) -> npt.NDArray[np.bool_] | None:
    return mask.array() if isinstance(mask, HostCopy) else mask
