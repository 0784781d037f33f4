"""The live probe in SGLang: figures of float64, the same output without it, in every situation."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.sglang_process.job import VERSION, K
from verification.sglang import (
    HARMLESS_JOBS,
    OFF,
    SAMPLED_EVERY,
    TREE,
    TRUTH_JOBS,
    compare,
    histograms,
)

from driftscope.pipeline import Inputs, analyze
from driftscope.trace.reader import read_trace
from driftscope.vocabulary import Region
from engines.sglang.conftest import Outcomes

pytestmark = [pytest.mark.sglang, pytest.mark.nightly]
TOLERANCE = 1e-5
CHAINS = {"eagle31, batch of 8": 100, "every 3rd": 12}
LEAST_CHAINS = 40


@pytest.mark.parametrize("name", TRUTH_JOBS)
def test_every_measured_quantity_equals_the_reference(sglang_outcome: Outcomes, name: str) -> None:
    found = compare(sglang_outcome(name))
    assert found.chains >= CHAINS.get(name, LEAST_CHAINS)
    assert found.drafted_equal == found.chains
    assert found.accepted_equal == found.verified >= 0.9 * found.chains
    assert found.mass_error < TOLERANCE
    assert found.with_distances > 0 and found.distance_error < TOLERANCE
    assert found.rms_error < TOLERANCE
    assert found.top1_error < TOLERANCE
    assert found.entropy_error < 2 * TOLERANCE


@pytest.mark.parametrize("name", TRUTH_JOBS)
def test_accepted_counts_are_those_of_sglang(sglang_outcome: Outcomes, name: str) -> None:
    outcome = sglang_outcome(name)
    for batch in range(len(outcome.batches)):
        for theirs, ours in histograms(outcome, batch):
            assert ours == theirs and sum(ours) > 0


def test_a_single_request_is_as_true_as_a_batch(sglang_outcome: Outcomes) -> None:
    found = compare(sglang_outcome("eagle3"), batch=1)
    assert found.drafted_equal == found.chains >= LEAST_CHAINS
    assert max(found.mass_error, found.rms_error) < TOLERANCE


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
        "schedule",
        "step_started",
        "extend_started",
        "extend_ended",
        "draft_started",
        "first_depth",
        "combine",
        "aux_norm",
        "forward_in",
        "attention",
        "final_norm",
        "forward_out",
        "draft_ended",
        "step_ended",
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


def test_requests_carry_what_sglang_reports(sglang_outcome: Outcomes) -> None:
    outcome = sglang_outcome("temperature")
    rows = {row["request"]: row for row in read_trace(outcome.run).request.to_pylist()}
    for meta in outcome.meta():
        row = rows[meta["id"]]
        assert row["temperature"] == pytest.approx(0.8)
        assert row["prompt_tokens"] == meta["prompt_tokens"]
        assert row["output_tokens"] == meta["completion_tokens"]
        assert row["finish_reason"] == meta["finish_reason"]["type"]
        assert 0 < row["tpot_s"] < row["ttft_s"] + meta["e2e_latency"]
        assert len(row["prompt_digest"]) == 16
    assert all(ours == theirs for theirs, ours in histograms(outcome))


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


def test_a_stop_token_ends_a_request(sglang_outcome: Outcomes) -> None:
    outcome = sglang_outcome("stop token")
    rows = {row["request"]: row for row in read_trace(outcome.run).request.to_pylist()}
    for meta in outcome.meta():
        assert rows[meta["id"]]["finish_reason"] == meta["finish_reason"]["type"]
        assert rows[meta["id"]]["output_tokens"] == meta["completion_tokens"]


def test_one_depth_is_the_one_of_the_round_before(sglang_outcome: Outcomes) -> None:
    outcome = sglang_outcome("K = 1")
    rows = read_trace(outcome.run).draft.to_pylist()
    assert rows and {
        (row["k"], len(row["prompt_mass"]), len(row["token_ids"])) for row in rows
    } == {(1, 1, 1)}
    assert all(ours == theirs for theirs, ours in histograms(outcome))


def test_an_engine_without_a_drafter_is_recorded_and_serves_the_same(
    sglang_outcome: Outcomes,
) -> None:
    outcome = sglang_outcome("no speculation")
    assert outcome.tokens() == sglang_outcome("no speculation, off").tokens()
    trace = read_trace(outcome.run)
    manifest = trace.manifest
    assert (manifest.drafter, manifest.k, manifest.notes) == (None, 0, ())
    assert trace.draft.num_rows == 0 and not any(status.errors for status in trace.statuses)
    rows = {row["request"]: row for row in trace.request.to_pylist()}
    assert set(rows) == {meta["id"] for meta in outcome.meta()}
    for meta in outcome.meta():
        row = rows[meta["id"]]
        assert row["output_tokens"] == meta["completion_tokens"] and len(row["prompt_digest"]) == 16
        assert 0 < row["tpot_s"] < row["ttft_s"] + meta["e2e_latency"]
    verified = trace.verify.to_pylist()
    assert len(verified) == sum(row["output_tokens"] - 1 for row in rows.values())
    assert {(row["drafted"], row["reason"]) for row in verified} == {(0, "k_zero")}
    steps = trace.step.to_pylist()
    assert {step["k"] for step in steps} == {0} and all(step["step_s"] > 0 for step in steps)
    plain = analyze(Inputs(sources=[trace], labels=["plain"])).plain
    assert plain is not None and plain.requests == len(rows)


def test_structured_output_is_recorded_like_other_answers(sglang_outcome: Outcomes) -> None:
    """SGLang verifies drafts against the grammar, so that acceptance is the grammar's too."""
    outcome = sglang_outcome("structured output")
    trace = read_trace(outcome.run)
    rows = {row["request"]: row for row in trace.request.to_pylist()}
    asked, *others = [rows[meta["id"]] for meta in outcome.meta()]
    assert asked["structured"] == "json" and {row["structured"] for row in others} == {"none"}
    assert all(ours == theirs for theirs, ours in histograms(outcome))
    assert not any(status.errors for status in trace.statuses)


