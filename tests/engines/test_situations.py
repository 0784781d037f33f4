"""The recording is correct in every situation of a served engine, not only in plain decoding.

Each engine is stepped by hand inside its process, so that every run schedules identically.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.engine_process.job import K, Outcome, run_jobs
from support.engine_process.situations_main import LIVE
from verification.situations import AT_NIGHT, LOST, SITUATION_JOBS, STOP_TOKEN, asks_of, k_jobs
from verification.situations_truth import Compared, compared, origin, skipped_places
from verification.truth import MASSES

from driftscope.trace.reader import read_trace
from driftscope.vocabulary import Region, UndraftedReason
from driftscope_probes.vllm.engine_core import STOP_OR_ABORT
from engines.conftest import OLDER
from engines.test_truth import MASS_TOLERANCE, RMS_TOLERANCE

pytestmark = pytest.mark.vllm
RECORDED = [name for name, job in SITUATION_JOBS.items() if job.probe]
OLDER_JOBS = k_jobs(OLDER)
CUT_OFF = ("ends1", "ends3")
"""Aborted requests, whose progress depends on the schedule."""
JUDGED = 60
"""Fewest verified chains for which the outputs determine how many tokens had to be accepted."""
VISIBLE = 1e-3
"""Error from which a mass is wrong, whatever the precision."""


@pytest.fixture(scope="module")
def engines(at_night: bool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Outcome by name of the job."""
    folder: Path = tmp_path_factory.mktemp("situations")
    jobs = {n: job for n, job in SITUATION_JOBS.items() if at_night or n not in AT_NIGHT}
    return run_jobs({**jobs, **OLDER_JOBS}, folder)


@pytest.fixture(scope="module")
def chains(engines: dict[str, Outcome]) -> dict[str, list[Compared]]:
    """Every chain with the reference's, by name of the job."""
    recorded = (*RECORDED, *OLDER_JOBS)
    return {name: compared(engines[name], asks_of(engines[name].job)) for name in recorded}


def outputs(outcome: Outcome) -> dict[str, dict[str, Any]]:
    return {name: one for batch in outcome.batches for name, one in batch["requests"].items()}


def steps_of(outcome: Outcome) -> list[dict[str, Any]]:
    return [step for batch in outcome.batches for step in batch["schedules"]]


def verify_of(outcome: Outcome) -> pd.DataFrame:
    table = read_trace(outcome.run).verify.to_pandas()
    table["name"] = [origin(request)[0] for request in table.request]
    return table


KINDS = ["tight", pytest.param("flows", marks=pytest.mark.nightly)]


def requests_of(outcome: Outcome) -> list[dict[str, Any]]:
    return list(read_trace(outcome.run).request.to_pylist())


@pytest.mark.parametrize("kind", KINDS)
def test_the_probe_changes_no_output_and_no_schedule(
    engines: dict[str, Outcome], kind: str
) -> None:
    on, off = engines[f"{kind} v1"], engines[f"{kind} v1 off"]
    assert outputs(on) == outputs(off)
    assert [step["k"] for step in steps_of(on)] == [step["k"] for step in steps_of(off)]


@pytest.mark.parametrize("kind", KINDS)
def test_v2_gives_the_tokens_of_v1_without_the_probe(
    engines: dict[str, Outcome], kind: str
) -> None:
    v2, v1 = (outputs(engines[f"{kind} {runner}"]) for runner in ("v2", "v1 off"))
    names = {name for name in v2.keys() & v1.keys() if not name.startswith(CUT_OFF)}
    assert len(names) > 10
    assert {n: v2[n]["token_ids"] for n in names} == {n: v1[n]["token_ids"] for n in names}


@pytest.mark.parametrize("name", [*RECORDED, *OLDER_JOBS])
def test_every_chain_is_its_requests_own_and_true(
    chains: dict[str, list[Compared]], engines: dict[str, Outcome], name: str
) -> None:
    found = [chain for chain in chains[name] if not chain.empty]
    asked = {one for one in asks_of(engines[name].job) if not one.startswith("k")} - {"cut1"}
    assert asked <= {chain.name for chain in found}
    for chain in found:
        where = f"{chain.name} at {chain.row['position']}"
        assert chain.drafted_equal, where
        assert chain.mass_error < MASS_TOLERANCE, where
        assert chain.rms_error < RMS_TOLERANCE, where
    judged = [chain for chain in found if chain.judged]
    assert len(judged) >= JUDGED
    assert all(chain.accepted_equal for chain in judged)


def test_v1_chunked_prefill_is_off_and_flagged(chains: dict[str, list[Compared]]) -> None:
    """The reference agrees once the wrong token is modelled, so everything above is checked."""
    wrong = [chain for chain in chains["tight v1"] if chain.wrong and not chain.empty]
    assert {"chunked0", "chunked1", "prefix2", "context0"} <= {chain.name for chain in wrong}
    assert max(chain.error(chain.clean, MASSES) for chain in wrong) > VISIBLE
    assert {"prefix1", "prefix3"} & {chain.name for chain in wrong}, "hits on another's blocks"
    assert all(chain.row["chunked_prefill"] for chain in wrong)
    right = [chain for chain in chains["tight v1"] if chain.name.startswith("mixed")]
    assert not any(chain.row["chunked_prefill"] for chain in right)


