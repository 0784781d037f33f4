"""Builds the rows of finished steps and of their recorded chains, on the writer's thread, and
reports to the sampler what the steps cost.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from driftscope.trace.schema import Block, Lists
from driftscope.trace.writer import TraceWriter
from driftscope.vocabulary import BY_DEPTH as PER_DEPTH
from driftscope.vocabulary import DISTANCE_MASS, FED_RMS, MASSES, Strategy
from driftscope_probes.buffers import Layout
from driftscope_probes.engine import CacheFaults, ScheduleReader
from driftscope_probes.near_misses import FIGURES
from driftscope_probes.sampler import DeviceTimes, Sampler
from driftscope_probes.sink_search import SinkSearch
from driftscope_probes.step_record import (
    Capture,
    StepRecord,
    prefilling_of,
    step_record_from_tuple,
    step_rows,
)


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
    later_rank: bool = False
    """This is a tensor-parallel rank after the first: what does not depend on heads is left out,
    but for the state fed forward, which shows whether the ranks agree."""
    compare_ids: bool = False
    """Compare the shadow's token ids with the served ones."""
    keep_ids: bool = False
    """Write the token ids to the trace."""


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
    by_distance: npt.NDArray[np.float32] | None = None
    """[n, k, layers * bins]."""
    near_misses: npt.NDArray[np.float32] | None = None
    """[n, FIGURES]."""