def test_answers_have_their_kinds_of_text(sglang_outcome: Outcomes) -> None:
    """The scheduler has a tokenizer unless it was told to have none."""
    outcome = sglang_outcome("structured output")
    rows = {row["request"]: row for row in read_trace(outcome.run).request.to_pylist()}
    asked, *others = [rows[meta["id"]] for meta in outcome.meta()]
    assert [Region.ALL[code] for code in asked["region_codes"]][:1] == ["json"]
    assert all(row["region_starts"][0] == 0 for row in others)
    plain = read_trace(sglang_outcome("temperature").run).request.to_pylist()
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


ANALYZE = (sys.executable, "-m", "driftscope", "analyze")


@pytest.fixture(scope="module")
def written(sglang_outcome: Outcomes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the report of a run as page and as JSON."""
    folder: Path = tmp_path_factory.mktemp("report")
    run = sglang_outcome("eagle31, batch of 8").run
    for name, options in {"report.html": (), "report.json": ("--format", "json")}.items():
        subprocess.run(
            [*ANALYZE, run, "-q", *options, "-o", folder / name], check=True, timeout=300
        )
    return folder


def test_the_report_names_the_engine(written: Path) -> None:
    (run,) = json.loads((written / "report.json").read_text())["runs"]
    assert (run["manifest"]["engine"], run["manifest"]["engine_version"]) == ("sglang", VERSION)


def test_the_report_has_every_depth(written: Path) -> None:
    (run,) = json.loads((written / "report.json").read_text())["runs"]
    assert run["rounds"] > 100
    assert len(run["acceptance"]["marginal"]) == K


def test_the_page_is_whole(written: Path) -> None:
    page = (written / "report.html").read_text()
    assert f"sglang {VERSION}" in page and page.rstrip().endswith("</html>")
