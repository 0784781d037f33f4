"""The report of an analysis as a JSON document: a contract that other tools may build on.

Per-depth lists start with depth 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from driftscope.analysis.figures.results import AcceptanceAtK
from driftscope.analysis.figures.run_sums import Served
from driftscope.analysis.figures.verified_chains import answers
from driftscope.analysis.replays import ReplaySummary
from driftscope.analysis.statistics.association import Association
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.summary.baseline_run import BaselineRun
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.finding import Claim, Finding
from driftscope.findings.first_screen import FirstScreen
from driftscope.json_report.attention_drift import drift_to_dict
from driftscope.json_report.document import REPORT, document, layout, plain, rounded
from driftscope.json_report.interval_ends import ends
from driftscope.json_report.text_kinds import text_to_dict
from driftscope.pipeline import Analysis
from driftscope.version import __version__


def to_json(analysis: Analysis) -> str:
    """Return the report as text, with a newline at the end."""
    return layout(to_dict(analysis))


def to_dict(analysis: Analysis) -> dict[str, Any]:
    """Return the report as plain values."""
    content = {
        "driftscope_version": __version__,
        "verdict": " ".join(analysis.verdict),
        "first_screen": _first_screen(analysis.screen) if analysis.screen else None,
        "findings": [_finding(finding) for finding in analysis.findings],
        "warnings": [f"{warning.run}: {warning.message}" for warning in analysis.warnings],
        "runs": [_run(run) for run in analysis.runs],
    }
    if analysis.senders:
        content["replays"] = [_replay(run) for run in analysis.senders]
        content["replays_compared"] = [plain(pair) for pair in analysis.versus]
    return document(REPORT, content)


def _first_screen(screen: FirstScreen) -> dict[str, Any]:
    return {
        "state": screen.state.value,
        "headline": screen.headline,
        "claims": [_claim(claim) for claim in screen.claims],
        "cause": screen.cause,
        "action": plain(screen.action),
        "actions": [plain(action) for action in screen.actions],
        "figures": [plain(figure) for figure in screen.figures],
    }


def _claim(claim: Claim) -> dict[str, Any]:
    return {
        "topic": claim.topic.value,
        "run": claim.run,
        "reference": claim.reference or None,
        "question": claim.question,
        "answer": claim.answer.value,
        "sentence": claim.sentence,
        "estimate": claim.estimate,
        "estimate_interval": ends(claim.interval),
        "record": claim.record or None,
    }


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
        "causes": [plain(each) for each in finding.causes],
        "ruled_out": [plain(each) for each in finding.ruled_out],
        "option": finding.option,
        "cost_tps": finding.cost_tps,
    }


def run_to_dict(run: RunSummary) -> dict[str, Any]:
    """Return one run of the report as plain values; the gate evaluates its rules on them."""
    content: dict[str, Any] = rounded(_run(run))
    return content


def replay_to_dict(run: ReplaySummary) -> dict[str, Any]:
    """Return one replay of the report as plain values."""
    content: dict[str, Any] = rounded(_replay(run))
    return content


def plain_to_dict(run: BaselineRun) -> dict[str, Any]:
    """Return a run without speculation with the same fields; null where it has no value."""
    latency = plain(run.latency)
    content: dict[str, Any] = rounded(
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
        "mean_length_interval": ends(part.mean_length_interval),
        "marginal": part.marginal,
        "marginal_interval": _all_ends(part.marginal_interval),
    }


def _run(run: RunSummary) -> dict[str, Any]:
    attention, hidden = run.attention, run.hidden
    return {
        "label": run.label,
        "rounds": run.rounds,
        "requests": run.requests,
        "clusters": _clusters(run),
        "k": run.k,
        "ks": run.ks,
        "slice": None if run.slice is None else plain(run.slice),
        "depths": run.depths,
        "acceptance": {
            "mean_length": run.acceptance.mean_length,
            "marginal": run.acceptance.marginal,
            "conditional": run.acceptance.conditional,
            "counted": run.acceptance.counted,
            "by_k": [_at_k(each) for each in run.acceptance.by_k],
            "mean_length_interval": ends(run.acceptance.mean_length_interval),
            "marginal_interval": _all_ends(run.acceptance.marginal_interval),
            "token_rate": run.acceptance.token_rate,
            "histogram": run.acceptance.histogram,
            "mean_length_by_request": run.acceptance.mean_length_by_request,
            "mean_length_by_token": run.acceptance.mean_length_by_token,
            "mean_length_at_k": [
                {
                    "k": at.k,
                    "mean_length": at.mean_length,
                    "mean_length_interval": ends(at.interval),
                }
                for at in run.lengths_by_k
            ],
        },
        "attention": {
            "sink": attention.sink_mass,
            "prompt": attention.prompt_mass,
            "generated": attention.generated_mass,
            "self": attention.self_mass,
            "sink_retention": attention.sink_retention,
        },
        "attention_drift": drift_to_dict(run.attention_drift),
        "hidden": {
            "in_rms": hidden.in_rms,
            "prenorm_rms": hidden.prenorm_rms,
            "postnorm_rms": hidden.postnorm_rms,
            "fed_rms": hidden.fed_rms,
            "growth": hidden.growth,
            "growth_interval": ends(hidden.growth_interval),
            "aux_imbalance": hidden.aux_imbalance,
            "aux_norm_imbalance": hidden.aux_norm_imbalance,
        },
        "confidence": {
            "top1": run.confidence.top1,
            "entropy": run.confidence.entropy,
            "ece": run.confidence.ece,
            "reliability": [plain(each) for each in run.confidence.reliability],
        },
        "within_request": [
            {
                "measure": each.measure,
                "answer": answer,
                "alone": _association(each.alone),
                "beyond_confidence": _association(each.beyond_confidence),
            }
            for each, answer in zip(run.within_request, answers(run.within_request), strict=True)
        ],
        "latency": {
            "tpot_s": run.latency.tpot_s,
            "tpot_s_interval": ends(run.latency.tpot_s_interval),
            "ttft_s": run.latency.ttft_s,
            "ttft_s_interval": ends(run.latency.ttft_s_interval),
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
            "counted_by_engine": run.fallback.counted,
            "effective_k": run.effective_k,
            "by_reason": run.fallback.by_reason,
        },
        "text": text_to_dict(run.groups),
        "changes": None if run.changes is None else plain(run.changes),
        "cohort": _cohort(run),
        "probe": _probe(run),
        "segments": [plain(segment) for segment in run.segments],
        "problems": run.problems,
    }


def _clusters(run: RunSummary) -> dict[str, Any] | None:
    """Return which requests count as independent; null if it is not known."""
    known = run.independence
    return None if known is None else {**plain(known), "worth": known.worth}


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
        "conditions": [{**plain(cell), "per_user": cell.per_user} for cell in run.cells],
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


def _cohort(run: RunSummary) -> dict[str, Any]:
    """Return all rounds as vLLM counts them, and those that the figures of the run leave out."""
    cohort = run.cohort
    if cohort is None:
        served = Served(
            requests=run.requests,
            rounds=run.rounds,
            mean_length=run.acceptance.mean_length,
            counted=run.acceptance.counted,
        )
        return {"enough": True, "left_out": 0, "served": plain(served)}
    return {**plain(cohort), "left_out": cohort.left_out}


def _association(found: Association | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "per_sd": found.per_sd,
        "per_sd_interval": ends(found.interval),
        "sd": found.sd,
        "rows": found.rows,
        "clusters": found.clusters,
        "p": found.p,
    }


def _all_ends(intervals: Sequence[Interval | None] | None) -> list[dict[str, float] | None] | None:
    return None if intervals is None else [ends(each) for each in intervals]
