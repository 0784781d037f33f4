"""A step whose hooks are done, on its way to the writer's thread, and the row built from it."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from driftscope.trace.schema import Block
from driftscope.trace.writer import TraceWriter
from driftscope.vocabulary import Execution
from driftscope_probes.buffers import NO_MARKS, DeviceMarks, Landing
from driftscope_probes.engine import (
    NO_LENGTHS,
    NOBODY,
    DraftCall,
    DraftStep,
    PromptProgress,
    ScheduleReader,
)
from driftscope_probes.guard import Guard
from driftscope_probes.settings import Settings


class PrefillsDifferError(Exception):
    """A runner and the schedules disagree about which prompts continue after a step."""


@dataclass(slots=True, eq=False)
class Capture:
    """Data captured during a recorded step."""

    step: DraftStep
    prompt_tokens: npt.NDArray[np.int64]
    """[B] prompt lengths in tokens."""
    chosen: npt.NDArray[np.bool_] | None
    """[B]: whether each request's chain is to be recorded; None: all."""
    values: Landing | None = None
    """The chains' numbers; None if they were not recorded."""
    ids: Landing | None = None
    """[B, 2K] int32 bit for bit: the served tokens, then those of the measured chain."""
    distance_mass: Landing | None = None
    """[B, K * layers * bins]; None if this step does not carry masses by distance."""
    near_misses: Landing | None = None
    """[B, near_misses.FIGURES]; None until the next step verifies the chains, and for chains of
    which they are not measured."""
    awaited: bool = False
    """Whether the next step may measure `near_misses`."""
    execution: str = ""
    sought: bool = False
    """Whether no masses were measured: the sink search goes on and has `slot_weights` instead, or
    the start-up witness found others."""
    slot_weights: Landing | None = None
    """[B, SLOTS + 1]; see `driftscope_probes.sink_search`."""


class StepRecord(NamedTuple):
    """A step whose hooks are done; the serving thread passes its fields as a plain tuple."""

    number: int
    time_s: float
    scheduled: Any
    """The engine's schedule of the step; None if there is none."""
    lengths: Mapping[str, int]
    """`prompt_lengths` of the step's new requests."""
    k: int | None
    """Number of depths that were drafted; None if the drafter did not run."""
    capture: Capture | None
    """Captured data; None for a step that was not recorded."""
    marks: DeviceMarks
    """Marks on the device: before the draft, after it, after the probe's own work."""
    rate: float
    """Sampling rate in force when the step was drawn."""
    requests: int
    step_s: float
    draft_s: float
    probe_s: float
    core_s: float
    """Time of the engine core's hooks since the previous step, if in this process."""

    @property
    def recorded(self) -> bool:
        """Whether the chains' numbers are on their way; measuring them may still fail."""
        return self.capture is not None and self.capture.values is not None


step_record_from_tuple: Callable[[tuple[Any, ...]], StepRecord] = functools.partial(
    tuple.__new__, StepRecord
)
"""Builds a StepRecord from a plain tuple without running any Python function."""


def prefilling_of(
    steps: list[StepRecord], prefills: PromptProgress, writer: TraceWriter
) -> list[frozenset[str]]:
    """Return for each step the requests whose prompt continues after it, according to its schedule,
    or to the runner if that was asked; a disagreement is counted as an error."""
    prefilling = []
    for done in steps:
        names = NOBODY
        try:
            if done.scheduled is not None:
                names = prefills.step(done.scheduled, done.lengths)
        except Exception as error:  # a schedule that cannot be read must not cost a row
            writer.count_error("prefilling", error)
        if done.capture is not None:
            step = done.capture.step
            requests = frozenset(compress(step.requests, step.prefilling))
            if done.scheduled is not None and requests != names:
                writer.count_error("prefilling", PrefillsDifferError(sorted(requests ^ names)))
            names = requests
        prefilling.append(names)
    return prefilling


