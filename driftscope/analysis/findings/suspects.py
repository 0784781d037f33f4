"""Causes to check in a run that loses acceptance, those that the run supports first."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.analysis.compare.run_comparison import accepts_less
from driftscope.analysis.figures.side import UNPAIRED
from driftscope.analysis.findings.acceptance_losses import Loss
from driftscope.analysis.findings.causes import CAUSES, WITHOUT_WEIGHTS
from driftscope.analysis.findings.evidence import Scene, Verdict
from driftscope.analysis.findings.finding import Suspect
from driftscope.analysis.findings.finding_inputs import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspects:
    """Causes to check, most likely first, and causes that are ruled out."""

    causes: tuple[Suspect, ...] = ()
    ruled_out: tuple[Suspect, ...] = ()


def suspects_of(case: Case, loss: Loss | None) -> Suspects:
    """Return the causes of `loss`; none if it is None, or if the method has no weights."""
    if loss is None or case.run.manifest.method in WITHOUT_WEIGHTS:
        return Suspects()
    comparison = case.comparison
    scene = Scene(
        run=case.run,
        loss=loss,
        better=case.reference if accepts_less(comparison) else None,
        same_prompts=comparison is not None and comparison.pairing != UNPAIRED,
    )
    looked = [(cause, cause.look(scene)) for cause in CAUSES[loss]]
    by_verdict = {
        verdict: tuple(
            Suspect(
                cause=cause.words,
                check=cause.check,
                seen=look.words,
                supported=verdict in (Verdict.SHOWN, Verdict.SUPPORTED),
            )
            for cause, look in looked
            if look.verdict is verdict
        )
        for verdict in Verdict
    }
    return Suspects(
        causes=tuple(
            each
            for verdict in (Verdict.SHOWN, Verdict.SUPPORTED, Verdict.OPEN)
            for each in by_verdict[verdict]
        ),
        ruled_out=by_verdict[Verdict.RULED_OUT],
    )


def in_order(suspects: Suspects) -> str:
    """Return the causes as the last sentence of an advice; "" without any."""
    if not suspects.causes:
        return ""
    return f" Check, most likely first: {'; '.join(each.cause for each in suspects.causes)}."
