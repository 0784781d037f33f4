"""Metrics of the cost of recording: what a budget bounds, and all that the probe takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from driftscope.metrics.definition import Definition

OVERHEAD = Definition(
    name="probe.overhead_fraction",
    title="Probe cost, all in",
    meaning="Time of the probe's hooks on the serving threads of worker and engine core, plus the "
    "core time of their writers' threads, as a share of the time of the worker's model steps. "
    "Slower execution that a recording mode causes elsewhere is not included.",
    unit="1",
    range="0 or more",
    source="driftscope; `make bench` measures serving with the probe off and on",
)
BUDGETED = Definition(
    name="probe.budgeted_fraction",
    title="Probe cost, budgeted",
    meaning="Expected share of a step that the probe takes in the worker at the present sampling "
    "rate, from medians of recent steps: the figure that a budget bounds. The engine core, which "
    "runs beside the worker, and rare costs are not included.",
    unit="1",
    range="0 or more",
    source="driftscope; the governor of the sampling rate computes it",
)


def overhead_fraction(
    worker_probe_s: float, engine_probe_s: float, step_s: float, writer_s: float = 0.0
) -> float | None:
    """Return the probe time of worker and engine core, plus their writers' time, over the time of
    the model steps; None without steps."""
    return (worker_probe_s + engine_probe_s + writer_s) / step_s if step_s > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCost:
    """The probe's time in one process of an engine."""

    worker: bool
    """Whether it is a worker, otherwise an engine core."""
    replica: int
    probe_s: float
    """Time of the hooks on its serving threads."""
    writer_s: float
    """Core time of its writer's thread."""
    step_s: float = 0.0
    """Time of its model steps; 0 for an engine core."""


def all_in(processes: Iterable[ProcessCost]) -> float | None:
    """Return the cost of all processes, see OVERHEAD; None without steps.

    Of the tensor-parallel ranks of a replica, which run the same steps, the slowest counts.
    """
    costs = list(processes)
    core_s, writer_s, step_s = outside_steps(costs)
    probe_s = sum(_slowest(costs, lambda process: process.probe_s))
    return overhead_fraction(probe_s, core_s, step_s, writer_s)


def outside_steps(processes: Sequence[ProcessCost]) -> tuple[float, float, float]:
    """Return the time of the engine cores' hooks, of all writers, and of all model steps, in
    seconds."""
    cores = [process for process in processes if not process.worker]
    writers_s = sum(_slowest(processes, lambda process: process.writer_s))
    return (
        sum(core.probe_s for core in cores),
        writers_s + sum(core.writer_s for core in cores),
        sum(_slowest(processes, lambda process: process.step_s)),
    )


def _slowest(
    processes: Iterable[ProcessCost], of: Callable[[ProcessCost], float]
) -> Iterable[float]:
    """Return the largest value among the ranks of each replica."""
    largest: dict[int, float] = {}
    for process in processes:
        if process.worker:
            largest[process.replica] = max(of(process), largest.get(process.replica, 0.0))
    return largest.values()


def cost_of(source: str, probe_s: float, writer_s: float, step_s: float = 0.0) -> ProcessCost:
    """Return the cost of the process named `source`, such as "worker0-4711", times in seconds."""
    from driftscope.trace.ranks import place_of  # needs Arrow, which names need not

    place = place_of(source)
    return ProcessCost(
        worker=source.startswith("worker"),
        replica=place.replica or 0,
        probe_s=probe_s,
        writer_s=writer_s,
        step_s=step_s,
    )
