"""Section parts on the drafter's confidence."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.number_words import listed, number
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics.confidence import ENTROPY, TOP1
from driftscope_reports.drawing.chart import Unit
from driftscope_reports.html.parts.run_series import depth_chart, line
from driftscope_reports.model import Picture


def pictures(runs: Sequence[RunSummary]) -> list[Picture]:
    """Return the pictures of confidence by depth, if it was recorded."""
    top1 = [(i, r.label, v) for i, r in enumerate(runs) if (v := r.confidence.top1) is not None]
    entropy = [
        (i, r.label, v) for i, r in enumerate(runs) if (v := r.confidence.entropy) is not None
    ]
    out = []
    if top1:
        out.append(
            Picture(
                id="confidence-top1",
                title=f"The drafter's confidence goes from {_ends(top1, len(runs))}",
                how="This is the drafter's own confidence in its tokens, not whether they were "
                "accepted. A drafter that stays confident while acceptance falls is miscalibrated.",
                chart=depth_chart(
                    runs,
                    [line(*each, runs[each[0]].spread.get("top1")) for each in top1],
                    "largest probability",
                    Unit.SHARE,
                ),
                definitions=(TOP1,),
            )
        )
    if entropy:
        out.append(
            Picture(
                id="confidence-entropy",
                title="The entropy of the drafter's distribution, in nats, goes from "
                f"{_ends(entropy, len(runs))}",
                how="How widely the drafter's distribution is spread over its vocabulary. It is "
                "shown for completeness: entropy has no stable relation to acceptance.",
                chart=depth_chart(
                    runs,
                    [line(*each, runs[each[0]].spread.get("entropy")) for each in entropy],
                    "nats",
                ),
                definitions=(ENTROPY,),
            )
        )
    return out


def _ends(lines: Sequence[tuple[int, str, Sequence[float]]], runs: int) -> str:
    return listed(
        [
            f"{number(v[0])} to {number(v[-1])}{f' ({label})' if runs > 1 else ''}"
            for _, label, v in lines
        ]
    )
