"""Drafters of every kind and option in real vLLM: the recording equals a second computation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.engine_process.job import EVERY_KIND, K, Outcome, run_jobs
from verification.truth import compare
from verification.variants import COVERING_OPTIONS, RUNNERS, VARIANTS, variant_jobs
from verification.zoo import ZOO
from verification.zoo.classes import CLOSE as CLASS_CLOSE
from verification.zoo.compare import CLASSES, anatomy_of
from verification.zoo.constructed import SOURCE, as_source
from verification.zoo.engines import ALL, COVERING, counted_alike, run_constructed, run_engines

from driftscope.trace.manifest import AGREES, BY_DEPTH, BY_QUERY, FED_AFTER, FED_BEFORE
from driftscope.trace.reader import read_trace
from driftscope.vocabulary import DISTANCE_MASS
from driftscope_probes.drafter import DrafterKind
from driftscope_probes.vllm.support import KINDS
from engines.test_truth import assert_true

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
ENGINES = ALL if EVERY_KIND else COVERING
RECORDED = [engine for engine in ENGINES if anatomy_of(*engine) is not None]
GLM, QWEN = "Glm4MoeMTPModel", "Qwen3NextMTP"
REPAIRED, BROKEN = f"{GLM}+normed", f"{QWEN}+unnormed"
"""GLM's head as vLLM 0.32.0 has it is fed the state before its final norm, Qwen's the one after it;
each has a twin with the other."""
SERVED = (GLM, REPAIRED, QWEN, BROKEN, "ExaoneMoeMTP", "EagleMistralForCausalLM")


def kind(name: str) -> DrafterKind:
    return next(kind for kind in KINDS if kind.name == ZOO[name].listed)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """Results of each engine with the probe on; "off" holds the tokens without it."""
    folder: Path = tmp_path_factory.mktemp("zoo")
    return run_engines([*ENGINES, *((name, "v1") for name in SERVED)], folder)


@pytest.mark.parametrize(("name", "runner"), ENGINES)
def test_tokens_and_counts_are_those_without_it(results: Any, name: str, runner: str) -> None:
    result = results[name, runner]
    assert "error" not in result, result["error"]
    assert (result["tokens"], result["errors"]) == (result["off"], {})
    assert counted_alike(result), "as vLLM counts"
    assert result["drafting"] > 0, "timed"
    assert result["query_kind"] == (BY_QUERY if kind(name).block else BY_DEPTH)


@pytest.mark.parametrize(("name", "runner"), RECORDED)
def test_figures_are_those_of_the_witness(results: Any, name: str, runner: str) -> None:
    result = results[name, runner]
    assert result["joined"] == result["drafts"] > 0, "every draft joins its verification"
    worst = dict(result["worst"])
    assert worst.pop("attention_output", 0.0) <= SAME_ATTENTION, "the witness itself is right"
    assert worst.pop("entropy") <= ENTROPY_CLOSE
    assert {column: error for column, error in worst.items() if error > CLOSE} == {}


@pytest.mark.parametrize(("name", "runner"), RECORDED)
def test_all_that_the_forward_shows_is_recorded(results: Any, name: str, runner: str) -> None:
    worst, listed, anatomy = results[name, runner]["worst"], kind(name), ZOO[name].anatomy
    assert anatomy is not None
    there = {column for names in anatomy.outputs for column in names}
    there |= {"in_rms"} if anatomy.hidden else set()
    there |= {"prenorm_rms"} if anatomy.norm else set()
    assert {c for c in worst if c.endswith("_rms")} == there
    masses = {c for c in worst if c.endswith("_mass")}
    classes = CLASSES if anatomy.bias else CLASSES[:-1]
    by_distance = listed.attention and listed.causal
    wanted = {*classes, DISTANCE_MASS} if by_distance else set(classes)
    assert masses == (wanted if listed.attention else set())
    assert results[name, runner]["distance_every"] == int(by_distance)
    assert {"top1", "entropy"} <= set(worst)


@pytest.mark.parametrize(("name", "runner"), [e for e in ENGINES if e not in RECORDED])
def test_where_there_is_nothing_to_look_into_steps_are_timed(
    results: Any, name: str, runner: str
) -> None:
    result = results[name, runner]
    assert (result["chains"], result["layers"]) == (0, 0)
    assert not kind(name).model


@pytest.mark.parametrize("name", SERVED)
def test_its_inside_is_recorded_as_a_second_computation_has_it(results: Any, name: str) -> None:
    found = results[name, "v1"]
    assert "error" not in found, found["error"]
    assert found["tokens"] == found["off"]
    assert (found["witness"], found["errors"]) == (AGREES, {})
    assert found["chains"] > 0 and found["layers"] == 1
    # What attention gave out is compared by the witness: a kernel of bfloat16 rounds its weights.
    del found["worst"]["attention"]
    assert max(found["worst"].values()) <= CLASS_CLOSE


@pytest.mark.parametrize(
    ("name", "fed"),
    [(GLM, FED_BEFORE), (REPAIRED, FED_AFTER), (QWEN, FED_AFTER), (BROKEN, FED_BEFORE)],
)
def test_a_head_that_is_fed_before_its_norm_is_named_and_its_twin_is_not(
    results: Any, name: str, fed: str
) -> None:
    found = results[name, "v1"]
    assert found["fed"] == fed
    assert ("fed_unlike_input" in found["findings"]) is (fed == FED_BEFORE)


@pytest.fixture(scope="module")
def constructed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Discovery finds in each class that only a GPU serves what vLLM's source says."""
    return run_constructed(list(SOURCE), tmp_path_factory.mktemp("constructed"))


@pytest.mark.parametrize("name", SOURCE)
def test_a_class_without_an_engine_is_what_its_source_says(constructed: Any, name: str) -> None:
    assert as_source(name, constructed[name]), constructed[name]


NAMES = tuple(VARIANTS) if EVERY_KIND else COVERING_OPTIONS


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Outcome by name of the variant."""
    folder: Path = tmp_path_factory.mktemp("variants")
    jobs = variant_jobs(folder / "weights")
    return run_jobs({name: jobs[name] for name in NAMES}, folder)


@pytest.mark.parametrize("name", NAMES)
def test_every_measured_quantity_equals_the_reference(
    variants: dict[str, Outcome], name: str
) -> None:
    assert_true(compare(variants[name]))


@pytest.mark.parametrize("name", NAMES)
def test_manifest_says_which_options_were_on(variants: dict[str, Outcome], name: str) -> None:
    config, manifest = VARIANTS[name], read_trace(variants[name].run).manifest
    assert manifest.runner == RUNNERS.get(name, "v1")
    assert manifest.norm_flags == {
        flag: getattr(config, flag)
        for flag in ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")
    }
    assert manifest.drafter_layers == config.layer.num_hidden_layers
    assert manifest.aux_layers == config.aux_layers


def test_masses_come_depth_by_depth_and_layer_by_layer(variants: dict[str, Outcome]) -> None:
    for chain in read_trace(variants["all"].run).draft.to_pylist():
        assert (chain["layers"], len(chain["sink_mass"])) == (2, 2 * K)
        # At depth 1 there is no chain of its own yet, in either layer.
        assert chain["self_mass"][:2] == [0.0, 0.0]
        assert min(chain["self_mass"][2:]) > 0


def test_a_small_vocabulary_drafts_the_targets_ids(variants: dict[str, Outcome]) -> None:
    chains = read_trace(variants["all"].run).draft.to_pylist()
    size = VARIANTS["all"].draft_vocab_size
    assert size is not None
    assert max(max(chain["token_ids"]) for chain in chains) >= size
