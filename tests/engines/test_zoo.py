"""Every kind of drafter in real vLLM: the recording equals the witness, and the output is
unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from verification.zoo.compare import ANATOMY, CLASSES, anatomy_of
from verification.zoo.engines import COVERING, counted_alike, run_engines

from driftscope.trace.manifest import BY_DEPTH, BY_QUERY
from driftscope.vocabulary import DISTANCE_MASS
from driftscope_probes.drafter import Kind
from driftscope_probes.vllm.support import EAGLE3, KINDS

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]

CLOSE = 1e-5
"""Tolerance of masses and top-1 probability, absolute, and of RMS, relative. Half of it is the
trace's own rounding."""
ENTROPY_CLOSE = 5e-5
"""Tolerance of the entropy in nats; the trace stores entropies of some nats with fewer binary
places."""
SAME_ATTENTION = 1e-5
"""Tolerance of the witness's weights times the values, compared with vLLM's attention output in
float32."""
RECORDED = [engine for engine in COVERING if anatomy_of(*engine) is not None]
KIND_OF = {
    "eagle1": "EAGLE-1",
    "p_eagle": "P-EAGLE",
    "mimo_mtp": "MTP",
    "mimo_v2_mtp": "MTP",
    "ernie_mtp": "MTP",
    "deepseek_mtp": "MTP",
    "deepseek_mtp_modules": "MTP",  # on V1, which runs the first at each depth
    "dflash": "DFlash",
    "dflash_window_sinks": "DFlash",
    "draft_model": "draft model",
    "draft_model_gemma2": "draft model",
    "medusa": "Medusa",
    "ngram": "n-gram",
    "suffix": "suffix",
}


def kind(name: str) -> Kind:
    return next((k for k in KINDS if k.name == KIND_OF.get(name)), EAGLE3)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """Results of each engine with the probe on; "off" holds the tokens without it."""
    folder: Path = tmp_path_factory.mktemp("zoo")
    return run_engines(COVERING, folder)


@pytest.mark.parametrize(("name", "runner"), COVERING)
def test_tokens_are_those_without_the_probe(results: Any, name: str, runner: str) -> None:
    result = results[name, runner]
    assert "error" not in result, result["error"]
    assert result["tokens"] == result["off"]
    assert result["errors"] == {}


@pytest.mark.parametrize(("name", "runner"), COVERING)
def test_acceptance_is_counted_as_vllm_does(results: Any, name: str, runner: str) -> None:
    result = results[name, runner]
    assert counted_alike(result)
    assert result["drafting"] > 0, "timed"


@pytest.mark.parametrize(("name", "runner"), RECORDED)
def test_every_draft_joins_its_verification(results: Any, name: str, runner: str) -> None:
    result = results[name, runner]
    assert result["joined"] == result["drafts"] > 0


@pytest.mark.parametrize(("name", "runner"), RECORDED)
def test_figures_are_those_of_the_witness(results: Any, name: str, runner: str) -> None:
    worst = dict(results[name, runner]["worst"])
    assert worst.pop("attention_output", 0.0) <= SAME_ATTENTION, "the witness itself is right"
    assert worst.pop("entropy") <= ENTROPY_CLOSE
    assert {column: error for column, error in worst.items() if error > CLOSE} == {}


@pytest.mark.parametrize(("name", "runner"), RECORDED)
def test_all_that_the_forward_shows_is_recorded(results: Any, name: str, runner: str) -> None:
    worst, listed, anatomy = results[name, runner]["worst"], kind(name), ANATOMY[name]
    there = {column for names in anatomy.outputs for column in names}
    there |= {"in_rms"} if anatomy.hidden else set()
    there |= {"prenorm_rms"} if anatomy.norm else set()
    assert {c for c in worst if c.endswith("_rms")} == there
    masses = {c for c in worst if c.endswith("_mass")}
    classes = CLASSES if ANATOMY[name].bias else CLASSES[:-1]
    by_distance = listed.attention and listed.causal
    wanted = {*classes, DISTANCE_MASS} if by_distance else set(classes)
    assert masses == (wanted if listed.attention else set())
    assert results[name, runner]["distance_every"] == int(by_distance)
    assert {"top1", "entropy"} <= set(worst)


@pytest.mark.parametrize(("name", "runner"), COVERING)
def test_a_drafter_of_one_pass_is_told_by_query(results: Any, name: str, runner: str) -> None:
    assert results[name, runner]["query_kind"] == (BY_QUERY if kind(name).block else BY_DEPTH)


@pytest.mark.parametrize(("name", "runner"), [e for e in COVERING if e not in RECORDED])
def test_where_there_is_nothing_to_look_into_steps_are_timed(
    results: Any, name: str, runner: str
) -> None:
    result = results[name, runner]
    assert (result["chains"], result["layers"]) == (0, 0)
    assert not kind(name).model
