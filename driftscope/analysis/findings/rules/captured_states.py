"""Rule about the balance of the captured target layers at the drafter's fc."""

from __future__ import annotations

from driftscope.analysis.findings.catalogue_entry import Entry, Need, Threshold
from driftscope.analysis.findings.finding import Finding, Severity
from driftscope.analysis.findings.finding_confidence import ends, judged
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.findings.thresholds import UNBALANCED_ABOVE
from driftscope.analysis.number_words import between, listed, number, times


def captured_layers_unbalanced(case: Case) -> Finding | None:
    """Find that one captured layer dominates the others at the fc's input."""
    ratio, spread = case.run.groups.aux_ratio, case.run.groups.aux_ratio_interval
    if ratio is None or not ratio > UNBALANCED_ABOVE:
        return None
    normed = case.run.hidden.aux_norm_rms is not None
    rms = case.run.hidden.aux_norm_rms or case.run.hidden.aux_rms or ()
    trust, because = judged(case.run.requests, spread, above=UNBALANCED_ABOVE)
    return Finding(
        id="captured_layers_unbalanced",
        severity=Severity.MEDIUM,
        runs=(case.run.label,),
        title="The captured target layers are out of balance",
        statement=f"their RMS {'after' if normed else 'without'} a norm before the fc is "
        f"{listed([number(value) for value in rms])}: the largest is {times(ratio)} the "
        f"smallest{between(spread)}",
        evidence={
            "ratio": ratio,
            **ends("ratio", spread),
            **{f"rms_{n + 1}": value for n, value in enumerate(rms)},
            "threshold": UNBALANCED_ABOVE,
        },
        confidence=trust,
        because=because,
        advice="The norm's weights differ widely, or belong to other layers: compare the drafter's "
        "eagle_aux_hidden_state_layer_ids with its training."
        if normed
        else "Use a drafter with fc_norm (EAGLE-3.1), which scales each captured layer to the same "
        "size. If this one was trained with fc_norm or norm_before_fc, check that its config still "
        "says so, and that eagle_aux_hidden_state_layer_ids names the layers used in training.",
    )


ENTRIES = (
    Entry(
        id="captured_layers_unbalanced",
        title="The captured target layers are out of balance",
        meaning="The captured hidden states of the target reach the drafter's fc with such "
        "different sizes that the smallest is lost next to the largest.",
        thresholds=(
            Threshold(
                name="UNBALANCED_ABOVE",
                value=UNBALANCED_ABOVE,
                means="largest over smallest RMS of the captured layers, after their norm if any",
                source="at 10 the smaller layer has 1 % of the energy, which is near bfloat16's "
                "rounding error",
            ),
        ),
        need=Need[Case](
            words="the RMS of two or more captured target layers",
            met=lambda case: case.run.groups.aux_ratio is not None,
        ),
        rule=captured_layers_unbalanced,
    ),
)
