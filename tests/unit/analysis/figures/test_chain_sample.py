"""The sample of chains that are looked at one by one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.runs import Spec, write_run

from driftscope.analysis.figures import verified_chains as module
from driftscope.analysis.figures.verified_chains import BANDS, chain_sample
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
