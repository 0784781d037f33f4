"""Agreement of a drafter with its target at each depth, and what its loss is made of."""

from __future__ import annotations

from driftscope.metrics.definition import Definition

AGREEMENT = Definition(
    name="agreement",
    title="Agreement",
    meaning="Share of the positions at which the token drafted at this depth is the target's, "
    "whatever came before it in the chain.",
    unit="1",
    range="0 to 1",
    source="driftscope ablate",
)
LOSS_PARTS = Definition(
    name="decomposition",
    title="Parts of the loss of agreement",
    meaning="Agreement at depth 1 minus that at depth K, divided into what right tokens give back, "
    "what right states give back, and the rest. The first two are means over both orders.",
    unit="1",
    range="-1 to 1",
    source="driftscope ablate; the Shapley value of two factors",
)
