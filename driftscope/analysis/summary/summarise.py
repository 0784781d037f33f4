"""Computation of a run's summary."""

from __future__ import annotations

from driftscope.analysis.circumstances.grouping import groups_of
from driftscope.analysis.closeup.closeup import closeup_of
from driftscope.analysis.figures import measure
from driftscope.analysis.figures.change_points import changes_of
from driftscope.analysis.figures.request_codes import Requests
from driftscope.analysis.figures.results import Latency, Recording
from driftscope.analysis.figures.run_sums import (
    Sums,
    collect,
    probe_time,
    step_cells,
    step_cost,
)
from driftscope.analysis.figures.side import side_of
from driftscope.analysis.figures.verification import Verification, verification_of
from driftscope.analysis.passes.rounds import duration
from driftscope.analysis.query.column_arrays import floats
from driftscope.analysis.query.record_views import Tables, narrow, tables_of
from driftscope.analysis.query.row_filters import Filter
from driftscope.analysis.statistics.interval import mean_interval
from driftscope.analysis.summary.acceptance_by_k import by_k
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.analysis.summary.segments import segments_by, segments_of
from driftscope.metrics.fallback import effective_k, fallback
from driftscope.metrics.latency import inter_token_s, mean_s
from driftscope.metrics.overhead import overhead_fraction
from driftscope.metrics.throughput import StepCost
from driftscope.trace.read.reader import Trace

EVERYTHING = Filter()
BY_LABEL = "label"


def summarise(
    run: Trace | Tables | Sums, label: str, *, only: Filter = EVERYTHING, by: str = BY_LABEL
) -> RunSummary:
    """Summarise `run` under the name `label`; `only` selects rows, and segments are split `by` a
    key of `driftscope.analysis.query.buckets.BY` or a span.

    Raises MixedTraceError, DamagedTraceError, NoDataError or, for a filter, UsageError.
    """
    if isinstance(run, Trace):
        run = tables_of(run)
    if isinstance(run, Tables) and only != EVERYTHING:
        last_s = float(floats(run.engine.rows(duration()), "last_s")[0])
        run = narrow(run, only.conditions(last_s))
    if isinstance(run, Tables):
        run = collect(run)
    tables, requests, cost = run.tables, run.requests, step_cost(run.tables)
    undrafted, held = int(run.undrafted.sum()), verification_of(run)
    return RunSummary(
        label=label,
        manifest=tables.manifest,
        k=run.shape.k,
        rounds=len(run.rounds),
        requests=len(requests),
        acceptance=measure.acceptance(run.rounds, spread=True, by_k=by_k(run)),
        ks=run.shape.ks,
        depths=run.shape.depths,
        attention=measure.attention(run.chains),
        hidden=measure.hidden(run.chains),
        confidence=measure.confidence(run.chains, held.by_confidence),
        latency=_latency(requests, cost),
        fallback=fallback(int(run.rounds.histogram[:, 0].sum()), len(run.rounds), _reasons(run)),
        recording=_recording(run, held),
        cost=cost,
        segments=segments_of(run) if by == BY_LABEL else segments_by(run, by),
        problems=tables.problems,
        effective_k=effective_k(int(run.rounds.drafted.sum()), len(run.rounds) + undrafted),
        cells=step_cells(tables),
        groups=groups_of(run, held.by_execution),
        closeup=closeup_of(run),
        spread={**measure.spread(run.chains), **measure.rounds_spread(run.rounds)},
        fallback_spread=measure.fallback_spread(run.rounds, run.reasons),
        side=side_of(run),
        changes=changes_of(run),
    )


def _reasons(run: Sums) -> dict[str | None, int]:
    return {name: int(number.sum()) for name, number in run.reasons.items()}


def _latency(requests: Requests, cost: StepCost | None) -> Latency:
    return Latency(
        ttft_s=mean_s(requests.ttft_s),
        tpot_s=mean_s(requests.tpot_s),
        tpot_s_interval=mean_interval(requests.tpot_s),
        ttft_s_interval=mean_interval(requests.ttft_s),
        inter_token_s=inter_token_s(requests.tpot_s, requests.output_tokens),
        draft_s=None if cost is None else cost.draft_s,
        verify_s=None if cost is None else cost.step_s - cost.draft_s,
    )


def _recording(run: Sums, held: Verification) -> Recording:
    statuses, chains = run.tables.statuses, len(run.chains) + run.shallower.chains
    some = 0 < held.looked_at < chains
    return Recording(
        chains=chains,
        verified_chains=round(held.verified / held.looked_at * chains) if some else held.verified,
        looked_at=held.looked_at if some else None,
        chunked_chains=int(run.chains.chunked.sum()) + run.shallower.chunked,
        broken_chains=run.broken,
        short_rounds=_short_rounds(run),
        dropped=sum(sum(status.dropped.values()) for status in statuses),
        errors=sum(sum(status.errors.values()) for status in statuses),
        overhead_fraction=_overhead(run.tables),
        sampling=_sampling(chains, run),
    )


def _short_rounds(run: Sums) -> int:
    asked = run.rounds.lengths[:, list(run.shape.ks)]
    return len(run.rounds) - int(asked.sum())


def _sampling(chains: int, run: Sums) -> float | None:
    stand_for = float(run.chains.weight.sum()) + run.shallower.weight
    return chains / stand_for if stand_for else None


def _overhead(tables: Tables) -> float | None:
    """Return the share of time spent in the probe. Worker time comes from the steps, so a status
    counts only for the engine core; otherwise it would be counted twice."""
    engine_s = sum(s.probe_s for s in tables.statuses if not s.source.startswith("worker"))
    probe_s, step_s = probe_time(tables)
    return overhead_fraction(probe_s, engine_s, step_s, sum(s.writer_s for s in tables.statuses))
