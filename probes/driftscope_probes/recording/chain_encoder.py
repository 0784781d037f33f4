"""Builds the rows of finished steps and of their recorded chains, on the writer's thread."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from driftscope.trace.format.row_block import Block, Lists
from driftscope.trace.write.writer import TraceWriter
from driftscope.vocabulary import BY_DEPTH as PER_DEPTH
from driftscope.vocabulary import MASSES, Strategy
from driftscope_probes.base.chain_buffers import Layout
from driftscope_probes.masses.sink_search import SinkSearch
from driftscope_probes.recording.sampler import Sampler
from driftscope_probes.recording.step_record import (
    Capture,
    StepRecord,
    prefilling_of,
    step_record_from_tuple,
    step_rows,
)
from driftscope_probes.recording.step_schedule import ScheduleReader

REMEMBERED_REQUESTS = 65_536
"""Number of requests that the encoder remembers as having a possibly wrong drafter cache."""
SHADOW_DIFFERS = "shadow_differs"
"""Count of chains whose shadow, drafted eagerly, has other tokens than the served chain; such
chains are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderOptions:
    """Properties of a drafter and its settings that decide what a chain's row holds."""

    heads: int
    """Attention heads of a layer on this rank."""
    strategy: str
    """How masses are taken, one of `Strategy`."""
    max_slots: int
    """The engine's context limit; the drafter's forwards beyond it are void."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Per-depth columns that were not written because they equal another column."""
    masses_only: bool = False
    """This is a tensor-parallel rank after the first."""
    compare_ids: bool = False
    """Compare the shadow's token ids with the served ones."""
    keep_ids: bool = False
    """Write the token ids to the trace."""


