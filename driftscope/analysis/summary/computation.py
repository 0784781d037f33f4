"""Computation of a run's summary: what is queried once its sums are known, and arithmetic on it."""

from __future__ import annotations

from driftscope.analysis.circumstances import groups_of, loops_of, text_rounds
from driftscope.analysis.closeup import closeup_of
from driftscope.analysis.figures.attention_drift import attention_drift
from driftscope.analysis.figures.change_points import changes_of
from driftscope.analysis.figures.requests import Requests
from driftscope.analysis.figures.results import (
    AcceptanceAtK,
    Latency,
    Recording,
    acceptance_at,
    acceptance_of,
    attention_of,
    confidence_of,
    hidden_of,
    spread_of_chains,
    spread_of_fallback,
    spread_of_rounds,
)
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.figures.steps import StepTimes, step_times
from driftscope.analysis.figures.verified_chains import (
    Verification,
    verification_of,
    within_requests,
)
from driftscope.analysis.query.column_arrays import whole
from driftscope.analysis.query.record_views import Tables
from driftscope.analysis.statistics.ratio import mean_time_interval
from driftscope.analysis.summary.independence import independence_of
from driftscope.analysis.summary.length_by_k import lengths_by_k
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.analysis.summary.segments import BY_LABEL, segments_by, segments_of
from driftscope.metrics.fallback import effective_k, fallback
from driftscope.metrics.latency import StepCost, inter_token_s, mean_s
from driftscope.metrics.overhead import cost_of, outside_steps, overhead_fraction


def summary_of(label: str, run: Sums, by: str = BY_LABEL) -> RunSummary:
    """Return the summary of a run, named `label`, whose segments are split `by` a key of
    `driftscope.analysis.query.row_filters.BY` or a span of time. Raises UsageError for an unknown
    way to split.

    What takes longest is begun first; no query runs after this.
    """
    verification = verification_of(run)  # stores the chains that `within_requests` reads
    times, lengths = step_times(run.tables), lengths_by_k(run)
    within, drift = within_requests(run), attention_drift(run, run.clusters)
    run.chain_sums.begin()  # the longest query, beside what follows up to the groups
    by_text, loops, closeup = text_rounds(run), loops_of(run), closeup_of(run)
    steps, requests, seen_whole = times.value, run.requests, run.seen_whole
    by_batch, undrafted = run.in_batch.value, int(run.undrafted.sum())
    return RunSummary(
        label=label,
        manifest=run.tables.manifest,
        problems=run.tables.problems,
        slice=run.slice,
        cohort=run.cohort,
        independence=independence_of(run.rounds, requests.units),
        k=run.shape.k,
        ks=run.shape.ks,
        depths=run.shape.depths,
        rounds=len(run.rounds),
        requests=len(requests),
        acceptance=acceptance_of(run.rounds, spread=seen_whole, by_k=_by_k(run)),
        lengths_by_k=lengths.value,
        changes=changes_of(run, by_batch=by_batch) if seen_whole else None,
        side=run.side,
        groups=groups_of(
            run,
            by_batch=by_batch,
            by_execution=verification.by_execution,
            by_text=by_text,
            loops=loops,
        ),
        segments=segments_of(run) if by == BY_LABEL else segments_by(run, by),
        closeup=closeup.value,
        attention=attention_of(run.chains),
        attention_drift=drift.value,
        hidden=hidden_of(run.chains),
        confidence=confidence_of(run.chains, verification.by_confidence),
        within_request=within.value,
        spread={
            **spread_of_chains(run.chains),
            **(spread_of_rounds(run.rounds) if seen_whole else {}),
        },
        latency=_latency(requests, steps.cost),
        cost=steps.cost,
        cells=steps.cells,
        fallback=fallback(
            int(run.rounds.histogram[:, 0].sum()),
            len(run.rounds),
            {name: int(number.sum()) for name, number in run.reasons.items()},
        ),
        fallback_spread=spread_of_fallback(run.rounds, run.reasons),
        effective_k=effective_k(int(run.rounds.drafted.sum()), len(run.rounds) + undrafted),
        recording=_recording(run, verification, steps),
    )


def _by_k(run: Sums) -> tuple[AcceptanceAtK, ...]:
    """Return the acceptance for each K that the run asked for and some round drafted; () in a run
    of one K."""
    if run.by_length is None:
        return ()
    length = whole(run.by_length, "length")
    rounds = run.rounds_of(run.by_length, run.requests.codes(run.by_length))
    parts = [(k, rounds.where(length == k)) for k in run.shape.ks]
    return tuple(acceptance_at(k, part.requests, part) for k, part in parts if len(part))


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


def _recording(run: Sums, checked: Verification, steps: StepTimes) -> Recording:
    statuses, chains = run.tables.statuses, len(run.chains) + run.shallower.chains
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
        overhead_fraction=_overhead(run.tables, steps),
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
