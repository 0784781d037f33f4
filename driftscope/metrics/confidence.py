"""How sure the drafter is of its own tokens."""

from __future__ import annotations

from driftscope.metrics.definition import Definition

TOP1 = Definition(
    name="confidence.top1",
    title="Confidence",
    meaning="Largest probability in the drafter's softmax, averaged over recorded chains.",
    unit="1",
    range="0 to 1",
    source="driftscope",
)
ENTROPY = Definition(
    name="confidence.entropy",
    title="Entropy",
    meaning="Entropy of the same softmax. Higher means less sure.",
    unit="nat",
    range="0 to log(draft vocabulary)",
    source="driftscope",
)