class DraftBlocks:
    """Turns chains into blocks of draft rows."""

    def __init__(self, layout: Layout, options: EncoderOptions) -> None:
        self._layout, self._columns = layout, layout.columns
        self._aliases, self._max_slots = options.aliases, options.max_slots
        self._heads, self._strategy = options.heads, options.strategy
        self._later_rank = options.later_rank

    def block(self, chains: list[RecordedChains]) -> Block:
        """Return chains of one length as columns."""
        k, values = chains[0].k, np.concatenate([c.values for c in chains])
        sizes = [len(c.requests) for c in chains]
        position = np.ascontiguousarray(self._part(values, "position")).view(np.int32)[:, 0]
        # Beyond the context limit vLLM's drafter runs on slots that do not exist.
        void = position[:, None] + np.arange(k) >= self._max_slots
        lost = _overwritten(void)
        masses = self._masses(values, k, lost)
        depths = {name: self._per_depth(values, name, k, void) for name in PER_DEPTH}
        complete(depths, self._aliases)
        if self._later_rank:
            values[:, : self._layout.column("position")] = np.nan  # all other norms lie before it
            depths = {FED_RMS: depths[FED_RMS].copy()}
        fc = self._part(values, "fc_rms")[:, 0]
        tokens = [c.tokens for c in chains if c.tokens is not None]
        by_distance = [c.by_distance for c in chains]
        rank, close, excluded = _of_rejected([c.near_misses for c in chains], sizes)

        def column(of: Callable[[RecordedChains], Any]) -> list[Any]:
            return [of(c) for c, size in zip(chains, sizes, strict=True) for _ in range(size)]

        return Block(
            record="draft",
            rows=len(values),
            columns={
                "step": column(lambda c: c.done.number),
                "time_s": column(lambda c: c.done.time_s),
                "request": list(chain.from_iterable(c.requests for c in chains)),
                "position": position,
                "prompt_tokens": np.concatenate([c.prompt_tokens for c in chains]),
                "batch": column(lambda c: c.batch),
                "k": k,
                "layers": self._layout.layers,
                "chunked_prefill": list(chain.from_iterable(c.doubtful for c in chains)),
                **{
                    name: _lists_or_none(depths[name]) if name in depths else None
                    for name in PER_DEPTH
                },
                **{
                    name: _lists_or_none(masses[..., i].reshape(len(values), -1))
                    for i, name in enumerate(MASSES)
                },
                "aux_rms": _lists_or_none(self._part(values, "aux_rms")),
                "aux_norm_rms": _lists_or_none(self._part(values, "aux_norm_rms")),
                "fc_rms": [
                    None if absent else number
                    for number, absent in zip(fc.tolist(), np.isnan(fc), strict=True)
                ],
                "token_ids": Lists(values=np.concatenate(tokens)) if tokens else None,
                "rate": column(lambda c: c.done.rate),
                DISTANCE_MASS: _optional(by_distance, sizes, lost),
                "target_token_rank": rank,
                "rejected_closeness": close,
                "rejected_excluded": excluded,
                "heads": self._heads,
                "strategy": column(lambda c: Strategy.NONE if c.capture.sought else self._strategy),
                "execution": column(lambda c: c.capture.execution),
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


def _lists_or_none(values: npt.NDArray[np.float32]) -> Lists | None:
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
    return _lists_or_none(values.reshape(len(values), -1))


def _of_rejected(
    parts: list[npt.NDArray[np.float32] | None], sizes: list[int]
) -> tuple[list[int | None] | None, list[float | None] | None, list[bool | None] | None]:
    """Return what is measured of rejected tokens, by column; null for a chain without it.

    `parts`: one array [n, FIGURES] for each step, None for a step without; `sizes`: n of each step.
    """
    if all(part is None for part in parts):
        return None, None, None
    absent = (math.nan,) * FIGURES
    rows = chain.from_iterable(
        [absent] * size if part is None else part.tolist()
        for part, size in zip(parts, sizes, strict=True)
    )
    known = [None if math.isnan(row[0]) else row for row in rows]
    return (
        [None if row is None else int(row[0]) for row in known],
        [None if row is None else row[1] for row in known],
        [None if row is None else row[2] > 0 for row in known],
    )


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


REMEMBERED_REQUESTS = 65_536
"""Number of doubtful requests that are remembered, the latest."""


class DoubtfulRequests:
    """The requests that were prefilled in several steps, and those whose cache a runner spoilt."""

    def __init__(self, faults: CacheFaults | None) -> None:
        """`faults`: tracker of the runner's faults in the drafter's cache, if it has any."""
        self._faults = faults
        self.requests: OrderedDict[str, None] = OrderedDict()
        """The doubtful requests, in the order in which they became doubtful."""

    def mark(self, done: StepRecord, prefilling: frozenset[str]) -> None:
        """Mark the requests whose slots may be wrong from this step on."""
        drafted = done.k is not None
        names: Iterable[str] = sorted(prefilling) if drafted and prefilling else ()
        if self._faults is not None and done.scheduled is not None:
            doubtful = self._faults.step(done.scheduled, drafted=drafted, chunked=bool(prefilling))
            names = (*doubtful, *names) if doubtful else names
        if names:
            self.requests |= dict.fromkeys(names)
            while len(self.requests) > REMEMBERED_REQUESTS:
                self.requests.popitem(last=False)


class CostFeedback:
    """The path from the steps that a writer's thread encodes back to the sampler."""

    def __init__(self, sampler: Sampler, writer: TraceWriter) -> None:
        self._sampler, self._writer = sampler, writer
        self._step_s = 0.0
        """Time of all model steps so far, in seconds."""
        self._before: _Flush | None = None
        """State at the last flush that had steps."""
        self._last: StepRecord | None = None
        """Last step that was reported."""

    def report_steps(self, steps: list[StepRecord]) -> None:
        """Report the costs of each step that drafted to the sampler, which decides by them."""
        self._step_s += sum(done.step_s for done in steps)
        periods = self._periods(steps)
        passed = [done for done in steps if done.k is not None and not done.recorded]
        recorded = [done for done in steps if done.recorded]
        for group in (passed, recorded):
            if group:
                self._report_device(group, periods, recorded=group is recorded)
                self._sampler.note(
                    [_serving_s(done, periods) for done in group],
                    [done.probe_s + done.core_s for done in group],
                    recorded=group is recorded,
                    chains=sum(done.requests for done in group),
                )

    def _periods(self, steps: list[StepRecord]) -> dict[int, float]:
        """Return the seconds from the end of the step before to the end of each step, by number,
        where that step is known."""
        before, periods = self._last, {}
        for done in steps:
            if before is not None and before.number == done.number - 1:
                periods[done.number] = done.time_s - before.time_s
            before = done
        self._last = before
        return periods

    def _report_device(
        self, group: list[StepRecord], periods: dict[int, float], *, recorded: bool
    ) -> None:
        """Report the device's times of steps that were all recorded, or none."""
        timed = [done for done in group if len(done.marks) and done.number in periods]
        if not timed:
            return
        drafting = [done.marks.between(0, len(done.marks) - 1) for done in timed]
        own = [done.marks.between(1, 2) for done in timed] if recorded else []
        self._sampler.note_device(
            DeviceTimes(
                slack_s=[periods[done.number] - done.step_s for done in timed],
                drafting_s=[time_s for time_s in drafting if time_s is not None],
                own_s=[time_s for time_s in own if time_s is not None],
            ),
            recorded=recorded,
        )

    def report_writing(
        self, *, steps: Sequence[StepRecord], recorded: int, encoding_s: float, side_s: float
    ) -> None:
        """Report the time that this flush took for recorded chains, on this thread and on the side
        thread, and this thread's other time since the last flush."""
        sampler = self._sampler
        if recorded:
            sampler.note_encoding((encoding_s + side_s) / recorded)
        if steps:
            now = _Flush(time.monotonic(), self._writer.spent_s, encoding_s)
            if self._before is not None:
                sampler.note_writing(_writing_s(self._before, now, steps))
            self._before = now
        self._writer.set_gauges(
            rate=sampler.rate if sampler.recording else 0.0,
            overhead=sampler.overhead,
            recording=sampler.recording,
            step_s=round(self._step_s, 6),
        )


def _serving_s(done: StepRecord, periods: Mapping[int, float]) -> float:
    """Return the time of a step without the probe, 0 if its hooks between the steps took longer;
    with a device, where the probe's time on the host may be hidden, its period."""
    if len(done.marks) and done.number in periods:
        return periods[done.number]
    return max(0.0, done.step_s - done.probe_s)


class _Flush(NamedTuple):
    """Clocks at a flush, in seconds."""

    at_s: float
    spent_s: float
    """CPU time of the writer's thread until then."""
    encoding_s: float
    """Part of the thread's time in this flush that was spent on recorded chains."""


def _writing_s(before: _Flush, now: _Flush, steps: Sequence[StepRecord]) -> float:
    """Return the time per step that the writer's thread took beside recorded chains.

    It works on a clock, and also while the engine waits for requests. Only the share of its time in
    which the engine served is a cost of steps.
    """
    spent_s = max(0.0, now.spent_s - before.spent_s - before.encoding_s)
    served_s = steps[-1].time_s - steps[0].time_s + steps[0].step_s
    passed_s = now.at_s - before.at_s
    share = min(1.0, served_s / passed_s) if passed_s > 0 else 1.0
    return spent_s * share / len(steps)


END: tuple[Any, ...] = ()
"""Item after the last step of a run."""
SHADOW_DIFFERS = "shadow_differs"
"""Count of chains whose shadow, drafted eagerly, has other tokens than the served chain; such
chains are kept."""


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
        self._prefills, self._depths = schedules.prompts, layout.depths
        self._compare_ids, self._keep_ids = options.compare_ids, options.keep_ids
        self._writer, self._search = writer, search
        self._doubtful = DoubtfulRequests(schedules.faults)
        self._costs = CostFeedback(sampler, writer)
        self._blocks = DraftBlocks(layout, options)
        self._held: list[tuple[StepRecord, frozenset[str]]] = []
        """Last recorded step, whose verification is not over, with its incomplete prompts."""

    def handed_over(self, steps: list[tuple[Any, ...]]) -> list[Block]:
        """Return the rows of steps given as plain tuples of StepRecord's fields; the last item of
        a run is END."""
        ends = steps[-1] == END
        known = steps[:-1] if ends else steps
        return self.rows(list(map(step_record_from_tuple, known)), last=ends)

    def rows(self, steps: list[StepRecord], *, last: bool = False) -> list[Block]:
        """Return the steps' rows, then one block of recorded chains for each chain length. Chains
        that wait for the next step to verify them come with that step's, unless these steps are the
        run's `last`."""
        lost = {
            done.number
            for done in steps
            if done.capture is not None and (v := done.capture.values) is not None and v.failed
        }
        prefilling = prefilling_of(steps, self._prefills, self._writer)
        rows = [step_rows(steps, prefilling, lost)] if steps else []
        self._costs.report_steps(steps)
        begun = time.thread_time()  # rows above exist for every step
        groups: dict[tuple[int, bool], list[RecordedChains]] = {}
        count, side_s = 0, 0.0
        waiting = [*self._held, *zip(steps, prefilling, strict=True)]
        held = not last and waiting and (capture := waiting[-1][0].capture) and capture.awaited
        self._held = [waiting.pop()] if held else []
        for done, names in waiting:
            self._doubtful.mark(done, names)
            capture = done.capture
            if capture is None:
                continue
            values = capture.values
            if values is not None and not values.failed:
                count += 1
                side_s += values.spent_s
                chains = self._chains(done, capture, values.take())
                if not chains.requests:
                    continue  # all of them are still prefilling, or were not selected
                group = chains.k, chains.tokens is not None
                groups.setdefault(group, []).append(chains)
        rows += [self._blocks.block(group) for group in groups.values()]
        self._costs.report_writing(
            steps=steps,
            recorded=count,
            encoding_s=time.thread_time() - begun if count else 0.0,
            side_s=side_s,
        )
        return rows

    def _chains(
        self, done: StepRecord, capture: Capture, values: npt.NDArray[np.float32]
    ) -> RecordedChains:
        """Return the chains of a step that are kept."""
        step = capture.step
        k, requests = min(step.k, self._depths), step.requests
        tokens = self._tokens(capture, k)
        by_distance = None
        if capture.distance_mass is not None:
            measured = capture.distance_mass.take()
            by_distance = measured.reshape(len(measured), self._depths, -1)[:, :k]
        weights = None if capture.slot_weights is None else capture.slot_weights.take()
        near = None if capture.near_misses is None else capture.near_misses.take()
        prompt_tokens = capture.prompt_tokens
        if 1 in step.prefilling or capture.chosen is not None:
            keep = ~np.frombuffer(step.prefilling, np.bool_)
            if capture.chosen is not None:
                keep &= capture.chosen
            requests = tuple(requests[b] for b in np.flatnonzero(keep))
            values, prompt_tokens = values[keep], prompt_tokens[keep]
            tokens, by_distance, weights, near = (
                _rows_kept(tokens, keep),
                _rows_kept(by_distance, keep),
                _rows_kept(weights, keep),
                _rows_kept(near, keep),
            )
        doubtful = [request in self._doubtful.requests for request in requests]
        if weights is not None and self._search is not None:
            self._search_sinks(self._search, requests, doubtful, weights)
        return RecordedChains(
            done,
            capture,
            k,
            requests,
            values,
            prompt_tokens,
            len(step.requests),
            doubtful,
            tokens,
            by_distance,
            near,
        )

    def _search_sinks(
        self,
        search: SinkSearch,
        requests: tuple[str, ...],
        doubtful: list[bool],
        weights: npt.NDArray[np.float32],
    ) -> None:
        """Add chains to the sink search; a failure here costs the decision, not the chains."""
        whole = ~np.array(doubtful, dtype=np.bool_)
        whole_requests = [r for r, is_whole in zip(requests, whole, strict=True) if is_whole]
        try:
            search.add(whole_requests, weights[whole])
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


_Numbers = TypeVar("_Numbers", npt.NDArray[np.float32], npt.NDArray[np.int32])


def _rows_kept(rows: _Numbers | None, keep: npt.NDArray[np.bool_]) -> _Numbers | None:
    return None if rows is None else rows[keep]
