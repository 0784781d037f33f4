"""Live interventions: chains that are not served are the reference's, and change no output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engine_process.job import Job, K, Outcome, run_jobs
from verification.shadow import ALWAYS, JOBS, SHADOW, WITHOUT, compare
from verification.situations import SITUATION_JOBS
from verification.truth import compare as compare_recorded

from driftscope.trace.read.reader import read_trace
from driftscope.vocabulary import HIDE_CHAIN, LIVE_INTERVENTIONS, PIN_SIZE
from engines.test_truth import MASS_TOLERANCE, RMS_TOLERANCE

pytestmark = pytest.mark.vllm
CHAINS = 100
"""Least number of chains of each intervention that are compared."""
OTHERS = {
    "raising": Job(
        drafter="eagle31",
        requests=12,
        probe={**SHADOW, "SHADOW_EVERY": "2", "EVERY": "3", "TEST_RAISE": "after"},
        sizes=(8, 1),
    ),
    "beside shadow recording": Job(
        drafter="eagle31",
        requests=12,
        probe={**SHADOW, "SHADOW_EVERY": "2", "EVERY": "2", "RECORDING": "shadow"},
        sizes=(8, 1),
    ),
}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Outcome by name of the job."""
    folder: Path = tmp_path_factory.mktemp("shadow")
    return run_jobs({**JOBS, **OTHERS}, folder)


@pytest.mark.parametrize("name", [*WITHOUT, *OTHERS])
def test_the_served_output_is_token_identical(engines: dict[str, Outcome], name: str) -> None:
    on, off = engines[name], engines[WITHOUT.get(name, "off eagle31")]
    for batch in range(len(on.job.sizes)):
        assert on.tokens(batch) == off.tokens(batch)


@pytest.mark.parametrize("name", WITHOUT)
def test_chains_and_their_agreement_are_the_references(
    engines: dict[str, Outcome], name: str
) -> None:
    for intervention, found in compare(engines[name]).items():
        assert found.tokens_equal == found.chains >= CHAINS, intervention
        assert found.agreed_equal == found.served_equal == found.whole >= CHAINS, intervention
        if (intervention, engines[name].job.drafter) != ("pin-size", "eagle31"):
            # EAGLE 3.1 feeds a state of nearly constant size.
            assert found.changed > CHAINS // 2, intervention


@pytest.mark.parametrize("name", [*WITHOUT, "beside shadow recording"])
def test_the_served_chain_agrees_as_far_as_the_engine_accepted(
    engines: dict[str, Outcome], name: str
) -> None:
    trace = read_trace(engines[name].run)
    assert not any(status.errors or status.dropped for status in trace.statuses)
    accepted = {
        (row["request"], row["position"]): row["accepted"]
        for row in trace.verify.to_pylist()
        if row["drafted"]
    }
    rows = trace.shadow.to_pylist()
    offered = {PIN_SIZE} if engines[name].job.runner == "v2" else set(LIVE_INTERVENTIONS)
    assert {row["intervention"] for row in rows} == offered
    judged = [row for row in rows if row["known"] == K]
    assert len(judged) >= CHAINS
    for row in judged:
        assert row["served_agreed"] == accepted[row["request"], row["position"]]


def test_an_error_ends_the_shadow_and_nothing_else(engines: dict[str, Outcome]) -> None:
    trace = read_trace(engines["raising"].run)
    errors = {hook: n for status in trace.statuses for hook, n in status.errors.items()}
    assert errors["shadow_chain"] == 1
    assert trace.shadow.num_rows == 0
    assert trace.verify.num_rows > 0


def test_recorded_chains_are_the_references_beside_shadow_rounds(
    engines: dict[str, Outcome],
) -> None:
    """Shadow chains leave nothing in the buffers of the recorded ones of the same steps."""
    truth = compare_recorded(engines["shadow eagle3"])
    assert truth.chains == truth.drafted_equal >= CHAINS // 2
    assert truth.mass_error < MASS_TOLERANCE
    assert truth.rms_error < RMS_TOLERANCE


def test_v2_drafts_under_pin_size_and_says_that_hide_chain_does_not_apply(
    engines: dict[str, Outcome],
) -> None:
    outcome = engines["shadow v2"]
    assert list(compare(outcome)) == [PIN_SIZE]
    (note,) = [n for n in read_trace(outcome.run).manifest.notes if "not applicable" in n]
    assert f"{HIDE_CHAIN}: not applicable" in note
    assert note in outcome.log


SITUATIONS = ("tight v1", "flows v1")


@pytest.fixture(scope="module")
def situations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Engines stepped by hand: chunked prompts, preemption, prefix cache, aborts, changing K."""
    jobs = {}
    for name in SITUATIONS:
        off = SITUATION_JOBS[f"{name} off"]
        jobs |= {f"{name} off": off, name: replace(off, probe=ALWAYS)}
    return run_jobs(jobs, tmp_path_factory.mktemp("situations"))


def outputs(outcome: Outcome) -> dict[str, Any]:
    return {name: one for batch in outcome.batches for name, one in batch["requests"].items()}


@pytest.mark.parametrize("name", SITUATIONS)
def test_no_situation_changes_the_output_or_is_counted_wrongly(
    situations: dict[str, Outcome], name: str
) -> None:
    on, off = situations[name], situations[f"{name} off"]
    assert outputs(on) == outputs(off)
    trace = read_trace(on.run)
    assert not any(status.errors or status.dropped for status in trace.statuses)
    verified = {
        (row["request"], row["position"]): row for row in trace.verify.to_pylist() if row["drafted"]
    }
    rows = trace.shadow.to_pylist()
    judged = [
        (row, verified[key])
        for row in rows
        if (key := (row["request"], row["position"])) in verified and row["known"] == row["k"]
    ]
    assert len(judged) > CHAINS
    for row, round_ in judged:
        # The engine may verify fewer tokens than were drafted, near a limit of the request.
        assert min(row["served_agreed"], round_["drafted"]) == round_["accepted"]