def test_v2_chunked_prefill_is_right(chains: dict[str, list[Compared]]) -> None:
    flagged = [chain for chain in chains["tight v2"] if chain.row["chunked_prefill"]]
    assert {"chunked0", "chunked1", "prefix2", "context0"} <= {chain.name for chain in flagged}
    assert not any(chain.wrong or chain.empty for chain in chains["tight v2"])


def test_v1_leaves_holes_in_the_neighbours_of_a_request_near_the_limit(
    chains: dict[str, list[Compared]],
) -> None:
    holed = [chain for chain in chains["tight v1"] if chain.empty]
    assert {chain.name for chain in holed} == {"context1"}
    assert all(chain.row["chunked_prefill"] for chain in holed)
    assert not any(chain.row["chunked_prefill"] for chain in chains["flows v1"])
    assert max(chain.error(chain.clean, MASSES) for chain in holed) > VISIBLE


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_the_situations_came_about(engines: dict[str, Outcome], runner: str) -> None:
    tight, flows = engines[f"tight {runner}"], engines[f"flows {runner}"]
    steps = {batch["name"]: batch["schedules"] for batch in (*tight.batches, *flows.batches)}
    assert any(step["preempted"] for step in steps["preempted"])
    assert outputs(tight)["prefix3/0"]["cached"] > 0
    begun = [[entry["start"] == 0 for entry in s["requests"].values()] for s in steps["mixed"]]
    assert any(any(step) and not all(step) for step in begun)
    assert {step["k"] for step in steps["k"] if step["requests"]} == {0, 3, K}


@pytest.mark.parametrize("name", ["flows v1", "flows v2"])
def test_each_step_and_each_chain_has_the_k_that_the_scheduler_asked_for(
    engines: dict[str, Outcome], name: str
) -> None:
    """Check K by batch size, and K changed while requests run."""
    asked = [step["k"] for step in steps_of(engines[name]) if step["requests"]]
    assert {0, 2, 3, 5, 6, K} <= set(asked)
    trace = read_trace(engines[name].run)
    steps = sorted(trace.step.to_pylist(), key=lambda row: row["step"])
    assert [row["k"] for row in steps] == asked
    assert all((row["chains"] == 0) == (row["k"] == 0) for row in steps if row["k"] == 0)
    of_step = {row["step"]: row["k"] for row in steps}
    for row in trace.draft.to_pylist():
        assert row["k"] == of_step[row["step"]] == len(row["token_ids"]) == len(row["fed_rms"])
        assert len(row["sink_mass"]) == row["k"] * row["layers"]


@pytest.mark.parametrize("name", ["flows v1", "flows v2"])
def test_a_round_drafts_no_more_than_its_chain(engines: dict[str, Outcome], name: str) -> None:
    trace = read_trace(engines[name].run)
    k = {(row["request"], row["position"]): row["k"] for row in trace.draft.to_pylist()}
    rounds = [row for row in trace.verify.to_pylist() if row["verified"]]
    same = [row["verified"] == k[row["request"], row["position"]] for row in rounds]
    assert all(row["verified"] <= k[row["request"], row["position"]] for row in rounds)
    assert sum(same) > len(rounds) * 3 / 4, "the rest were cut by a grammar or a limit"


@pytest.mark.parametrize("name", RECORDED)
def test_a_run_of_several_k_is_read_while_the_engine_serves(
    engines: dict[str, Outcome], name: str
) -> None:
    run = engines[name].run
    copy = run.with_name(f"{run.name}{LIVE}")
    live, sealed = read_trace(copy), read_trace(run)
    assert not list(copy.glob("draft-*.parquet"))
    for record in ("draft", "step", "verify"):
        mine, all_of_them = (_keys(getattr(trace, record)) for trace in (live, sealed))
        assert mine and mine <= all_of_them, record
    ks = {row["k"] for row in live.draft.to_pylist()}
    assert ks == ({2, 3, 5, 6, K} if name.startswith("flows") else {K})


def _keys(table: Any) -> set[tuple[Any, ...]]:
    names = ("step", "request", "position", "k", "verified", "accepted")
    return {tuple(row.get(name) for name in names) for row in table.to_pylist()}


@pytest.mark.parametrize("name", RECORDED)
def test_counts_equal_vllms_own(engines: dict[str, Outcome], name: str) -> None:
    """Counts are equal except for places that no drafter filled, which vLLM counts as drafted."""
    outcome, verify = engines[name], verify_of(engines[name])
    unfilled = skipped_places(outcome)
    assert bool(unfilled) == (name == "tight v1")
    metrics = outcome.metrics
    assert metrics["vllm:spec_decode_num_draft_tokens"] == verify.verified.sum() + sum(unfilled)
    assert metrics["vllm:spec_decode_num_accepted_tokens"] == verify.accepted.sum()
    per_position = metrics["vllm:spec_decode_num_accepted_tokens_per_pos"]
    assert per_position == [int((verify.accepted > i).sum()) for i in range(K)]


