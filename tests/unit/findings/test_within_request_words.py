"""Sentences on what acceptance goes with inside the drafter."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.runs import Spec, write_run

from driftscope.analysis.figures.verified_chains import WithinRequest
from driftscope.analysis.statistics.association import Association
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.rules_attention import CAVEAT, within_request_sentences
from driftscope.metrics.attention import SELF
from driftscope.metrics.hidden import GROWTH
from driftscope.pipeline import summarise


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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    return summarise(write_run(tmp_path_factory.mktemp("run") / "run", Spec()), "run")


SENTENCES = {
    "less": (
        "With 11.0 points more attention on the chain itself, a draft token is accepted 1.7 points "
        "less often (-2.9 to -0.5); beyond the drafter's own confidence it is -0.5 points (-1.6 to "
        "+0.6)."
    ),
    "no": (
        "Acceptance does not go with growth of the hidden state: a change of 2 points or more for "
        "a hidden state that has grown 8% more can be excluded (-0.8 to +1.2 points)."
    ),
    "open": (
        "Whether acceptance goes with attention on the chain itself cannot be told (-5.7 to +2.3 "
        "points for 11.0 points more attention on the chain itself); about 160 requests would "
        "tell, 40 were recorded."
    ),
    "missing": (
        "Whether acceptance goes with attention on the chain itself cannot be told: fewer than 10 "
        "requests, or fewer than 200 draft tokens in which both vary."
    ),
}
RELATIONS = {"less": OWN, "no": NONE, "open": OPEN, "missing": MISSING}


@pytest.mark.parametrize("name", SENTENCES)
def test_each_answer_has_a_sentence(run: RunSummary, name: str) -> None:
    found = within_request_sentences([replace(run, within_request=(RELATIONS[name],))])
    assert found == f"{SENTENCES[name]} {CAVEAT}"


def test_runs_are_named_if_there_are_several(run: RunSummary) -> None:
    first = replace(run, label="a", within_request=(NONE,))
    assert (
        within_request_sentences([first, replace(first, label="b")]).count("Acceptance does not go")
        == 2
    )
    assert within_request_sentences([first, replace(first, label="b")]).startswith("a: Acceptance")


def test_no_sentence_says_cause(run: RunSummary) -> None:
    for relation in RELATIONS.values():
        words = within_request_sentences([replace(run, within_request=(relation,))]).replace(
            CAVEAT, ""
        )
        assert not any(word in words for word in ("cost", "cause", "because"))
