"""Layers that no config names, and sinks that the probe searches for, in a live engine."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command import analyze_json
from support.engine_process.job import Job, K, Outcome, engine, prompts, run_job, run_jobs
from support.reference_engine import replay
from verification.deep import (
    CAPTURED,
    DEFAULT,
    NAMED,
    NESTED,
    deep_job,
    older_deep_job,
    write_deep,
)
from verification.truth import compare, continue_greedily, runners, version

from driftscope.inspect.reference.drafter import ChainKeys
from driftscope.pipeline import Inputs, analyze
from driftscope.trace.reader import Trace, read_trace
from driftscope_lab.training.checkpoints import load_drafter, load_target
from driftscope_lab.trio import trio_path
from engines.conftest import OLDER
from engines.test_truth import MASS_TOLERANCE, RMS_TOLERANCE

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]
CHAINS = 40
OLDER_ENGINES = {
    f"default {runner} {version(folder)}": (folder, runner)
    for folder in OLDER
    for runner in runners(folder)
}
DEFAULTS = ("default v1", "default v2", *OLDER_ENGINES)


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
        **{
            name: older_deep_job(weights, older, DEFAULT, "eagle31", runner)
            for name, (older, runner) in OLDER_ENGINES.items()
        },
    }
    return run_jobs(jobs, folder)


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_manifest_names_the_layers_that_vllm_chose(deep: dict[str, Outcome], name: str) -> None:
    manifest = read_trace(deep[name].run).manifest
    assert (manifest.aux_layers, manifest.aux_layers_source) == (CAPTURED, "engine default")
    assert (manifest.notes, manifest.draft_sampling) == ((), "greedy")


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_measured_quantity_equals_the_reference(deep: dict[str, Outcome], name: str) -> None:
    truth = compare(deep[name])
    assert truth.drafted_equal == truth.chains >= CHAINS
    assert truth.accepted_equal == truth.verified >= CHAINS
    assert truth.mass_error < MASS_TOLERANCE and truth.rms_error < RMS_TOLERANCE


@pytest.mark.parametrize("name", DEFAULTS)
def test_analyze_ends_well_and_shows_each_captured_layer(
    deep: dict[str, Outcome], name: str
) -> None:
    done = analyze_json(deep[name].run)
    assert done.returncode == 0, done.stderr
    rows = read_trace(deep[name].run).draft.column("aux_rms").to_pylist()
    by_layer = np.mean(rows, axis=0)
    assert len(by_layer) == len(CAPTURED)
    imbalance = json.loads(done.stdout)["runs"][0]["hidden"]["aux_imbalance"]
    assert imbalance == pytest.approx(max(by_layer) / min(by_layer), rel=1e-3)


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
    assert v1.draft_sampling == v2.draft_sampling == "probabilistic"


DRAFTER = "eagle31"
REQUESTS = 40
"""Number of requests: enough that many chains follow the decision, which the writer's thread
makes."""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    probe = {"EVERY": "1", "TOKEN_IDS": "1", "SINK_TOKENS": "auto"}
    return run_job(
        Job(drafter=DRAFTER, probe=probe, requests=REQUESTS), tmp_path_factory.mktemp("sinks")
    )


@functools.cache
def _models() -> tuple[Any, Any]:
    return (
        load_target(trio_path() / "target", torch.float64),
        load_drafter(trio_path() / DRAFTER, torch.float64),
    )


def _by_request(
    outcome: Outcome, rows: list[dict[str, Any]]
) -> Iterator[tuple[list[int], int, list[dict[str, Any]]]]:
    """Yield tokens, prompt length and the chains of each request, the last of which may lie past
    its end."""
    for index, (ids, output) in enumerate(zip(prompts(REQUESTS), outcome.tokens(), strict=True)):
        tokens, _ = continue_greedily(_models()[0], (*ids, *output), K + 1)
        mine = [row for row in rows if row["request"].partition("-")[0] == str(index)]
        yield tokens, len(ids), [row for row in mine if row["position"] < len(tokens) - 1]


@torch.no_grad()
def _weights(tokens: list[int], positions: list[int]) -> list[np.ndarray]:
    """Return the weights of the depth-1 query for each p, [p + 1], mean over heads, float64."""
    target, drafter = _models()
    ids, at = torch.tensor([tokens]), torch.tensor(positions)
    fused = drafter.fuse(target(ids[:, :-1], aux_layers=drafter.config.aux_layers).aux)
    step = drafter.step(
        embedding=drafter.embed(ids[0, at + 1], target)[None],
        hidden=fused[:, at],
        depth=1,
        anchors=at,
        context=drafter.context(drafter.embed(ids[:, 1:], target), fused),
        chain_keys=ChainKeys(),
    )
    (attention,) = step.attention
    mean = attention[0].mean(0).numpy()
    return [row[: p + 1] for row, p in zip(mean, positions, strict=True)]


def _sought(trace: Trace) -> list[dict[str, Any]]:
    """Return the chains on which the decision was based: those that its note counts."""
    seen = re.search(r"searched in (\d+) chains of (\d+) requests", trace.manifest.notes[-1])
    assert seen is not None
    rows = trace.draft.to_pylist()[: int(seen[1])]
    assert len({row["request"] for row in rows}) == int(seen[2]) >= 8
    assert {row["strategy"] for row in rows} == {"none"}
    return rows


def test_what_is_found_is_what_float64_finds(outcome: Outcome) -> None:
    trace = read_trace(outcome.run)
    assert trace.problems == ()
    rows = _sought(trace)
    held, even = np.full((2, len(rows), 64), np.nan)
    weighed = (
        weights
        for tokens, _, mine in _by_request(outcome, rows)
        for weights in (_weights(tokens, [row["position"] for row in mine]) if mine else ())
    )
    for at, weights in enumerate(weighed):
        slots = min(64, len(weights) - 8)
        held[at, :slots], even[at, :slots] = weights[:slots], 1 / len(weights)
    assert at + 1 == len(rows)
    seen = (~np.isnan(held)).sum(0)
    mean = np.where(2 * seen >= len(rows), np.nansum(held, 0) / np.maximum(seen, 1), 0.0)
    times = mean / np.where(seen, np.nansum(even, 0) / np.maximum(seen, 1), 1.0)
    wanted = np.flatnonzero((mean >= 0.02) & (times >= 5.0)).tolist()
    assert list(trace.manifest.sink_slots) == wanted
    assert trace.manifest.sink_source == "found"
    said = re.findall(r"slot (\d+) with ([\d.]+)% .*?\(([\d.]+) times", trace.manifest.notes[-1])
    assert [int(slot) for slot, _, _ in said] == (wanted or [int(mean.argmax())])
    for slot, share, factor in said:
        assert float(share) == pytest.approx(100 * mean[int(slot)], abs=0.06)
        assert float(factor) == pytest.approx(times[int(slot)], abs=0.06)


def test_masses_start_when_it_is_found_and_are_those_of_the_set(outcome: Outcome) -> None:
    trace = read_trace(outcome.run)
    slots = trace.manifest.sink_slots
    if slots != tuple(range(len(slots))):
        pytest.skip(f"the reference knows sink sets that are a prefix only, not {slots}")
    rows = [row for row in trace.draft.to_pylist() if row["strategy"] != "none"]
    # How many chains follow the search depends on when the writer's thread gets to it.
    assert len(rows) > 10
    target, drafter = _models()
    for tokens, prompt, mine in _by_request(outcome, rows):
        anchors = [row["position"] for row in mine]
        wanted = replay(target, drafter, tokens, prompt, anchors, K, n_sink=len(slots))
        for row, reference in zip(mine, wanted, strict=True):
            for name in ("prompt_mass", "generated_mass", "self_mass"):
                np.testing.assert_allclose(row[name], getattr(reference, name), atol=1e-4)
            assert (row["sink_mass"] is None) == (not slots)
    early = [row for row in trace.draft.to_pylist() if row["strategy"] == "none"]
    assert all(row["prompt_mass"] is row["self_mass"] is None for row in early)
    assert all(row["fed_rms"] is not None for row in early)


def test_the_report_says_so(outcome: Outcome, tmp_path: Path) -> None:
    trace = read_trace(outcome.run)
    found = analyze(Inputs(sources=[trace], labels=["run"]))
    told = [finding.statement for finding in found.findings if finding.id == "no_sink"]
    if not trace.manifest.sink_slots:
        assert told == [trace.manifest.notes[-1]]
        assert told[0].startswith("no sink found")
    assert found.runs[0].attention.self_mass is not None
