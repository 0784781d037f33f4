"""Rule about an engine that returns wrong tokens, so that nothing else can be concluded."""

from __future__ import annotations

from driftscope.analysis.findings.catalogue_entry import Entry, Need
from driftscope.analysis.findings.finding import Finding, Severity, Trust
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.summary.sampling_mode import tokens_are_wrong, warmest

TITLE = "The engine returns wrong tokens at temperature > 0"


def wrong_tokens(case: Case) -> Finding | None:
    """Find that sampled requests were verified at temperatures that nobody asked for."""
    if not tokens_are_wrong(case.run):
        return None
    return Finding(
        id="wrong_tokens",
        severity=Severity.HIGH,
        runs=(case.run.label,),
        title=TITLE,
        statement="it does not divide by the temperature of a request when it verifies drafts, but "
        "by numbers that happen to be in memory",
        evidence={"temperature_highest": warmest(case.run)},
        confidence=Trust.HIGH,
        because="the probe ran the engine's own function at start-up, and its result was wrong",
        advice="Send requests at temperature 0, or serve with Triton for the CPU or on a GPU, and "
        "record again. Do not judge the drafter by this run.",
    )


ENTRIES = (
    Entry(
        id="wrong_tokens",
        title=TITLE,
        meaning="vLLM's CPU build, without Triton for the CPU, verifies drafts at wrong "
        "temperatures (vllm.utils.cpu_triton_utils, 0.32.0). Answers to sampled requests are then "
        "noise, and hardly a draft is accepted. No other finding is made about such a run.",
        thresholds=(),
        need=Need[Case](
            words="requests whose temperature was recorded",
            met=lambda case: warmest(case.run) is not None,
        ),
        rule=wrong_tokens,
    ),
)
