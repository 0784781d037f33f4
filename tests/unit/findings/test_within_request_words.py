"""Clauses on what acceptance goes with inside the drafter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driftscope.analysis.figures.verified_chains import WithinRequest
from driftscope.analysis.statistics.association import Association
from driftscope.analysis.statistics.intervals import Interval
from driftscope.findings.rules_attention import clauses
from driftscope.metrics.attention import SELF
from driftscope.metrics.hidden import GROWTH


def _association(per_sd: float, half: float, p: float, sd: float) -> Association:
    interval = Interval(low=per_sd - half, high=per_sd + half)
    return Association(per_sd=per_sd, interval=interval, sd=sd, rows=900, clusters=40, p=p)


OWN = WithinRequest(
    measure=SELF.name,
    alone=_association(-0.017, 0.012, 0.005, 0.11),
    beyond_confidence=_association(-0.005, 0.011, 0.4, 0.11),
)
NONE = WithinRequest(
    measure=GROWTH.name, alone=_association(0.002, 0.01, 0.7, 0.08), beyond_confidence=None
)
OPEN = replace(OWN, alone=_association(-0.017, 0.04, 0.4, 0.11))
MISSING = replace(OWN, alone=None)


CLAUSES = {
    "less": (
        OWN,
        (
            "within a request, more attention on the chain itself goes with 1.7 points less "
            "acceptance (-2.9 to -0.5)"
        ),
    ),
    "no": (NONE, "acceptance within a request does not go with growth of the hidden state"),
    "open": (OPEN, None),
    "missing": (MISSING, None),
}


@pytest.mark.parametrize("name", CLAUSES)
def test_what_has_an_answer_has_a_clause_that_names_no_cause(name: str) -> None:
    relation, words = CLAUSES[name]
    found = clauses((relation,))
    assert found == ([words] if words else [])
    assert not any(word in str(found) for word in ("cost", "cause", "because"))
