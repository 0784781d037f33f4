"""Every option of the EAGLE-3 family is recorded correctly in real vLLM, not only the shipped
pair's."""

from pathlib import Path

import pytest
from support.engine_process.job import K, Outcome, run_jobs
from verification.truth import compare
from verification.variants import COVERING, RUNNERS, VARIANTS, variant_jobs

from driftscope.trace.reader import read_trace
from engines.test_truth import assert_true

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Outcome by name of the variant."""
    folder: Path = tmp_path_factory.mktemp("variants")
    jobs = variant_jobs(folder / "weights")
    return run_jobs({name: jobs[name] for name in COVERING}, folder)


@pytest.mark.parametrize("name", COVERING)
def test_every_measured_quantity_equals_the_reference(
    variants: dict[str, Outcome], name: str
) -> None:
    assert_true(compare(variants[name]))


@pytest.mark.parametrize("name", COVERING)
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
