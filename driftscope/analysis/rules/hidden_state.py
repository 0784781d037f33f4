"""Does the state that the drafter feeds itself keep its size?"""

from __future__ import annotations

from driftscope.analysis.finding import Finding, Severity
from driftscope.analysis.summary import RunSummary
from driftscope.analysis.words import between, number, times

GROWS_ABOVE = 1.5
"""Fed RMS at depth K over depth 1. In the paper (arXiv 2605.09992) a pre-norm EAGLE-3 drafter
reaches 3.6 at depth 8 and a post-norm one 0.99; the shipped pair 2.8 and 1.0 (model cards). 1.5 is
far from both."""
STABLE_BELOW = 1.2
"""Same sources. Between the two thresholds nothing is said."""


def hidden_state_grows(run: RunSummary) -> Finding | None:
    """The residual path between chain steps is not normalised."""
    if run.hidden.growth is None or run.hidden.growth <= GROWS_ABOVE:
        return None
    return _finding(
        run,
        name="hidden_state_grows",
        severity=Severity.HIGH,
        title="The hidden state grows with depth",
        advice="This is the cause that the attention-drift paper names: nothing normalises the "
        "state between the steps of a chain. Use a drafter with norm_output and fc_norm "
        "(EAGLE-3.1) or retrain with them; no setting of the server mends it. If this drafter was "
        "trained with norm_output, check that its config still says so. Until then draft fewer "
        "tokens.",
    )


def hidden_state_stable(run: RunSummary) -> Finding | None:
    """The state keeps its size, as a drafter with `norm_output` should."""
    if run.k < 2 or run.hidden.growth is None or run.hidden.growth >= STABLE_BELOW:
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
    assert fed is not None and grown is not None
    return Finding(
        id=name,
        severity=severity,
        runs=(run.label,),
        title=title,
        statement=f"the state fed to the next depth has RMS {number(fed[0])} at depth 1 and "
        f"{number(fed[-1])} at depth {run.k}: {times(grown)}{between(spread)}",
        evidence={
            "fed_rms_first": fed[0],
            "fed_rms_last": fed[-1],
            "growth": grown,
            "growth_low": spread.low if spread else None,
            "growth_high": spread.high if spread else None,
            "threshold": GROWS_ABOVE if name == "hidden_state_grows" else STABLE_BELOW,
        },
        advice=advice,
    )