def step_rows(
    steps: list[StepRecord],
    prefilling: list[frozenset[str]],
    lost: Container[int] = (),
    *,
    passed: str = "",
) -> Block:
    """Return one row for each step; `prefilling`: the requests whose prompt continues after it.

    `lost`: numbers of the steps whose chains could not be measured. `passed`: the execution mode
    written for steps that were not recorded.
    """
    chains = [
        done.requests - len(names) if done.k else 0
        for done, names in zip(steps, prefilling, strict=True)
    ]
    every_passed = all(done.capture is None for done in steps)
    return Block(
        record="step",
        rows=len(steps),
        columns={
            "step": [done.number for done in steps],
            "time_s": [done.time_s for done in steps],
            "requests": [done.requests for done in steps],
            "chains": chains,
            "k": [done.k or 0 for done in steps],
            "recorded": False
            if every_passed
            else [done.recorded and done.number not in lost for done in steps],
            "step_s": [done.step_s for done in steps],
            "draft_s": [done.draft_s for done in steps],
            "probe_s": [done.probe_s for done in steps],
            "rate": [done.rate for done in steps],
            "execution": passed
            if every_passed
            else [passed if done.capture is None else done.capture.execution for done in steps],
            **_on_device(steps),
            "replica": 0,
        },
    )


def _on_device(steps: list[StepRecord]) -> dict[str, list[float | None] | None]:
    """Return device times in seconds; None on a device without its own clock."""
    if all(done.marks is NO_MARKS for done in steps):
        return {"gpu_draft_s": None, "gpu_probe_s": None}
    return {
        "gpu_draft_s": [done.marks.between(0, 1) for done in steps],
        "gpu_probe_s": [done.marks.between(1, 2) for done in steps],
    }


_DRAFT_LENGTH = operator.attrgetter("k")


class StepTimer:
    """Replaces a Recorder, with the same calls in the same order."""

    def __init__(self, settings: Settings, writer: TraceWriter, schedules: ScheduleReader) -> None:
        self._writer = writer
        self._guard = Guard(writer, test_raise=settings.test_raise, adds_to=(writer,))
        self._attributed_s = 0.0
        self._step_s = 0.0
        """Time of all model steps whose rows have been built, in seconds."""
        self._number, self._started, self._draft_s = 0, 0.0, 0.0
        self._scheduled: Any = None
        self._lengths: Mapping[str, int] = NO_LENGTHS
        self._k: int | None = None
        self._schedules, self._new_requests = schedules, schedules.new_requests

    def step_started(self, scheduled: Any = None) -> None:
        """See Recorder."""
        self._begin()
        self._scheduled = scheduled
        if scheduled is not None and getattr(scheduled, self._new_requests, True):
            self._guard.run("step_started", self._on_step_started, scheduled)

    def draft(self, call: DraftCall) -> Any:
        """Run the drafter and time it."""
        self._k = self._guard.run("draft_started", _DRAFT_LENGTH, call)
        begun = time.perf_counter()
        drafts = call.serve()
        self._draft_s = time.perf_counter() - begun
        return drafts

    def add_draft_time(self, seconds: float) -> None:
        """See Recorder."""
        self._draft_s += seconds

    def step_ended(self, requests: Callable[[], int]) -> None:
        """Finish the step and pass it to the writer; `requests` counts those that it served."""
        step_s = time.perf_counter() - self._started
        self._guard.run("step_ended", self._on_step_ended, requests, step_s)
        self._begin()

    def close(self) -> None:
        """Seal the trace."""
        self._writer.close()

    def _begin(self) -> None:
        self._started = time.perf_counter()
        self._scheduled, self._lengths = None, NO_LENGTHS
        self._k, self._draft_s = None, 0.0

    def _on_step_started(self, scheduled: Any) -> None:
        self._lengths = self._schedules.prompt_lengths(scheduled)

    def _on_step_ended(self, requests: Callable[[], int], step_s: float) -> None:
        self._number += 1
        taken_s = self._guard.taken_s
        done = (
            self._number,
            time.time(),
            self._scheduled,
            self._lengths,
            self._k,
            None,
            NO_MARKS,
            1.0,
            requests(),
            step_s,
            self._draft_s,
            taken_s - self._attributed_s,
            0.0,
        )
        self._attributed_s = taken_s
        self._writer.put((self._rows, done))

    def _rows(self, handed_over: list[tuple[Any, ...]]) -> list[Block]:
        steps = list(map(step_record_from_tuple, handed_over))
        self._step_s += sum(done.step_s for done in steps)
        self._writer.set_gauges(step_s=round(self._step_s, 6))
        prefilling = prefilling_of(steps, self._schedules.prompts, self._writer)
        return [step_rows(steps, prefilling, passed=Execution.UNSEEN)]
