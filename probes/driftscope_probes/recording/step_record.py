"""A step whose hooks are done, on its way to the writer's thread, and the row that it becomes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from driftscope.trace.format.row_block import Block
from driftscope.trace.write.writer import TraceWriter
from driftscope_probes.base.device_clock import NO_MARKS, Marks
from driftscope_probes.base.host_ring import Landing
from driftscope_probes.base.step_view import DraftStep
from driftscope_probes.recording.step_schedule import NOBODY, PromptProgress


class PrefillsDifferError(Exception):
    """A runner and the schedules differ in whose prompt goes on after a step."""


@dataclass(slots=True, eq=False)
class Capture:
    """What was taken of a recorded step, while it ran."""

    step: DraftStep
    prompt_tokens: npt.NDArray[np.int64]
    """[B]."""
    chosen: npt.NDArray[np.bool_] | None
    """[B]: whose chains are to be recorded; None: all."""
    values: Landing | None = None
    """The chains' numbers; None when they were not recorded."""
    ids: Landing | None = None
    """[B, 2K] int32 bit for bit: the served tokens, then those of the chain that was measured."""
    head_mass: Landing | None = None
    """[B, K * layers * heads * 5]."""
    execution: str = ""
    sought: bool = False
    """The sink set is still being looked for: masses were not taken, `slot_weights` were."""
    slot_weights: Landing | None = None
    """[B, SLOTS + 1] of `driftscope_probes.masses.sink_search`."""


class StepRecord(NamedTuple):
    """A step whose hooks are done; the serving thread hands over a plain tuple of the same."""

    number: int
    time_s: float
    scheduled: Any
    """The engine's schedule of it; None where there is none."""
    lengths: Mapping[str, int]
    """`prompt_lengths` of its new requests."""
    k: int | None
    """Depths that were drafted; None where the drafter did not run."""
    capture: Capture | None
    """None for a step that was passed."""
    marks: Marks
    """On the device: before the draft, after it, after the probe's own work."""
    rate: float
    """In force when the step was drawn."""
    requests: int
    step_s: float
    draft_s: float
    probe_s: float
    core_s: float
    """Of the engine core's hooks since the step before, if they share this process."""

    @property
    def recorded(self) -> bool:
        """Whether its chains' numbers are on their way; they may still fail."""
        return self.capture is not None and self.capture.values is not None


step_record_from_tuple: Callable[[tuple[Any, ...]], StepRecord] = functools.partial(
    tuple.__new__, StepRecord
)
"""Of the same fields in a plain tuple; no function of Python's is called."""


def prefilling_of(
    steps: list[StepRecord], prefills: PromptProgress, writer: TraceWriter
) -> list[frozenset[str]]:
    """Whose prompt goes on after each step: as its schedule tells, or the runner, if it was asked;
    where they differ, that is counted."""
    found = []
    for done in steps:
        told = NOBODY
        try:
            if done.scheduled is not None:
                told = prefills.step(done.scheduled, done.lengths)
        except Exception as error:  # the border: a schedule that cannot be read costs no row
            writer.count_error("prefilling", error)
        if done.capture is not None:
            step = done.capture.step
            seen = frozenset(compress(step.requests, step.prefilling))
            if done.scheduled is not None and seen != told:
                writer.count_error("prefilling", PrefillsDifferError(sorted(seen ^ told)))
            told = seen
        found.append(told)
    return found


def step_rows(
    steps: list[StepRecord],
    prefilling: list[frozenset[str]],
    lost: Container[int] = (),
    *,
    passed: str = "",
) -> Block:
    """A row for each step; `prefilling`: whose prompt goes on after it.

    `lost`: numbers of those whose chains could not be measured. `passed`: the execution that is
    said of steps that were not recorded.
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
    """Seconds, where there is a device with a clock of its own."""
    if all(done.marks is NO_MARKS for done in steps):
        return {"gpu_draft_s": None, "gpu_probe_s": None}
    return {
        "gpu_draft_s": [done.marks.between(0, 1) for done in steps],
        "gpu_probe_s": [done.marks.between(1, 2) for done in steps],
    }
