"""Metric of the cost of recording."""

from __future__ import annotations

from driftscope.metrics.definition import Definition

OVERHEAD = Definition(
    name="probe.overhead_fraction",
    title="Time spent in the probe",
    meaning="Time that the probe's hooks took on the serving threads, and the writer's thread of a "
    "core, as a share of the worker's model steps. Slower execution that a recording mode causes "
    "elsewhere is not in it.",
    unit="1",
    range="0 or more",
    source="driftscope; off against on is measured by make bench",
)


def overhead_fraction(
    worker_probe_s: float, engine_probe_s: float, step_s: float, writer_s: float = 0.0
) -> float | None:
    """Return the probe time of worker and engine core, plus their writers' time, over the time of
    the model steps; None without steps."""
    return (worker_probe_s + engine_probe_s + writer_s) / step_s if step_s > 0 else None
