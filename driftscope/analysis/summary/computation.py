"""Computation of a run's summary: arithmetic on what was collected, without a query."""

from __future__ import annotations

from driftscope.analysis.figures.requests import Requests
from driftscope.analysis.figures.results import (
    Latency,
    Recording,
    acceptance_of,
    attention_of,
    confidence_of,
    hidden_of,
    spread_of_chains,
    spread_of_fallback,
    spread_of_rounds,
)
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.figures.steps import StepTimes
from driftscope.analysis.query.record_views import Tables
from driftscope.analysis.statistics.ratio import mean_time_interval
from driftscope.analysis.summary.acceptance_by_k import by_k
from driftscope.analysis.summary.details import Details
from driftscope.analysis.summary.independence import independence_of
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics.fallback import effective_k, fallback
from driftscope.metrics.latency import StepCost, inter_token_s, mean_s
from driftscope.metrics.overhead import cost_of, outside_steps, overhead_fraction


def summary_of(label: str, run: Sums, details: Details) -> RunSummary:
    """Return the summary of a run, named `label`, from its sums and details."""
    tables, requests, cost = run.tables, run.requests, details.times.cost
    undrafted, verification = int(run.undrafted.sum()), details.verification
    whole = run.cohort is None or run.cohort.enough
    return RunSummary(
        label=label,
        manifest=tables.manifest,
        k=run.shape.k,
        rounds=len(run.rounds),
        requests=len(requests),
        acceptance=acceptance_of(run.rounds, spread=whole, by_k=by_k(run)),
        ks=run.shape.ks,
        depths=run.shape.depths,
        attention=attention_of(run.chains),
        hidden=hidden_of(run.chains),
        confidence=confidence_of(run.chains, verification.by_confidence),
        latency=_latency(requests, cost),
        fallback=fallback(int(run.rounds.histogram[:, 0].sum()), len(run.rounds), _reasons(run)),
        recording=_recording(run, details),
        cost=cost,
        segments=details.segments,
        problems=tables.problems,
        effective_k=effective_k(int(run.rounds.drafted.sum()), len(run.rounds) + undrafted),
        cells=details.times.cells,
        groups=details.groups,
        closeup=details.closeup,
        spread={
            **spread_of_chains(run.chains),
            **(spread_of_rounds(run.rounds) if whole else {}),
        },
        fallback_spread=spread_of_fallback(run.rounds, run.reasons),
        side=details.side,
        changes=details.changes,
        lengths_by_k=details.lengths_by_k,
        within_request=details.within_request,
        attention_drift=details.attention_drift,
        cohort=run.cohort,
        independence=independence_of(run.rounds, requests.units),
        slice=run.slice,
    )


def _reasons(run: Sums) -> dict[str | None, int]:
    return {name: int(number.sum()) for name, number in run.reasons.items()}


def _latency(requests: Requests, cost: StepCost | None) -> Latency:
    units, spans = requests.units, requests.spans
    return Latency(
        ttft_s=mean_s(requests.ttft_s),
        tpot_s=mean_s(requests.tpot_s),
        tpot_s_interval=mean_time_interval(requests.tpot_s, spans, units.unit, units.crossed),
        ttft_s_interval=mean_time_interval(requests.ttft_s, spans, units.unit, units.crossed),
        inter_token_s=inter_token_s(requests.tpot_s, requests.output_tokens),
        draft_s=None if cost is None else cost.draft_s,
        verify_s=None if cost is None else cost.step_s - cost.draft_s,
    )


def _recording(run: Sums, details: Details) -> Recording:
    statuses, chains = run.tables.statuses, len(run.chains) + run.shallower.chains
    checked = details.verification
    some, verified = 0 < checked.looked_at < chains, checked.verified
    return Recording(
        chains=chains,
        verified_chains=round(verified / checked.looked_at * chains) if some else verified,
        looked_at=checked.looked_at if some else None,
        chunked_chains=int(run.chains.chunked.sum()) + run.shallower.chunked,
        broken_chains=run.broken,
        short_rounds=_short_rounds(run),
        dropped=sum(sum(status.dropped.values()) for status in statuses),
        errors=sum(sum(status.errors.values()) for status in statuses),
        overhead_fraction=_overhead(run.tables, details.times),
        sampling=_sampling(chains, run),
    )


def _short_rounds(run: Sums) -> int:
    asked = run.rounds.lengths[:, list(run.shape.ks)]
    return len(run.rounds) - int(asked.sum())


def _sampling(chains: int, run: Sums) -> float | None:
    stand_for = float(run.chains.weight.sum()) + run.shallower.weight
    return chains / stand_for if stand_for else None


def _overhead(tables: Tables, times: StepTimes) -> float | None:
    """Return the cost of the probe, all in. A worker's hooks and its steps come from the step rows,
    of which there may be a part only; what the statuses count covers the run and is scaled to that
    part, if they know the time of all steps."""
    costs = [cost_of(s.source, s.probe_s, s.writer_s, s.step_s) for s in tables.statuses]
    if not times.step_s:
        return None
    engine_s, writer_s, all_s = outside_steps(costs)
    share = min(1.0, times.step_s / all_s) if all_s else 1.0
    return overhead_fraction(times.probe_s, share * engine_s, times.step_s, share * writer_s)
