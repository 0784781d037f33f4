"""Rules about the size of the state that the drafter feeds itself."""

from __future__ import annotations

from driftscope.analysis.findings.acceptance_losses import loss_of
from driftscope.analysis.findings.catalogue_entry import Entry, Need, Threshold
from driftscope.analysis.findings.finding import Finding, Severity
from driftscope.analysis.findings.finding_confidence import ends, judged
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.findings.thresholds import GROWS_ABOVE
from driftscope.analysis.number_words import between, number, times
from driftscope.analysis.summary.run_summary import RunSummary

STABLE_BELOW = 1.2
"""Growth of the fed state below which it is stable. Sources: see GROWS_ABOVE. Between the two
thresholds nothing is reported."""


def hidden_state_grows(case: Case) -> Finding | None:
    """Find that the fed state grows, as it does if the residual path between chain steps is not
    normalised."""
    run = case.run
    if run.hidden.growth is None or run.hidden.growth <= GROWS_ABOVE:
        return None
    matters = _matters(case)
    advice = _NORMALISE if matters else _TO_KNOW
    return _finding(
        run,
        name="hidden_state_grows",
        severity=Severity.HIGH if matters else Severity.INFO,
        title="The hidden state grows with depth",
        advice=_NOT_APPLIED if run.manifest.norm_flags.get("norm_output") else advice,
    )


def _matters(case: Case) -> bool:
    """Whether acceptance is lost along with the growth, or the growth is a fault.

    Growth is a property of every EAGLE-3 drafter without `norm_output`, even of a healthy one.
    """
    flag = case.run.manifest.norm_flags.get("norm_output", False)
    return flag or case.accepts_less or loss_of(case.run) is not None


_NORMALISE = (
    "This is the cause that the attention-drift paper names: nothing normalises the state between "
    "the steps of a chain. Use a drafter with norm_output and fc_norm (EAGLE-3.1) or retrain with "
    "them; no setting of the server fixes it. If this drafter was trained with norm_output, check "
    "that its config still says so. Until then draft fewer tokens."
)
_TO_KNOW = (
    "Nothing to do now: every EAGLE-3 drafter without norm_output does this, and no loss of "
    "acceptance shows beside it. To see whether it costs any, record a drafter with norm_output "
    "and fc_norm (EAGLE-3.1) on the same prompts, and compare."
)
_NOT_APPLIED = (
    "The config says norm_output and the state grows as without it: the engine does not apply the "
    "flag. Check that the config's field has the name that the engine reads, and try another "
    "version of the engine; until then draft fewer tokens."
)


def hidden_state_stable(case: Case) -> Finding | None:
    """Find that the state keeps its size, as it should in a drafter with `norm_output`."""
    run = case.run
    if run.depths < 2 or run.hidden.growth is None or run.hidden.growth >= STABLE_BELOW:
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
    grows = name == "hidden_state_grows"
    trust, because = judged(
        run.requests,
        spread,
        above=GROWS_ABOVE if grows else None,
        below=None if grows else STABLE_BELOW,
    )
    return Finding(
        id=name,
        severity=severity,
        runs=(run.label,),
        title=title,
        statement=f"the state fed to the next depth has RMS {number(fed[0])} at depth 1 and "
        f"{number(fed[-1])} at depth {run.depths}: {times(grown)}{between(spread)}",
        evidence={
            "fed_rms_first": fed[0],
            "fed_rms_last": fed[-1],
            "growth": grown,
            **ends("growth", spread),
            "threshold": GROWS_ABOVE if grows else STABLE_BELOW,
        },
        confidence=trust,
        because=because,
        advice=advice,
    )


_NEED = Need[Case](
    words="the RMS of the state fed forward, at two depths or more",
    met=lambda case: case.run.depths > 1 and case.run.hidden.growth is not None,
)

ENTRIES = (
    Entry(
        id="hidden_state_grows",
        title="The hidden state grows with depth",
        meaning="The state that the drafter feeds itself gets larger with every depth: the cause "
        "of attention drift that the paper names. High where acceptance is lost beside it, or the "
        "config says norm_output; else a property of the drafter, to know of.",
        thresholds=(
            Threshold(
                name="GROWS_ABOVE",
                value=GROWS_ABOVE,
                means="RMS of the state fed forward, depth K over depth 1",
                source="far from both 3.6 (pre-norm, arXiv 2605.09992) or 2.8 (shipped EAGLE-3) "
                "and 1.0 (post-norm)",
            ),
        ),
        need=_NEED,
        rule=hidden_state_grows,
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
                means="RMS of the state fed forward, depth K over depth 1",
                source="same sources; between the two thresholds nothing is said",
            ),
        ),
        need=_NEED,
        rule=hidden_state_stable,
    ),
)
