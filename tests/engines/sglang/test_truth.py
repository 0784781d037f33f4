"""The live probe in SGLang: figures of float64, the same output without it, in every situation."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.command import run_command
from support.sglang_process.job import VERSION, K, Outcome
from verification.sglang import HARMLESS_JOBS, OFF, TREE, TRUTH_JOBS, histograms
from verification.truth import SAMPLED_EVERY, Truth, compare

from driftscope.pipeline import Inputs, analyze
from driftscope.trace.reader import read_trace
from driftscope.vocabulary import Region
from engines.sglang.conftest import Outcomes

pytestmark = [pytest.mark.sglang, pytest.mark.nightly]
TOLERANCE = 1e-5
CHAINS = {"eagle31, batch of 8": 100, "every 3rd": 12}
LEAST_CHAINS = 40


def assert_true(found: Truth, least: int = LEAST_CHAINS) -> None:
    assert found.drafted_equal == found.chains >= least
    assert found.accepted_equal == found.verified >= 0.9 * found.chains
    assert found.with_distances > 0
    assert max(found.mass_error, found.distance_error, found.rms_error) < TOLERANCE
    assert max(found.top1_error, found.entropy_error / 2) < TOLERANCE


@pytest.mark.parametrize("name", TRUTH_JOBS)
def test_every_measured_quantity_equals_the_reference(sglang_outcome: Outcomes, name: str) -> None:
    outcome = sglang_outcome(name)
    for batch in range(len(outcome.batches)):
        assert_true(compare(outcome, batch), CHAINS.get(name, LEAST_CHAINS))
        for theirs, ours in histograms(outcome, batch):
            assert ours == theirs and sum(ours) > 0


def test_every_verified_draft_of_every_round_is_recorded(sglang_outcome: Outcomes) -> None:
    trace = read_trace(sglang_outcome("eagle3").run)
    chains = {(row["request"], row["position"]) for row in trace.draft.to_pylist()}
    verified = {(r["request"], r["position"]) for r in trace.verify.to_pylist() if r["verified"]}
    assert chains >= verified, "depth 1 comes from the round before, also after a prompt"
    assert not any(status.errors or status.dropped for status in trace.statuses)


def test_manifest_says_what_ran(sglang_outcome: Outcomes) -> None:
    manifest = read_trace(sglang_outcome("eagle31, batch of 8").run).manifest
    assert (manifest.engine, manifest.engine_version, manifest.k) == ("sglang", VERSION, K)
    assert (manifest.mode, manifest.recording) == ("eager", "sampled eager")
    assert manifest.norm_flags == {"fc_norm": True, "norm_output": True, "norm_before_fc": False}
    assert (manifest.aux_layers, manifest.aux_layers_source) == ((2, 3, 5), "config")
    assert manifest.attention_backend == "IntelAMXAttnBackend"


def test_retracted_requests_have_a_step_without_a_draft(sglang_outcome: Outcomes) -> None:
    rows = read_trace(sglang_outcome("retracted").run).verify.to_pylist()
    undrafted = [row for row in rows if not row["verified"]]
    assert undrafted and {row["reason"] for row in undrafted} == {"preempted"}


LINE = "driftscope: "
HOOKS = {
    "worker": {
        *("schedule", "step_started", "extend_started", "extend_ended", "draft_started"),
        *("first_depth", "combine", "aux_norm", "forward_in", "attention", "final_norm"),
        *("forward_out", "draft_ended", "step_ended"),
    },
    "engine": {"verify_started", "verify"},
}


@pytest.mark.parametrize("name", [name for name in HARMLESS_JOBS if name != OFF])
@pytest.mark.parametrize("batch", [0, 1])
def test_output_is_token_identical(sglang_outcome: Outcomes, name: str, batch: int) -> None:
    assert sglang_outcome(name).tokens(batch) == sglang_outcome(OFF).tokens(batch)


@pytest.mark.parametrize("name", ["raising before", "raising after"])
def test_hooks_raise_and_are_counted(sglang_outcome: Outcomes, name: str) -> None:
    trace = read_trace(sglang_outcome(name).run)
    assert trace.draft.num_rows == 0, "a chain whose hooks failed is not whole"
    for status in trace.statuses:
        role = status.source.split("-")[0].rstrip("0")
        assert set(status.errors) and set(status.errors) <= HOOKS[role]
        assert "InjectedError" in (status.first_error or "")


def test_sampling_records_each_nth_draft_and_every_verification(sglang_outcome: Outcomes) -> None:
    full, sampled = (read_trace(sglang_outcome(name).run) for name in ("every round", "sampled"))
    assert sampled.verify.num_rows == full.verify.num_rows
    recorded = sampled.step.to_pandas().query("k > 0")["recorded"]
    assert recorded.tolist() == [i % SAMPLED_EVERY == 0 for i in range(len(recorded))]
    assert not any(status.dropped for status in sampled.statuses), "no chain lacks its depth 1"


@pytest.mark.parametrize("name", [OFF, "disabled"])
def test_without_settings_nothing_happens(sglang_outcome: Outcomes, name: str) -> None:
    outcome = sglang_outcome(name)
    assert LINE not in outcome.log and not outcome.run.exists()


def test_a_directory_that_cannot_be_written_costs_one_line(sglang_outcome: Outcomes) -> None:
    lines = [line for line in sglang_outcome("directory in use").log.splitlines() if LINE in line]
    assert len(lines) == 1 and "nothing is recorded" in lines[0]


def test_a_tree_has_acceptance_and_no_masses(sglang_outcome: Outcomes) -> None:
    outcome = sglang_outcome("tree")
    trace = read_trace(outcome.run)
    assert trace.draft.num_rows == 0
    assert any("not applicable" in note for note in trace.manifest.notes)
    assert all(ours == theirs for theirs, ours in histograms(outcome))
    drafted = {row["verified"] for row in trace.verify.to_pylist()}
    assert drafted == {TREE["speculative_num_steps"]}
    assert max(step["draft_s"] for step in trace.step.to_pylist()) > 0


def requests_of(outcome: Outcome) -> list[dict[str, Any]]:
    """Return the rows of the requests that SGLang answered, in its order."""
    rows = {row["request"]: row for row in read_trace(outcome.run).request.to_pylist()}
    return [rows[name] for name in outcome.names()]


@pytest.mark.parametrize(
    "name", ["temperature", "stop token", "K = 1", "structured output", "no speculation"]
)
def test_requests_carry_what_sglang_reports(sglang_outcome: Outcomes, name: str) -> None:
    outcome = sglang_outcome(name)
    for meta, row in zip(outcome.meta(), requests_of(outcome), strict=True):
        assert row["temperature"] == pytest.approx(outcome.job.sampling.get("temperature", 0))
        assert row["prompt_tokens"] == meta["prompt_tokens"]
        assert row["output_tokens"] == meta["completion_tokens"]
        assert row["finish_reason"] == meta["finish_reason"]["type"]
        assert 0 < row["tpot_s"] < row["ttft_s"] + meta["e2e_latency"]
        assert len(row["prompt_digest"]) == 16
    if outcome.job.drafter:
        assert all(ours == theirs for theirs, ours in histograms(outcome))
    assert not any(status.errors for status in read_trace(outcome.run).statuses)


def test_labels_choose_what_is_recorded(sglang_outcome: Outcomes) -> None:
    outcome = sglang_outcome("labels")
    trace = read_trace(outcome.run)
    wanted = outcome.meta()[0]["id"]
    assert not any(status.dropped for status in trace.statuses), "others are not lost, only unasked"
    assert {row["request"] for row in trace.draft.to_pylist()} == {wanted}
    labels = {row["request"]: (row["label"], row["traced"]) for row in trace.request.to_pylist()}
    assert labels.pop(wanted) == ("wanted", True)
    assert set(labels.values()) == {(None, False)}
    assert len({row["request"] for row in trace.verify.to_pylist()}) == len(labels) + 1


def test_one_depth_is_the_one_of_the_round_before(sglang_outcome: Outcomes) -> None:
    rows = read_trace(sglang_outcome("K = 1").run).draft.to_pylist()
    sizes = {(row["k"], len(row["prompt_mass"]), len(row["token_ids"])) for row in rows}
    assert sizes == {(1, 1, 1)}


def test_an_engine_without_a_drafter_is_recorded_and_serves_the_same(
    sglang_outcome: Outcomes,
) -> None:
    outcome = sglang_outcome("no speculation")
    assert outcome.tokens() == sglang_outcome("no speculation, off").tokens()
    trace = read_trace(outcome.run)
    manifest = trace.manifest
    assert (manifest.drafter, manifest.k, manifest.notes) == (None, 0, ())
    assert trace.draft.num_rows == 0
    verified = trace.verify.to_pylist()
    assert len(verified) == sum(row["output_tokens"] - 1 for row in requests_of(outcome))
    assert {(row["drafted"], row["reason"]) for row in verified} == {(0, "k_zero")}
    steps = trace.step.to_pylist()
    assert {step["k"] for step in steps} == {0} and all(step["step_s"] > 0 for step in steps)
    plain = analyze(Inputs(sources=[trace], labels=["plain"])).plain
    assert plain is not None and plain.requests == outcome.job.requests


def test_structured_output_is_recorded_with_its_kind_of_text(sglang_outcome: Outcomes) -> None:
    """SGLang verifies drafts against the grammar, so that acceptance is the grammar's too. Its
    scheduler has a tokenizer unless it was told to have none."""
    asked, *others = requests_of(sglang_outcome("structured output"))
    assert asked["structured"] == "json" and {row["structured"] for row in others} == {"none"}
    assert [Region.ALL[code] for code in asked["region_codes"]][:1] == ["json"]
    assert all(row["region_starts"][0] == 0 for row in others)
    plain = requests_of(sglang_outcome("temperature"))
    assert {str(row["region_starts"]) for row in plain} == {"None"}, "there is no tokenizer"


def test_a_request_that_is_aborted_in_the_queue_has_a_row(sglang_outcome: Outcomes) -> None:
    outcome = sglang_outcome("abort in the queue")
    trace = read_trace(outcome.run)
    rows = {row["request"]: row for row in trace.request.to_pylist()}
    aborted = rows.pop("rid-3")
    assert (aborted["finish_reason"], aborted["output_tokens"]) == ("abort", 0)
    assert aborted["ttft_s"] is None and aborted["tpot_s"] is None
    assert "rid-3" not in {row["request"] for row in trace.verify.to_pylist()}
    assert {row["finish_reason"] for row in rows.values()} == {"length"} and len(rows) == 3
    assert not any(status.errors for status in trace.statuses)


HEADS = 8
WRITERS = {
    "two ranks": {"worker0", "worker1", "engine0"},
    "two replicas": {"worker0.dp0", "worker0.dp1", "engine0", "engine1"},
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_processes_record_one_run(sglang_outcome: Outcomes, name: str) -> None:
    outcome = sglang_outcome(name)
    trace = read_trace(outcome.run)
    assert {status.source.partition("-")[0] for status in trace.statuses} == WRITERS[name]
    assert all(not status.errors for status in trace.statuses)
    draft = trace.draft.to_pandas()
    assert not draft.duplicated(["request", "position"]).any()
    assert set(draft.heads) == {HEADS}
    assert trace.request.num_rows == TRUTH_JOBS[name].requests
    replicas = 2 if name == "two replicas" else 1
    for table in (trace.draft, trace.verify, trace.request):
        assert set(table.column("replica").to_pylist()) == set(range(replicas))
    sizes = trace.manifest.tensor_parallel, trace.manifest.data_parallel
    assert sizes == ((2, 1) if replicas == 1 else (1, 2))


def test_the_report_has_the_engine_and_every_depth(
    sglang_outcome: Outcomes, tmp_path: Path
) -> None:
    source = sglang_outcome("eagle31, batch of 8").run
    done = run_command("analyze", source, "-o", tmp_path / "report.html", "--json")
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert (run["manifest"]["engine"], run["manifest"]["engine_version"]) == ("sglang", VERSION)
    assert run["rounds"] > 100 and len(run["acceptance"]["marginal"]) == K
    page = (tmp_path / "report.html").read_text()
    assert f"sglang {VERSION}" in page and page.rstrip().endswith("</html>")
