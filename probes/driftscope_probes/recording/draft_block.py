"""Builds the draft rows of recorded chains, as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from driftscope.trace.format.row_block import Block, Lists
from driftscope.vocabulary import BY_DEPTH as PER_DEPTH
from driftscope.vocabulary import DISTANCE_MASS, MASSES, Strategy
from driftscope_probes.base.chain_buffers import Layout
from driftscope_probes.recording.encoder_options import EncoderOptions
from driftscope_probes.steps.step_record import Capture, StepRecord


class RecordedChains(NamedTuple):
    """The chains of one step that are kept, n of them."""

    done: StepRecord
    capture: Capture
    k: int
    requests: tuple[str, ...]
    values: npt.NDArray[np.float32]
    """[n, width]."""
    prompt_tokens: npt.NDArray[np.int64]
    batch: int
    doubtful: list[bool]
    """Whether each request's slots in the drafter's cache may be wrong."""
    tokens: npt.NDArray[np.int32] | None
    by_head: npt.NDArray[np.float32] | None
    """[n, k, layers * heads * 5]."""
    by_distance: npt.NDArray[np.float32] | None = None
    """[n, k, layers * bins]."""


class DraftBlocks:
    """Turns chains into blocks of draft rows."""

    def __init__(self, layout: Layout, options: EncoderOptions) -> None:
        self._layout, self._columns = layout, layout.columns
        self._aliases, self._max_slots = options.aliases, options.max_slots
        self._heads, self._strategy = options.heads, options.strategy
        self._first_shared_column = layout.column("position") if options.masses_only else 0

    def block(self, chains: list[RecordedChains]) -> Block:
        """Return chains of one length as columns."""
        k, values = chains[0].k, np.concatenate([c.values for c in chains])
        sizes = [len(c.requests) for c in chains]
        position = np.ascontiguousarray(self._part(values, "position")).view(np.int32)[:, 0]
        # Beyond the context limit vLLM's drafter runs on slots that do not exist.
        void = position[:, None] + np.arange(k) >= self._max_slots
        values[:, : self._first_shared_column] = (
            np.nan
        )  # norms and confidence lie before the position
        lost = _overwritten(void)
        masses = self._masses(values, k, lost)
        depths = {name: self._per_depth(values, name, k, void) for name in PER_DEPTH}
        complete(depths, self._aliases)
        fc = self._part(values, "fc_rms")[:, 0]
        tokens = [c.tokens for c in chains if c.tokens is not None]
        by_head = [c.by_head for c in chains]
        by_distance = [c.by_distance for c in chains]

        def each(of: Callable[[RecordedChains], Any]) -> list[Any]:
            return [of(c) for c, size in zip(chains, sizes, strict=True) for _ in range(size)]

        return Block(
            record="draft",
            rows=len(values),
            columns={
                "step": each(lambda c: c.done.number),
                "time_s": each(lambda c: c.done.time_s),
                "request": list(chain.from_iterable(c.requests for c in chains)),
                "position": position,
                "prompt_tokens": np.concatenate([c.prompt_tokens for c in chains]),
                "batch": each(lambda c: c.batch),
                "k": k,
                "layers": self._layout.layers,
                "chunked_prefill": list(chain.from_iterable(c.doubtful for c in chains)),
                **{name: _known(column) for name, column in depths.items()},
                **{
                    name: _known(masses[..., i].reshape(len(values), -1))
                    for i, name in enumerate(MASSES)
                },
                "aux_rms": _known(self._part(values, "aux_rms")),
                "aux_norm_rms": _known(self._part(values, "aux_norm_rms")),
                "fc_rms": [
                    None if absent else number
                    for number, absent in zip(fc.tolist(), np.isnan(fc), strict=True)
                ],
                "token_ids": Lists(values=np.concatenate(tokens)) if tokens else None,
                "rate": each(lambda c: c.done.rate),
                "head_mass": _optional(by_head, sizes, lost),
                DISTANCE_MASS: _optional(by_distance, sizes, lost),
                "heads": self._heads,
                "strategy": each(lambda c: Strategy.NONE if c.capture.sought else self._strategy),
                "execution": each(lambda c: c.capture.execution),
                "replica": 0,
            },
        )

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
        """Return the masses [chains, k, layers, 5], NaN at void depths."""
        layout = self._layout
        part = self._part(values, "masses")
        shaped = part.reshape(len(values), layout.depths, layout.layers, len(MASSES))[:, :k]
        shaped[void] = np.nan
        return shaped


def _known(values: npt.NDArray[np.float32]) -> Lists | None:
    """Return the values, null where nothing was measured: this drafter lacks the quantity."""
    present: npt.NDArray[np.bool_] = np.asarray(~np.isnan(values).all(-1))
    if not values.size or not present.any():
        return None
    return Lists(values=values, present=None if present.all() else present)


def _overwritten(void: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return the depths without masses: the void depths, and the last depth before them.

    vLLM's V2 runner writes the void depths' keys to the last existing slot, which overwrites that
    depth's own key before the chain's keys are read.
    """
    lost = void.copy()
    lost[:, :-1] |= void[:, 1:]
    return lost


def _optional(
    parts: list[npt.NDArray[np.float32] | None], sizes: list[int], void: npt.NDArray[np.bool_]
) -> Lists | None:
    """Return what only some steps measured; null in the rows of the others.

    `parts`: one array [n, k, ...] for each step, None for a step without; `sizes`: n of each step.
    """
    measured = [part for part in parts if part is not None]
    if not measured:
        return None
    absent = measured[0].shape[1:]
    values = np.concatenate(
        [
            np.full((size, *absent), np.nan, np.float32) if part is None else part
            for part, size in zip(parts, sizes, strict=True)
        ]
    )
    values[void] = np.nan
    return _known(values.reshape(len(values), -1))


def complete(depths: dict[str, npt.NDArray[np.float32]], same: Mapping[str, str]) -> None:
    """Fill in per-depth values that the taps left out as already measured (see Taps).

    A column in `same` equals another column. The input of each depth from 2 on is what the previous
    depth fed forward.
    """
    for name, of in same.items():
        depths[name] = np.where(np.isnan(depths[name]), depths[of], depths[name])
    entering, fed = depths["in_rms"], depths["fed_rms"]
    if entering.shape[1] > 1:
        missing = np.isnan(entering[:, 1:]) & ~np.isnan(entering[:, :1])
        entering[:, 1:] = np.where(missing, fed[:, :-1], entering[:, 1:])