@pytest.mark.parametrize("name", RECORDED)
def test_counts_per_request_equal_vllms_own(engines: dict[str, Outcome], name: str) -> None:
    verify, seen = verify_of(engines[name]), 0
    for key, output in outputs(engines[name]).items():
        ask = key.partition("/")[0]
        if output["spec"] is None or ask.startswith(("context", "sampled0")):
            continue
        rows = verify[(verify.name == ask) & (verify.verified > 0)].sort_values("step")
        theirs = zip(
            *(output["spec"][f"per_step_{n}"] for n in ("drafted", "accepted")), strict=True
        )
        ours = list(zip(rows.verified, rows.accepted, strict=True))
        assert ours == [one for one in theirs if one[0]], key
        seen += 1
    assert seen > 10


@pytest.mark.parametrize("name", RECORDED)
def test_rounds_follow_one_another(engines: dict[str, Outcome], name: str) -> None:
    for request, rows in verify_of(engines[name]).groupby("request"):
        rows = rows.sort_values("step")
        prompt = len(asks_of(engines[name].job)[origin(str(request))[0]].prompt)
        made = [0, *(rows.accepted + 1).cumsum()[:-1]]
        assert [position - prompt + 1 for position in rows.position] == made, request


def reasons(outcome: Outcome) -> dict[str, Counter[str]]:
    """Return, by reason, the undrafted steps by the situation of their request."""
    verify, found = verify_of(outcome), {}
    for reason, rows in verify[verify.reason.notna()].groupby("reason"):
        found[str(reason)] = Counter(name.rstrip("0123456789") for name in rows.name)
    return found


def test_reasons_of_undrafted_steps_are_told_apart(engines: dict[str, Outcome]) -> None:
    for found in (reasons(engines[f"tight {runner}"]) for runner in ("v1", "v2")):
        assert UndraftedReason.K_ZERO not in found and UndraftedReason.NO_DRAFT not in found
        assert set(found[UndraftedReason.PREEMPTED]) <= {"preempted", "chunked", "mixed"}
        assert set(found[UndraftedReason.CONTEXT_LIMIT]) == {"context"}
        assert "budget" in found[UndraftedReason.TOKEN_BUDGET]
    lost = len(LOST.lose_drafts) * len(LOST.asks)
    for name in ("flows v1", "flows v2"):
        found = reasons(engines[name])
        assert set(found[UndraftedReason.K_ZERO]) == {"k", "changed"}
        expected = {"lost": lost} if name == "flows v1" else {}
        assert found.get(UndraftedReason.NO_DRAFT, {}) == expected
    for name in ("tight v1", "flows v1"):
        assert set(reasons(engines[name])[UndraftedReason.STRUCTURED_OUTPUT]) == {"structured"}


def test_what_an_output_is_held_to(engines: dict[str, Outcome]) -> None:
    for name in ("tight v1", "flows v1"):
        rows = {origin(row["request"])[0]: row for row in requests_of(engines[name])}
        guided, free = rows["structured0"], rows["structured1"]
        assert (guided["structured"], free["structured"]) == ("regex", "none")
        assert Region.ALL[guided["region_codes"][0]] == Region.GUIDED
        assert Region.ALL.index(Region.GUIDED) not in free["region_codes"]


def test_finish_reasons(engines: dict[str, Outcome]) -> None:
    for name in ("flows v1", "flows v2"):
        rows = {origin(row["request"])[0]: row for row in requests_of(engines[name])}
        found = {request: row["finish_reason"] for request, row in rows.items()}
        given = outputs(engines[name])
        assert (found["ends0"], given["ends0/0"]["finish_reason"]) == (STOP_OR_ABORT, "stop")
        assert (found["ends2"], given["ends2/0"]["token_ids"][-1]) == ("stop", STOP_TOKEN)
        assert found["ends1"] == found["ends3"] == "abort"
        assert found["cut1"] == found["cut4"] == "length"
        for one in ("cut1", "cut2", "cut4", "cut13"):
            assert rows[one]["output_tokens"] == int(one.removeprefix("cut"))


def test_max_tokens_cuts_an_accepted_chain(engines: dict[str, Outcome]) -> None:
    """The engine counts accepted tokens before the cut."""
    verify = verify_of(engines["flows v1"])
    made = verify.groupby("name").accepted.agg(lambda rows: 1 + (rows + 1).sum())
    asked = {name: int(name.removeprefix("cut")) for name in made.index if name.startswith("cut")}
    assert any(made[name] > tokens for name, tokens in asked.items())


def test_children_of_one_request_are_recorded_under_its_name(engines: dict[str, Outcome]) -> None:
    found = [origin(row["request"]) for row in requests_of(engines["flows v2"])]
    children = sorted(one for one in found if one[0] == "sampled0")
    assert children == [("sampled0", 0), ("sampled0", 1)]


@pytest.mark.parametrize("name", RECORDED)
def test_nothing_was_lost(engines: dict[str, Outcome], name: str) -> None:
    trace = read_trace(engines[name].run)
    assert trace.problems == ()
    assert trace.request.num_rows == sum(len(b["requests"]) for b in engines[name].batches)
