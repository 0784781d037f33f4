"""Builds the rows of finished steps and of their recorded chains, on the writer's thread."""

from __future__ import annotations

import time
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from driftscope.trace.format.row_block import Block
from driftscope.trace.write.writer import TraceWriter
from driftscope_probes.base.chain_buffers import Layout
from driftscope_probes.base.host_ring import Landing
from driftscope_probes.masses.sink_search import SinkSearch
from driftscope_probes.recording.cost_feedback import CostFeedback
from driftscope_probes.recording.doubtful_requests import DoubtfulRequests
from driftscope_probes.recording.draft_block import DraftBlocks, RecordedChains
from driftscope_probes.recording.encoder_options import EncoderOptions
from driftscope_probes.steps.sampler import Sampler
from driftscope_probes.steps.step_record import (
    Capture,
    StepRecord,
    prefilling_of,
    step_record_from_tuple,
    step_rows,
)
from driftscope_probes.steps.step_schedule import ScheduleReader

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
        self._costs.report_steps(steps)
        begun = time.thread_time()  # rows above exist for every step
        groups: dict[tuple[int, bool], list[RecordedChains]] = {}
        count, side_s = 0, 0.0
        for done, names in zip(steps, prefilling, strict=True):
            self._doubtful.mark(done, names)
            capture = done.capture
            if capture is None:
                continue
            values = capture.values
            if values is not None and done.number not in lost:
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
        by_head = self._of_depths(capture.head_mass, k) if capture.head_mass else None
        by_distance = self._of_depths(capture.distance_mass, k) if capture.distance_mass else None
        weights = None if capture.slot_weights is None else capture.slot_weights.take()
        prompt_tokens = capture.prompt_tokens
        if 1 in step.prefilling or capture.chosen is not None:
            keep = ~np.frombuffer(step.prefilling, np.bool_)
            if capture.chosen is not None:
                keep &= capture.chosen
            requests = tuple(requests[b] for b in np.flatnonzero(keep))
            values, prompt_tokens = values[keep], prompt_tokens[keep]
            tokens, by_head, by_distance, weights = (
                _kept(tokens, keep),
                _kept(by_head, keep),
                _kept(by_distance, keep),
                _kept(weights, keep),
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
            by_head,
            by_distance,
        )

    def _of_depths(self, landing: Landing, k: int) -> npt.NDArray[np.float32]:
        """Return [n, k, numbers] of masses that only some chains have."""
        every = landing.take()
        return every.reshape(len(every), self._depths, -1)[:, :k]

    def _search_sinks(
        self,
        search: SinkSearch,
        requests: tuple[str, ...],
        doubtful: list[bool],
        weights: npt.NDArray[np.float32],
    ) -> None:
        """Add chains to the sink search; a failure here costs the decision, not the chains."""
        whole = ~np.array(doubtful, dtype=np.bool_)
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


_Numbers = TypeVar("_Numbers", npt.NDArray[np.float32], npt.NDArray[np.int32])


def _kept(rows: _Numbers | None, keep: npt.NDArray[np.bool_]) -> _Numbers | None:
    return None if rows is None else rows[keep]
