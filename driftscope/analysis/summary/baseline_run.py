"""Runs without speculation, which others are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driftscope.analysis.closeup import TPOT, TTFT, Distribution, distribution
from driftscope.analysis.figures.chain_shape import lengths_of_rounds
from driftscope.analysis.figures.requests import requests_that_finished
from driftscope.analysis.figures.results import Latency
from driftscope.analysis.figures.steps import StepCell, step_times
from driftscope.analysis.query.column_arrays import floats
from driftscope.analysis.query.record_views import Tables
from driftscope.analysis.statistics.ratio import mean_time_interval, spans_of
from driftscope.errors import NoDataError
from driftscope.metrics.latency import life_s, mean_s
from driftscope.trace.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRun:
    """A run in which no step drafted, such as one served with
    `num_speculative_tokens_per_batch_size` of K = 0."""

    label: str
    manifest: Manifest
    requests: int
    latency: Latency
    cells: tuple[StepCell, ...]
    durations: Mapping[str, Distribution] = field(default_factory=dict)
    """Distributions of TTFT and TPOT."""


def speculates(tables: Tables) -> bool:
    """Whether any step of a run drafted."""
    return bool(tables.engine.rows(lengths_of_rounds()).num_rows)


def baseline_of(tables: Tables, label: str) -> BaselineRun:
    """Return the figures of a run that does not speculate. Raises NoDataError for a run with
    neither rounds nor finished requests."""
    finished = tables.engine.rows(requests_that_finished())
    if not finished.num_rows:
        raise NoDataError(
            f"{tables.path}: neither a round nor a finished request in it; send requests to the "
            "server while the probe is on"
        )
    tpot_s, ttft_s = floats(finished, "tpot_s"), floats(finished, "ttft_s")
    lives = life_s(ttft_s, tpot_s, floats(finished, "output_tokens"))
    spans = spans_of(floats(finished, "arrival_s"), lives)
    spread = {TPOT: distribution(tpot_s), TTFT: distribution(ttft_s)}
    return BaselineRun(
        label=label,
        manifest=tables.manifest,
        requests=finished.num_rows,
        latency=Latency(
            ttft_s=mean_s(ttft_s),
            tpot_s=mean_s(tpot_s),
            tpot_s_interval=mean_time_interval(tpot_s, spans),
            ttft_s_interval=mean_time_interval(ttft_s, spans),
        ),
        cells=step_times(tables).value.cells,
        durations={name: each for name, each in spread.items() if each is not None},
    )
