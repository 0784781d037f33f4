"""The JSON report: a contract (schema_version 1) that other tools may build on.

Per-depth lists start with depth 1; null stands where a quantity does not exist or is no finite
number. Keys are sorted and nothing depends on the clock: same runs, same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import driftscope
from driftscope.analysis.figures.results import AcceptanceAtK
from driftscope.analysis.findings.finding import Finding
from driftscope.analysis.replays.senders import ReplaySummary
from driftscope.analysis.statistics.interval import Interval
from driftscope.analysis.summary.baseline_run import BaselineRun
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.boundary import strict_json
from driftscope.pipeline import Analysis

SCHEMA_VERSION = 1
_DIGITS = 9
"""Significant digits: more than the trace's float32 holds, fewer than platforms agree on."""


def to_json(analysis: Analysis) -> str:
    """The report as text, newline at the end."""
    return strict_json.dumps(to_dict(analysis), indent=1, sort_keys=True) + "\n"


def to_dict(analysis: Analysis) -> dict[str, Any]:
    """The report as plain values."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "driftscope_version": driftscope.__version__,
        "verdict": " ".join(analysis.verdict),
        "findings": [_finding(finding) for finding in analysis.findings],
        "warnings": [f"{warning.run}: {warning.message}" for warning in analysis.warnings],
        "runs": [_run(run) for run in analysis.runs],
    }
    if analysis.senders:
        content["replays"] = [_replay(run) for run in analysis.senders]
        content["replays_compared"] = [asdict(pair) for pair in analysis.versus]
    cleaned: dict[str, Any] = _clean(content)
    return cleaned


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "severity": finding.severity.value,
        "runs": finding.runs,
        "title": finding.title,
        "statement": finding.statement,
        "evidence": finding.evidence,
        "confidence": finding.confidence.value,
        "because": finding.because,
        "advice": finding.advice,
        "assumed": finding.assumed,
        "causes": [asdict(each) for each in finding.causes],
        "ruled_out": [asdict(each) for each in finding.ruled_out],
        "option": finding.option,
        "cost_tps": finding.cost_tps,
    }


def run_to_dict(run: RunSummary) -> dict[str, Any]:
    """One run of the report, as plain values: what the gate's rules are asked about."""
    content: dict[str, Any] = _clean(_run(run))
    return content


def replay_to_dict(run: ReplaySummary) -> dict[str, Any]:
    """One replay of the report, as plain values."""
    content: dict[str, Any] = _clean(_replay(run))
    return content


def plain_to_dict(run: BaselineRun) -> dict[str, Any]:
    """A run without speculation in the same words: null where it has none."""
    latency = asdict(run.latency)
    content: dict[str, Any] = _clean(
        {
            "label": run.label,
            "rounds": 0,
            "requests": run.requests,
            "k": 0,
            "latency": latency,
            **dict.fromkeys(("acceptance", "attention", "hidden", "confidence", "fallback")),
        }
    )
    return content


def _at_k(part: AcceptanceAtK) -> dict[str, Any]:
    return {
        "k": part.k,
        "requests": part.requests,
        "rounds": part.rounds,
        "mean_length": part.mean_length,
        "mean_length_interval": _ends(part.mean_length_interval),
        "marginal": part.marginal,
        "marginal_interval": _all_ends(part.marginal_interval),
    }


def _run(run: RunSummary) -> dict[str, Any]:
    attention, hidden = run.attention, run.hidden
    return {
        "label": run.label,
        "rounds": run.rounds,
        "requests": run.requests,
        "k": run.k,
        "ks": run.ks,
        "depths": run.depths,
        "acceptance": {
            "mean_length": run.acceptance.mean_length,
            "marginal": run.acceptance.marginal,
            "conditional": run.acceptance.conditional,
            "counted": run.acceptance.counted,
            "by_k": [_at_k(each) for each in run.acceptance.by_k],
            "mean_length_interval": _ends(run.acceptance.mean_length_interval),
            "marginal_interval": _all_ends(run.acceptance.marginal_interval),
            "token_rate": run.acceptance.token_rate,
            "histogram": run.acceptance.histogram,
            "mean_length_by_request": run.acceptance.mean_length_by_request,
            "mean_length_by_token": run.acceptance.mean_length_by_token,
        },
        "attention": {
            "sink": attention.sink_mass,
            "prompt": attention.prompt_mass,
            "generated": attention.generated_mass,
            "self": attention.self_mass,
            "no_drift": attention.no_drift_self_mass,
            "excess": attention.self_excess,
            "sink_retention": attention.sink_retention,
        },
        "hidden": {
            "in_rms": hidden.in_rms,
            "prenorm_rms": hidden.prenorm_rms,
            "postnorm_rms": hidden.postnorm_rms,
            "fed_rms": hidden.fed_rms,
            "growth": hidden.growth,
            "growth_interval": _ends(hidden.growth_interval),
            "aux_imbalance": hidden.aux_imbalance,
            "aux_norm_imbalance": hidden.aux_norm_imbalance,
        },
        "confidence": {
            "top1": run.confidence.top1,
            "entropy": run.confidence.entropy,
            "ece": run.confidence.ece,
            "reliability": [asdict(each) for each in run.confidence.reliability],
        },
        "latency": {
            "tpot_s": run.latency.tpot_s,
            "tpot_s_interval": _ends(run.latency.tpot_s_interval),
            "ttft_s": run.latency.ttft_s,
            "ttft_s_interval": _ends(run.latency.ttft_s_interval),
            "inter_token_s": run.latency.inter_token_s,
            "draft_s": run.latency.draft_s,
            "verify_s": run.latency.verify_s,
        },
        "fallback": {
            "steps": run.fallback.steps,
            "rejected_rounds": run.fallback.rejected_rounds,
            "undrafted": run.fallback.undrafted,
            "rejected_share": run.fallback.rejected_share,
            "undrafted_share": run.fallback.undrafted_share,
            "deliberate": run.fallback.deliberate,
            "effective_k": run.effective_k,
            "by_reason": run.fallback.by_reason,
        },
        "changes": None if run.changes is None else asdict(run.changes),
        "probe": _probe(run),
        "segments": [asdict(segment) for segment in run.segments],
        "problems": run.problems,
    }


def _replay(run: ReplaySummary) -> dict[str, Any]:
    return {
        "label": run.label,
        "workload": run.manifest.workload,
        "planned": run.planned,
        "ended": run.ended,
        "joined": run.joined,
        "outside_s": run.outside_s,
        "gpu_used_bytes": run.gpu_used_bytes,
        "gpu_power_w": run.gpu_power_w,
        "conditions": [{**asdict(cell), "per_user": cell.per_user} for cell in run.cells],
        "problems": run.problems,
    }


def _probe(run: RunSummary) -> dict[str, Any]:
    manifest = run.manifest
    return {
        "engine": f"{manifest.engine} {manifest.engine_version}",
        "runner": manifest.runner,
        "mode": manifest.mode,
        "sampling": run.recording.sampling,
        "dropped": run.recording.dropped,
        "overhead_fraction": run.recording.overhead_fraction,
    }


def _ends(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else {"low": interval.low, "high": interval.high}


def _all_ends(intervals: Sequence[Interval | None] | None) -> list[dict[str, float] | None] | None:
    return None if intervals is None else [_ends(each) for each in intervals]


def _clean(value: Any) -> Any:
    """`value` with numbers rounded, and None for what is no finite number."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _clean(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_clean(item) for item in value]
    return value
