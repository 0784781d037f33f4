"""Each way to lose acceptance has causes of its own, ordered by what the run supports."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from support.runs import Spec, write_run

from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.causes import CAUSES, Loss, loss_of
from driftscope.findings.finding import Finding
from driftscope.pipeline import Analysis, conclude, summarise
from driftscope.trace.reader import read_trace

PUBLISHED = Path(__file__).parents[1] / "metrics" / "data" / "acceptance.json"
NORM_FLAGS, LAYERS = "norm flags", "captured"
WAYS = {
    Loss.NOTHING: (0.0, 0.0, 0.0, 0.0),
    Loss.LOW: (0.2, 0.6, 0.6, 0.6),
    Loss.FALLS: (0.8, 0.2, 0.5, 0.5),
    Loss.STOPS: (0.8, 0.8, 0.0, 0.0),
}
"""Conditional acceptance of a run that loses it in this way."""
FINDINGS = {
    Loss.NOTHING: "nothing_accepted",
    Loss.LOW: "acceptance_low",
    Loss.FALLS: "acceptance_falls",
    Loss.STOPS: "acceptance_falls",
}


def _summary(folder: Path, spec: Spec, name: str = "run") -> RunSummary:
    return summarise(read_trace(write_run(folder / name, spec)), name)


def _one(found: Analysis, name: str) -> Finding:
    (finding,) = (f for f in found.findings if f.id == name)
    return finding


def test_the_lists_differ() -> None:
    for a, b in combinations(Loss, 2):
        assert CAUSES[a] != CAUSES[b]
        assert {c.words for c in CAUSES[a]} != {c.words for c in CAUSES[b]}


@pytest.mark.parametrize("loss", Loss)
def test_a_run_gets_the_list_of_its_way(tmp_path: Path, loss: Loss) -> None:
    run = _summary(tmp_path, Spec(conditional=WAYS[loss], rounds=30))
    assert loss_of(run) is loss
    finding = _one(conclude([run]), FINDINGS[loss])
    said = {each.cause for each in (*finding.causes, *finding.ruled_out)}
    assert said == {cause.words for cause in CAUSES[loss]}
    assert all(each.check for each in finding.causes)


def test_a_healthy_run_gets_none(tmp_path: Path) -> None:
    run = _summary(tmp_path, Spec(conditional=(0.8, 0.7, 0.65, 0.6), rounds=30))
    assert loss_of(run) is None
    assert not any(f.causes for f in conclude([run]).findings)


def test_no_published_drafter_that_lives_is_called_low_or_falling() -> None:
    """By its rates alone: each live depth keeps more than the bounds."""
    from driftscope.findings.causes import FALLS_BELOW, LOW_BELOW, STOPS_BELOW

    for vector in json.loads(PUBLISHED.read_text()):
        rates = np.array(vector.get("marginal_accept_rates", ()))
        if not len(rates):
            continue
        kept = rates[1:] / np.where(rates[:-1] > 0, rates[:-1], 1)
        live = kept[rates[:-1] > 0]
        assert rates[0] > LOW_BELOW, vector["id"]
        assert all(each > FALLS_BELOW * rates[0] or each < STOPS_BELOW for each in live)


def test_growth_with_norm_output_on_means_that_it_is_not_applied(tmp_path: Path) -> None:
    spec = Spec(conditional=WAYS[Loss.FALLS], rounds=30, growth=3.0, norm_output=True)
    first = _one(conclude([_summary(tmp_path, spec)]), "acceptance_falls").causes[0]
    assert NORM_FLAGS in first.cause
    assert first.supported
    assert "does not apply the flag" in first.seen


def test_other_layers_than_the_better_run_s_come_first(tmp_path: Path) -> None:
    good = _summary(tmp_path, Spec(rounds=30), "good")
    bad = _summary(tmp_path, Spec(rounds=30, conditional=WAYS[Loss.LOW], aux_layers=(2, 3, 4)))
    first = _one(conclude([bad], (), good), "acceptance_low").causes[0]
    assert LAYERS in first.cause
    assert first.seen == "this run captures layers 2, 3, 4, good captures 1, 2, 3"


def test_what_both_runs_have_in_common_is_ruled_out(tmp_path: Path) -> None:
    good = _summary(tmp_path, Spec(rounds=30), "good")
    bad = _summary(tmp_path, Spec(rounds=30, conditional=WAYS[Loss.NOTHING]))
    finding = _one(conclude([bad], (), good), "nothing_accepted")
    out = {each.cause: each.seen for each in finding.ruled_out}
    assert any(LAYERS in cause for cause in out)
    assert any("another target" in cause for cause in out)
    assert all(out.values())
    assert "d2t" in finding.causes[0].cause, "its states and its confidence are the better run's"


def test_a_worse_run_beside_it_rules_nothing_out(tmp_path: Path) -> None:
    worse = _summary(tmp_path, Spec(rounds=30, conditional=WAYS[Loss.NOTHING]), "worse")
    low = _summary(tmp_path, Spec(rounds=30, conditional=WAYS[Loss.LOW]))
    finding = _one(conclude([low], (), worse), "acceptance_low")
    assert not any("worse" in each.seen for each in (*finding.causes, *finding.ruled_out))


def test_a_graph_that_loses_what_eager_rounds_keep(tmp_path: Path) -> None:
    run = _summary(tmp_path, Spec(conditional=WAYS[Loss.LOW], rounds=30))
    groups = tuple(
        replace(run.groups.context[0], name=name, mean_length=length)
        for name, length in (("eagerly", 3.0), ("in a full graph", 1.1))
    )
    run = replace(run, groups=replace(run.groups, execution=groups))
    supported = [e for e in _one(conclude([run]), "acceptance_low").causes if e.supported]
    assert any("in a graph" in each.cause for each in supported)


def test_guesses_that_are_looked_up_have_no_weights_to_be_wrong(tmp_path: Path) -> None:
    run = _summary(tmp_path, Spec(conditional=WAYS[Loss.NOTHING], rounds=30))
    run = replace(run, manifest=replace(run.manifest, method="ngram"))
    assert _one(conclude([run]), "nothing_accepted").causes == ()
