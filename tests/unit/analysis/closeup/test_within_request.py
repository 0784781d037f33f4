"""How acceptance goes with the drafter's internals within requests, from recorded chains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.runs import Spec, write_run
from support.simulate import Truth, simulate

from driftscope.analysis.figures.verified_chains import answers, relations
from driftscope.analysis.statistics.association import Answer
from driftscope.metrics.attention import SELF
from driftscope.metrics.hidden import GROWTH
from driftscope.pipeline import summarise

DEPTHS = 4


def _chains(effect: float, requests: int = 40, rounds: int = 40) -> pa.Table:
    """Chains in which the mass on the chain itself lowers the logit of acceptance by `effect`."""
    random = np.random.RandomState(1)
    rows: list[dict[str, Any]] = []
    for request in range(requests):
        for position in range(rounds):
            own = random.normal(0.3, 0.05, DEPTHS)
            logit = 1.0 + effect * (own - 0.3) / 0.05
            hit = random.random_sample(DEPTHS) < 1 / (1 + np.exp(-logit))
            accepted = int(np.minimum.accumulate(hit).sum())
            rows.append(_row(request, position, accepted, own))
    return pa.Table.from_pylist(rows)


def _row(request: int, position: int, accepted: int, own: np.ndarray) -> dict[str, Any]:
    row = {"cluster": request, "position": position, "accepted": accepted, "drawn": DEPTHS}
    for depth in range(DEPTHS):
        row |= {f"self_mass_{depth}": own[depth], f"fed_rms_{depth}": 1.0 + depth}
        row |= {f"top1_{depth}": 0.5, f"entropy_{depth}": 1.0}
    return row


@pytest.mark.parametrize(("effect", "answer"), [(-0.5, Answer.LESS), (0.5, Answer.MORE)])
def test_the_mass_of_the_query_that_proposed_a_token_counts(effect: float, answer: Answer) -> None:
    own, growth = relations(_chains(effect), DEPTHS)
    assert (own.measure, growth.measure) == (SELF.name, GROWTH.name)
    assert answers([own, growth]) == (answer, Answer.CANNOT_TELL)
    assert own.alone is not None and own.beyond_confidence is not None
    assert own.alone.sd == pytest.approx(0.05, rel=0.05)
    assert own.beyond_confidence.per_sd == pytest.approx(own.alone.per_sd)
    assert growth.alone is None, "the state grows alike in all chains"


def test_only_tokens_that_verification_reached_count() -> None:
    chains = _chains(-0.5)
    own, _ = relations(chains, DEPTHS)
    accepted = np.asarray(chains.column("accepted"))
    assert own.alone is not None
    assert own.alone.rows <= np.minimum(accepted + 1, DEPTHS).sum()


def _runs(folder: Path) -> Iterator[Path]:
    yield simulate(folder / "simulated", Truth(k=4, requests=30, rounds=25))
    yield write_run(folder / "without attention", Spec(heads=0))


def test_a_run_has_a_relation_for_each_measure_that_it_recorded(tmp_path: Path) -> None:
    simulated, bare = (summarise(run, "run").within_request for run in _runs(tmp_path))
    assert [each.measure for each in simulated] == [SELF.name, GROWTH.name]
    assert SELF.name not in [each.measure for each in bare]