class ChainEncoder:
    """Builds rows of finished steps, in order, on the writer's thread: many steps at once."""

    def __init__(
        self,
        layout: Layout,
        options: EncoderOptions,
        writer: TraceWriter,
        sampler: Sampler,
        schedules: ScheduleReader,
        search: SinkSearch | None = None,
    ) -> None:
        """`search` looks for the sink set as long as it is not known."""
        self._prefills, self._faults = schedules.prompts, schedules.faults
        self._compare_ids, self._keep_ids = options.compare_ids, options.keep_ids
        self._aliases = options.aliases
        self._layout, self._columns = layout, layout.columns
        self._heads, self._strategy = options.heads, options.strategy
        self._max_slots = options.max_slots
        self._writer, self._sampler, self._search = writer, sampler, search
        self._first_shared_column = layout.column("position") if options.masses_only else 0
        self._chunked: OrderedDict[str, None] = OrderedDict()
        self._before = (0.0, 0.0, 0)
        """Values at the last flush: the writer thread's time until then, the part of it spent on
        recorded chains, and the number of steps."""

    def handed_over(self, steps: list[tuple[Any, ...]]) -> list[Block]:
        """Return the rows of steps given as plain tuples of StepRecord's fields."""
        return self.rows(list(map(step_record_from_tuple, steps)))

    def rows(self, steps: list[StepRecord]) -> list[Block]:
        """Return the steps' rows, then one block of recorded chains for each chain length."""
        lost = {
            done.number
            for done in steps
            if done.capture is not None and (v := done.capture.values) is not None and v.failed
        }
        prefilling = prefilling_of(steps, self._prefills, self._writer)
        rows = [step_rows(steps, prefilling, lost)] if steps else []
        self._report_costs(steps)
        begun = time.thread_time()  # rows above exist for every step
        recorded: dict[tuple[int, bool, bool], list[_Chains]] = {}
        count, beside_s = 0, 0.0
        for done, names in zip(steps, prefilling, strict=True):
            self._mark_doubtful(done, names)
            capture = done.capture
            if capture is None:
                continue
            values = capture.values
            if values is not None and done.number not in lost:
                count += 1
                beside_s += values.spent_s
                chains = self._chains(done, capture, values.take())
                if not chains.requests:
                    continue  # all of them are still prefilling, or were not selected
                same = (chains.k, chains.tokens is not None, chains.by_head is not None)
                recorded.setdefault(same, []).append(chains)
        rows += [self._block(alike) for alike in recorded.values()]
        taken = time.thread_time() - begun if count else 0.0
        if count:
            self._sampler.note_encoding((taken + beside_s) / count)
        self._note_writing(taken, len(steps))
        self._writer.set_gauges(
            rate=self._sampler.rate if self._sampler.recording else 0.0,
            overhead=self._sampler.overhead,
            recording=self._sampler.recording,
        )
        return rows

    def _report_costs(self, steps: list[StepRecord]) -> None:
        """Report the costs of each step that drafted to the sampler, which decides by them."""
        passed = [done for done in steps if done.k is not None and not done.recorded]
        recorded = [done for done in steps if done.recorded]
        for alike in (passed, recorded):
            if alike:
                self._sampler.note(
                    [done.step_s - done.probe_s for done in alike],
                    [done.probe_s + done.core_s for done in alike],
                    recorded=alike is recorded,
                )

    def _note_writing(self, encoded_s: float, steps: int) -> None:
        """Report the writing time of the previous flush, which is completely known by now."""
        spent_s = self._writer.spent_s
        before_s, recorded_s, count = self._before
        if count:
            self._sampler.note_writing(max(0.0, spent_s - before_s - recorded_s) / count)
        self._before = (spent_s, encoded_s, steps)

    def _mark_doubtful(self, done: StepRecord, prefilling: frozenset[str]) -> None:
        """Mark the requests whose slots in the drafter's cache may be wrong from now on."""
        drafted = done.k is not None
        names: Iterable[str] = sorted(prefilling) if drafted and prefilling else ()
        if self._faults is not None and done.scheduled is not None:
            doubtful = self._faults.step(done.scheduled, drafted=drafted, chunked=bool(prefilling))
            names = (*doubtful, *names) if doubtful else names
        if names:
            self._chunked |= dict.fromkeys(names)
            while len(self._chunked) > REMEMBERED_REQUESTS:
                self._chunked.popitem(last=False)

    def _chains(
        self, done: StepRecord, capture: Capture, values: npt.NDArray[np.float32]
    ) -> _Chains:
        """Return the chains of a step that are kept."""
        step = capture.step
        k, requests = min(step.k, self._layout.depths), step.requests
        tokens, by_head = self._tokens(capture, k), None
        if capture.head_mass is not None:
            every = capture.head_mass.take()
            by_head = every.reshape(len(every), self._layout.depths, -1)[:, :k]
        weights = None if capture.slot_weights is None else capture.slot_weights.take()
        prompt_tokens = capture.prompt_tokens
        if 1 in step.prefilling or capture.chosen is not None:
            keep = ~np.frombuffer(step.prefilling, np.bool_)
            if capture.chosen is not None:
                keep &= capture.chosen
            requests = tuple(requests[b] for b in np.flatnonzero(keep))
            values, prompt_tokens = values[keep], prompt_tokens[keep]
            tokens, by_head, weights = _of(tokens, keep), _of(by_head, keep), _of(weights, keep)
        chunked = [request in self._chunked for request in requests]
        if weights is not None and self._search is not None:
            self._search_sinks(self._search, requests, chunked, weights)
        return _Chains(
            done,
            capture,
            k,
            requests,
            values,
            prompt_tokens,
            len(step.requests),
            chunked,
            tokens,
            by_head,
        )

    def _search_sinks(
        self,
        search: SinkSearch,
        requests: tuple[str, ...],
        chunked: list[bool],
        weights: npt.NDArray[np.float32],
    ) -> None:
        """Add chains to the sink search; a failure here costs the decision, not the chains."""
        whole = ~np.array(chunked, dtype=np.bool_)
        mine = [r for r, is_whole in zip(requests, whole, strict=True) if is_whole]
        try:
            search.add(mine, weights[whole])
        except Exception as error:  # writer's thread: a decision is lost, no row
            self._writer.count_error("sinks", error)

    def _tokens(self, capture: Capture, k: int) -> npt.NDArray[np.int32] | None:
        """Compare a shadow's tokens with the served ones; return these if they are kept."""
        if capture.ids is None:
            return None
        ids = capture.ids.take().view(np.int32)
        # Columns are [served k | measured k]; for a chain shorter than the longest the halves are
        # adjacent.
        served, measured = ids[:, :k], ids[:, k : 2 * k]
        if self._compare_ids and (others := int((served != measured).any(-1).sum())):
            self._writer.count_dropped(SHADOW_DIFFERS, others)
        return served if self._keep_ids else None

    def _block(self, chains: list[_Chains]) -> Block:
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
        by_head = [c.by_head for c in chains if c.by_head is not None]

        def each(of: Callable[[_Chains], Any]) -> list[Any]:
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
                "chunked_prefill": list(chain.from_iterable(c.chunked for c in chains)),
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
                "head_mass": _by_head(by_head, lost),
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


class _Chains(NamedTuple):
    """The chains of one step that are kept, n of them."""

    done: StepRecord
    capture: Capture
    k: int
    requests: tuple[str, ...]
    values: npt.NDArray[np.float32]
    """[n, width]."""
    prompt_tokens: npt.NDArray[np.int64]
    batch: int
    chunked: list[bool]
    tokens: npt.NDArray[np.int32] | None
    by_head: npt.NDArray[np.float32] | None
    """[n, k, layers * heads * 5]."""


_Numbers = TypeVar("_Numbers", npt.NDArray[np.float32], npt.NDArray[np.int32])


def _of(rows: _Numbers | None, keep: npt.NDArray[np.bool_]) -> _Numbers | None:
    return None if rows is None else rows[keep]


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


def _by_head(parts: list[npt.NDArray[np.float32]], void: npt.NDArray[np.bool_]) -> Lists | None:
    if not parts:
        return None
    values = np.concatenate(parts)
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
