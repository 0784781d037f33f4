"""The sample of chains that are looked at one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.runs import Spec, write_run
from support.simulate import Truth, simulate

from driftscope.analysis.figures import verified_chains as module
from driftscope.analysis.figures.verified_chains import BANDS, answers, chain_sample, relations
from driftscope.analysis.statistics.association import Answer
from driftscope.metrics.attention import SELF
from driftscope.metrics.hidden import GROWTH
from driftscope.pipeline import summarise

REQUESTS = 5_000
PER_REQUEST = 100


def _run(requests: int = REQUESTS, length: int = 200, every: int = 10) -> Any:
    """Requests in random order of their numbers, which begin `every` steps apart."""
    begin = np.random.default_rng(1).permutation(requests) * every
    spans = np.stack([begin, begin + length], axis=1)
    return SimpleNamespace(recorded=np.full(requests, PER_REQUEST), drafted_in=spans)


def test_a_small_run_is_looked_at_whole() -> None:
    sample = chain_sample(_run(), REQUESTS * PER_REQUEST)
    assert sample.requests.tolist() == list(range(REQUESTS))
    assert sample.steps is None


def test_a_large_run_is_sampled_in_bands_over_all_of_its_time() -> None:
    run = _run()
    sample = chain_sample(run, 50_000)
    assert run.recorded[sample.requests].sum() == pytest.approx(50_000, rel=0.05)
    begin = np.sort(run.drafted_in[sample.requests, 0])
    bands = np.split(begin, np.flatnonzero(np.diff(begin) > 10) + 1)
    assert len(bands) == BANDS
    starts = np.array([band[0] for band in bands])
    assert np.diff(starts) == pytest.approx(REQUESTS * 10 / BANDS)


def test_its_steps_are_those_of_its_requests_and_no_others() -> None:
    run = _run()
    sample = chain_sample(run, 50_000)
    wanted: set[int] = set()
    for first, last in run.drafted_in[sample.requests].tolist():
        wanted.update(range(first, last + 1))
    assert sample.steps is not None
    assert sample.steps.tolist() == sorted(wanted)
    assert len(wanted) < REQUESTS * 10 / 2


def test_requests_that_are_chosen_among_others_are_some_of_them() -> None:
    run = _run()
    outer = chain_sample(run, 50_000).requests
    inner = chain_sample(run, 10_000, outer)
    assert set(inner.requests) < set(outer)
    assert run.recorded[inner.requests].sum() == pytest.approx(10_000, rel=0.05)


def test_steps_that_would_fill_the_memory_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _run()
    run.drafted_in[:, 1] = 2**62
    assert chain_sample(run, 50_000).steps is None
    monkeypatch.setattr(module, "MOST_STEPS", 10)
    assert chain_sample(_run(), 50_000).steps is None


def test_a_few_very_long_requests_are_sampled_as_requests() -> None:
    run = _run(requests=20)
    sample = chain_sample(run, 500)
    assert len(sample.requests) == 5


def test_reading_only_its_steps_changes_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run", Spec(requests=300))
    for name in (
        "driftscope.analysis.figures.verified_chains.COMPARED",
        "driftscope.analysis.figures.verified_chains.COMPARED",
        "driftscope.analysis.figures.verified_chains.CHAINS_WITHIN",
        "driftscope.analysis.figures.attention_drift.CHAINS_LOOKED_AT",
    ):
        monkeypatch.setattr(name, 500)
    in_steps = summarise(run, "run")
    monkeypatch.setattr(module, "MOST_STEPS", 0)
    in_all = summarise(run, "run")
    assert 0 < in_steps.recording.looked_at < 1_000
    assert in_steps == in_all


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
