"""Rule about a drafter that works differently in eager and in graph execution."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.analysis.findings.catalogue_entry import Entry, Need, Threshold
from driftscope.analysis.findings.finding import Finding, Severity
from driftscope.analysis.findings.finding_confidence import ends, judged
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.number_words import number
from driftscope.analysis.statistics.intervals.interval import Interval, difference
from driftscope.analysis.summary.run_summary import RunSummary

DISAGREE_ABOVE = 0.1
"""Difference of accepted tokens per round, as a share of the larger. Rounding differs between eager
and compiled code and changes single tokens, never a tenth of them; a drafter that failed in one
mode accepted 0 % against 92 % (vllm#54997)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    name: str
    requests: int
    mean_length: float
    interval: Interval | None


def modes_disagree(case: Case) -> Finding | None:
    """Find that one drafter's acceptance depends on how it is executed."""
    for one, other, within in _pairs(case):
        worse, better = sorted((one, other), key=lambda side: side.mean_length)
        if worse.interval is None or better.interval is None:
            continue
        apart = difference(better.mean_length, better.interval, worse.mean_length, worse.interval)
        lost = (better.mean_length - worse.mean_length) / max(better.mean_length - 1.0, 1e-9)
        if apart.low > 0 and lost > DISAGREE_ABOVE:
            return _finding(case, worse, better, apart, lost, within=within)
    return None


def _finding(
    case: Case, worse: _Side, better: _Side, apart: Interval, lost: float, *, within: bool
) -> Finding:
    assumed = [] if within else ["two runs may have answered different prompts"]
    requests = min(worse.requests, better.requests)
    trust, because = judged(requests, apart, above=0.0, assumed=assumed)
    return Finding(
        id="modes_disagree",
        severity=Severity.HIGH,
        runs=(case.run.label,),
        title="Eager and graph execution disagree",
        statement=f"rounds yield {number(worse.mean_length)} tokens {worse.name} and "
        f"{number(better.mean_length)} {better.name}",
        evidence={
            "mean_length_worse": worse.mean_length,
            **ends("mean_length_worse", worse.interval),
            "mean_length_better": better.mean_length,
            **ends("mean_length_better", better.interval),
            "difference": better.mean_length - worse.mean_length,
            **ends("difference", apart),
            "lost": lost,
            "threshold": DISAGREE_ABOVE,
        },
        confidence=trust,
        because=because,
        advice=f"The drafter computes different results {worse.name}: a bug in the engine or in "
        "the model's code, not in the drafter's weights. Serve with the mode that works until it "
        "is fixed, and report it to vLLM with both runs; DRIFTSCOPE_RECORDING=shadow shows which "
        "chains differ.",
        option="--enforce-eager" if "eager" in better.name else None,
        cost_tps=case.cost_of(better.mean_length),
    )


def _pairs(case: Case) -> list[tuple[_Side, _Side, bool]]:
    """Return pairs to compare: groups of this run by execution, then this run with runs of the same
    models. The flag is True for pairs within the run."""
    groups = case.run.groups.execution
    sides = [
        _Side(
            name=f"in {group.name} execution",
            requests=group.requests,
            mean_length=group.mean_length,
            interval=group.mean_length_interval,
        )
        for group in groups
    ]
    within_run = [(a, b, True) for n, a in enumerate(sides) for b in sides[n + 1 :]]
    own = _of_run(case.run)
    return within_run + [
        (own, _of_run(other), False) for other in case.others if _twins(case, other)
    ]


def _of_run(run: RunSummary) -> _Side:
    return _Side(
        name=f"in mode {run.manifest.mode!r}",
        requests=run.requests,
        mean_length=run.acceptance.mean_length,
        interval=run.acceptance.mean_length_interval,
    )


def _twins(case: Case, other: RunSummary) -> bool:
    """Whether two runs have the same models and K, and differ in mode; True only for the run that
    accepts less."""
    mine, its = case.run.manifest, other.manifest
    alike = all(getattr(mine, name) == getattr(its, name) for name in ("target", "drafter"))
    less = case.run.acceptance.mean_length < other.acceptance.mean_length
    same_k = not case.run.mixed and case.run.ks == other.ks
    return alike and same_k and mine.mode != its.mode and less


ENTRIES = (
    Entry(
        id="modes_disagree",
        title="Eager and graph execution disagree",
        meaning="The same drafter accepts clearly less in one execution mode than in another, "
        "within a run or between two runs of the same models.",
        thresholds=(
            Threshold(
                name="DISAGREE_ABOVE",
                value=DISAGREE_ABOVE,
                means="difference in accepted tokens per round, over the larger",
                source="rounding changes single tokens; in a real case 0 % compared with 92 % were "
                "accepted (vllm#54997)",
            ),
        ),
        need=Need[Case](
            words="chains recorded in two modes, or a second run of the same models in another",
            met=lambda case: (
                len(case.run.groups.execution) > 1
                or any(
                    (o.manifest.target, o.manifest.drafter)
                    == (case.run.manifest.target, case.run.manifest.drafter)
                    and o.manifest.mode != case.run.manifest.mode
                    for o in case.others
                )
            ),
        ),
        rule=modes_disagree,
    ),
)
