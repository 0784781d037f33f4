"""Rules about the size of the state that the drafter feeds itself."""

from __future__ import annotations

from driftscope.analysis.findings.acceptance_losses import loss_of
from driftscope.analysis.findings.catalogue_entry import Deciding, Entry, Need, Threshold
from driftscope.analysis.findings.finding import Finding, Severity
from driftscope.analysis.findings.finding_confidence import ends, judged
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.findings.thresholds import GROWS_ABOVE
from driftscope.analysis.number_words import between, number, times
from driftscope.analysis.statistics.intervals.interval import Interval
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics.hidden import per_depth

STABLE_BELOW = 1.026
"""Growth of the fed state per depth below which it is stable: 1.2 by depth 8. Sources: see
GROWS_ABOVE. Between the two thresholds nothing is reported."""


def hidden_state_grows(case: Case) -> Finding | None:
    """Find that the fed state grows, as it does if the residual path between chain steps is not
    normalised."""
    run = case.run
    if run.hidden.growth is None or per_depth(run.hidden.growth, run.depths) <= GROWS_ABOVE:
        return None
    advice = _NORMALISE if _loses(case) else _TO_KNOW
    return _finding(
        run,
        name="hidden_state_grows",
        severity=_severity(case),
        title="The hidden state grows with depth",
        advice=_NOT_APPLIED if _flagged(run) else advice,
    )


def _severity(case: Case) -> Severity:
    """Return high only if acceptance is lost along with the growth, and medium if the growth is a
    fault: it is a property of every EAGLE-3 drafter without `norm_output`, even of a healthy
    one."""
    if _loses(case):
        return Severity.HIGH
    return Severity.MEDIUM if _flagged(case.run) else Severity.INFO


def _loses(case: Case) -> bool:
    return case.accepts_less or loss_of(case.run) is not None


def _flagged(run: RunSummary) -> bool:
    return run.manifest.norm_flags.get("norm_output", False)


_NORMALISE = (
    "Use a drafter with norm_output and fc_norm (EAGLE-3.1), or retrain this one with them: "
    "nothing normalises the state between the steps of its chain, and no server setting does. If "
    "this drafter was trained with norm_output, check that its config still says so. Until then "
    "draft fewer tokens. The paper finds this growth together with attention drift (arXiv "
    "2605.09992); this run does not show that it costs acceptance: `driftscope ablate DRAFTER "
    "--target TARGET` does."
)
_TO_KNOW = (
    "Nothing to do now: every EAGLE-3 drafter without norm_output does this, and no loss of "
    "acceptance is visible. To see whether it costs any, record a drafter with norm_output and "
    "fc_norm (EAGLE-3.1) on the same prompts and compare the two."
)
_NOT_APPLIED = (
    "The config sets norm_output, but the state grows as it does without it: the engine does not "
    "apply the flag. Check that the config's field has the name that the engine reads, and try "
    "another version of the engine. Until then draft fewer tokens."
)


def hidden_state_stable(case: Case) -> Finding | None:
    """Find that the state keeps its size, as it should in a drafter with `norm_output`."""
    run = case.run
    growth = run.hidden.growth
    if run.depths < 2 or growth is None or per_depth(growth, run.depths) >= STABLE_BELOW:
        return None
    return _finding(
        run,
        name="hidden_state_stable",
        severity=Severity.GOOD,
        title="The hidden state keeps its size over depth",
        advice="Nothing to do.",
    )


def _finding(
    run: RunSummary,
    *,
    name: str,
    severity: Severity,
    title: str,
    advice: str,
) -> Finding:
    fed, grown, spread = run.hidden.fed_rms, run.hidden.growth, run.hidden.growth_interval
    assert fed is not None and grown is not None  # noqa: S101  callers look at growth
    grows, each_depth = name == "hidden_state_grows", _per_depth(spread, run.depths)
    trust, because = judged(
        run.requests,
        each_depth,
        above=GROWS_ABOVE if grows else None,
        below=None if grows else STABLE_BELOW,
    )
    return Finding(
        id=name,
        severity=severity,
        runs=(run.label,),
        title=title,
        statement=f"the state fed to the next depth has RMS {number(fed[0])} at depth 1 and "
        f"{number(fed[-1])} at depth {run.depths}: {times(grown)}{between(spread)}, "
        f"{times(per_depth(grown, run.depths))} per depth",
        evidence={
            "fed_rms_first": fed[0],
            "fed_rms_last": fed[-1],
            "growth": grown,
            **ends("growth", spread),
            "growth_per_depth": per_depth(grown, run.depths),
            **ends("growth_per_depth", each_depth),
            "threshold": GROWS_ABOVE if grows else STABLE_BELOW,
        },
        confidence=trust,
        because=because,
        advice=advice,
    )


def _per_depth(spread: Interval | None, depths: int) -> Interval | None:
    """Return the interval of the growth per depth."""
    if spread is None or not spread.low > 0:
        return None
    return Interval.of(per_depth(spread.low, depths), per_depth(spread.high, depths))


def _growth(case: Case, bound: float) -> Deciding | None:
    run = case.run
    if run.hidden.growth is None:
        return None
    return Deciding(
        value=per_depth(run.hidden.growth, run.depths),
        interval=_per_depth(run.hidden.growth_interval, run.depths),
        bound=bound,
    )


_NEED = Need[Case](
    words="the RMS of the state fed forward, at two depths or more",
    met=lambda case: case.run.depths > 1 and case.run.hidden.growth is not None,
)

ENTRIES = (
    Entry(
        id="hidden_state_grows",
        title="The hidden state grows with depth",
        meaning="The state that the drafter feeds itself grows with every depth, which the paper "
        "finds together with attention drift. The severity is high only if acceptance is lost as "
        "well, medium if the config sets norm_output; otherwise the growth is a property of the "
        "drafter, reported for information.",
        thresholds=(
            Threshold(
                name="GROWS_ABOVE",
                value=GROWS_ABOVE,
                means="RMS of the state fed forward over that of the depth before, mean over the "
                "chain",
                source="1.5 by depth 8: far from both 1.0 (post-norm) and 3.6 (pre-norm, arXiv "
                "2605.09992) or 2.8 (shipped EAGLE-3)",
            ),
        ),
        need=_NEED,
        rule=hidden_state_grows,
        deciding=lambda case: _growth(case, GROWS_ABOVE),
    ),
    Entry(
        id="hidden_state_stable",
        title="The hidden state keeps its size over depth",
        meaning="The state fed forward is as large at depth K as at depth 1, as norm_output should "
        "make it.",
        thresholds=(
            Threshold(
                name="STABLE_BELOW",
                value=STABLE_BELOW,
                means="RMS of the state fed forward over that of the depth before, mean over the "
                "chain",
                source="1.2 by depth 8, same sources; between the two thresholds nothing is "
                "reported",
            ),
        ),
        need=_NEED,
        rule=hidden_state_stable,
        deciding=lambda case: _growth(case, STABLE_BELOW),
    ),
)
