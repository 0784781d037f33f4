"""Repairs: each undoes the mistake that it is for, and a tie is reported."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from support.checkpoints import (
    ATTENTION,
    GATE,
    HEAD,
    HEADS,
    OUT,
    SIZES,
    TARGET,
    TURNED,
    UP,
    WIDE,
    Config,
    K,
    Planting,
    Q,
    State,
    V,
    changed,
    each,
    exchanged,
    fields,
    halves,
    heads,
    interleaved,
    latent_drafter,
    stored,
    transposed,
)
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from verification.zoo.kind import VOCABULARY
from verification.zoo.mtp import KIMI

from driftscope.errors import CheckpointError
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.checks.result import CheckLevel
from driftscope.inspect.drafter_classes import AUX_LAYERS
from driftscope.inspect.files import read_config
from driftscope.inspect.inspection import inspect_files
from driftscope.inspect.trial.drafting import Repair, Variant, as_served
from driftscope.inspect.trial.layer_repairs import OF_VOCABULARY, layer_repairs
from driftscope.inspect.trial.repairs import (
    TargetFacts,
    attention_repairs,
    layers_needed,
    nearby_layers,
    repairs,
)
from driftscope.inspect.trial.result import Trial
from driftscope.inspect.trial.target import Passage
from driftscope.inspect.trial.trial import Bench, Runner, run_trial
from driftscope.inspect.trial.verdict import best_repair, verdict
from driftscope_lab.trio import encode, load_prompts, trio_path


def _repairs(folder: Path, **changes: Callable[..., object]) -> tuple[Variant, dict[str, Repair]]:
    base = as_served(open_drafter(str(changed(folder, **changes))), 6)
    both = *attention_repairs(base), *layer_repairs(base, read_config(TARGET))
    found = {one.id: one for one in both}
    return base, found


def _minus_one(state: State, *names: str) -> None:
    """Store norms as w - 1, in float32: rounded they could not be restored."""
    for name in names or [name for name in state if "norm" in name]:
        state[name] = (state[name].double() - 1).float()


def _halved(state: State) -> None:
    for name, one in state.items():
        if one.dim() == 2 and not name.startswith(OF_VOCABULARY):
            state[name] = one / 2


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("order_of_heads", each(heads([7, 0, 1, 2, 3, 4, 5, 6]), Q)),
        ("order_of_heads", each(heads([3, 0, 1, 2]), K)),
        ("order_of_heads", each(heads([1, 0, 3, 2]), V)),
        ("o_proj_transposed", each(transposed, OUT)),
        ("gate_and_up", exchanged(GATE, UP)),
        ("k_and_v", exchanged(K, V)),
        ("rope_layout_of_q", each(interleaved, Q)),
        ("rope_layout_of_k", each(interleaved, K)),
        ("norms_plus_one", _minus_one),
        ("norms_plus_one", lambda state: _minus_one(state, "norm.weight")),
        ("matrices_half_as_large", _halved),
    ],
)
def test_a_repair_of_weights_restores_them(tmp_path: Path, name: str, plant: Planting) -> None:
    _, found = _repairs(tmp_path, weights=plant)
    repaired = found[name].variant.state
    assert all(torch.allclose(repaired[key], one.float()) for key, one in stored("eagle31").items())


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rms_norm_eps", {"rms_norm_eps": 1.0}),
        ("rope_theta", {"rope_theta": 1e6}),
        ("partial_rotary_factor", {"partial_rotary_factor": 0.5}),
        ("heads_8_of_32", {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}),
    ],
)
def test_a_repair_of_the_config_takes_the_targets_value(
    tmp_path: Path, name: str, values: Config
) -> None:
    base, found = _repairs(tmp_path, config=fields(**values))
    target = read_config(TARGET)
    expected = {field: target.get(field, 1.0) for field in values}
    assert found[name].fields == expected
    layer = found[name].variant.config.layer
    assert {field: getattr(layer, field) for field in values} == expected
    assert layer != base.config.layer


def test_an_outlying_row_is_made_as_large_as_the_others(tmp_path: Path) -> None:
    value = f"{V}.weight"
    base, found = _repairs(tmp_path, weights=lambda state: state[value][17].mul_(1e4))
    rows = found["outlying_rows"].variant.state[value].abs().amax(-1)
    assert rows[17] == pytest.approx(float(base.state[value].abs().amax(-1).median()), rel=1e-3)
    assert "row 17 of midlayer.self_attn.v_proj.weight" in found["outlying_rows"].mistake


@pytest.mark.parametrize("part", ["q_proj", "v_proj", "o_proj", "gate_proj", "hidden_norm"])
def test_numbers_that_are_not_finite_stop_no_repair(tmp_path: Path, part: str) -> None:
    def weights(state: State) -> None:
        for name in state:
            if part in name:
                state[name].flatten()[7] = float("nan")

    _, found = _repairs(tmp_path, weights=weights)
    assert "matrices_half_as_large" in found


def test_a_healthy_drafter_gets_only_repairs_that_run(tmp_path: Path) -> None:
    base, found = _repairs(tmp_path)
    assert set(found) == {
        *("o_proj_transposed", "matrices_half_as_large", "heads_4_of_64", "heads_16_of_16"),
        *("rope_layout", "attention_halves"),
    }
    assert all(one.variant.build("cpu") for one in found.values()) and base


LAYERS = 8


@pytest.fixture(scope="module")
def base() -> Variant:
    return as_served(open_drafter(str(trio_path() / "eagle31")), LAYERS)


def _candidates(base: Variant, layers: Sequence[int]) -> list[tuple[int, ...]]:
    wrong = base.with_config(aux_layers=tuple(layers))
    facts = TargetFacts(
        layers=LAYERS,
        fields={"rope_theta": base.config.layer.rope_theta},
        embedding=base.state["fc.weight"],
        head=base.state["lm_head.weight"],
    )
    found = [repair.fields.get(AUX_LAYERS) for repair in repairs(wrong, facts)]
    return [tuple(layers) for layers in found if layers]


@pytest.mark.parametrize("wrong", [(1, 3, 5), (2, 3, 6), (2, 4, 5)])
def test_one_wrong_layer_is_among_the_repairs(base: Variant, wrong: tuple[int, ...]) -> None:
    found = _candidates(base, wrong)
    assert (2, 3, 5) in found and len(found) == len(set(found)) <= 9
    assert all(low < high for layers in found for low, high in pairwise(layers))
    assert min(map(min, found)) >= 0 and max(map(max, found)) <= LAYERS


def test_a_search_from_another_list_reaches_every_list_nearby(base: Variant) -> None:
    wrong = base.with_config(aux_layers=(1, 4, 6))
    seen: set[tuple[int, ...]] = {(1, 4, 6)}
    reached = [(1, 4, 6)]
    for layers in reached:
        for repair in nearby_layers(wrong, layers, {0, 1, 2, 3, 4, 5, 6, 7}, seen):
            assert "best of the layers tried" in repair.mistake and "[1, 4, 6]" in repair.mistake
            reached.append(repair.variant.config.aux_layers)
    assert (2, 3, 5) in reached and len(reached) == len(set(reached)) == len(seen)


@pytest.mark.slow
def test_three_wrong_layers_lead_to_those_of_training_and_ties_are_named(base: Variant) -> None:
    prompts = {str(at): encode(one.in_distribution) for at, one in enumerate(load_prompts()[:12])}
    bench = Bench(open_target(str(trio_path() / "target")), lambda _: prompts)
    wrong = base.with_config(aux_layers=(1, 4, 6)).with_shared_head(bench.facts.head)
    candidates = [one for one in repairs(wrong, bench.facts) if AUX_LAYERS in one.fields]
    layers = layers_needed(wrong, candidates)

    def answered(most: int) -> list[Passage]:
        return bench.passages(layers, 5, most=most)

    trial = Runner(bench.teacher, answered, 5).run(wrong, candidates)
    (result,) = verdict(trial)
    assert result.change == f'"{AUX_LAYERS}": [2, 3, 5]'
    assert "accept about as much" in result.found and "[1, 4, 5]" in result.found
    shared = base.with_shared_head(bench.facts.head)
    assert best_repair(Runner(bench.teacher, answered, 5).run(shared, candidates)) is None


LATENT_K, LATENT_LAYERS, PROMPTS = 5, 4, 12


@functools.cache
def _bench() -> Bench:
    prompts = {prompt.id: encode(prompt.in_distribution) for prompt in load_prompts()[:PROMPTS]}
    return Bench(open_target(str(TARGET)), lambda _: prompts)


def _trial(path: Path) -> Trial:
    return run_trial(open_drafter(str(path)), LATENT_LAYERS, _bench, LATENT_K)


def _latent(folder: Path, **changes: Callable[..., object]) -> Path:
    return changed(folder, latent_drafter(folder), **changes)


DOWN_PROJECTIONS = ("q_a_proj", "kv_a_proj_with_mqa")
QUERIES, CACHED = f"{ATTENTION}.q_b_proj.weight", f"{ATTENTION}.kv_a_proj_with_mqa.weight"


def _in_halves(state: State) -> None:
    """Lay out the rotated rows as engines do not read them."""
    order = torch.cat([torch.arange(0, TURNED, 2), torch.arange(1, TURNED, 2)])
    queries = state[QUERIES].view(HEADS, HEAD + TURNED, WIDE)
    queries[:, HEAD:] = queries[:, HEAD:][:, order].clone()
    state[CACHED][WIDE:] = state[CACHED][WIDE:][order].clone()


def test_the_files_are_healthy(tmp_path: Path) -> None:
    inspection = inspect_files(str(latent_drafter(tmp_path)), str(TARGET))
    assert inspection.known
    assert not [result.id for result in inspection.results if result.level is not CheckLevel.NOTE]


@pytest.mark.slow
@pytest.mark.nightly
def test_a_healthy_drafter_gets_no_repair(tmp_path: Path) -> None:
    trial = _trial(latent_drafter(tmp_path))
    assert trial.acceptance.mean_length > 2
    assert {"rope_layout", "attention_halves", "norm_output"} <= {t.change.id for t in trial.tried}
    assert not [result for result in verdict(trial) if result.level is not CheckLevel.NOTE]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("repair", "change"),
    [
        pytest.param(
            "norm_output", {"config": fields(norm_output=False)}, marks=pytest.mark.nightly
        ),
        (
            "attention_halves",
            {"weights": each(halves, *(f"{ATTENTION}.{part}" for part in DOWN_PROJECTIONS))},
        ),
    ],
)
def test_a_mistake_is_named(
    tmp_path: Path, repair: str, change: dict[str, Callable[..., object]]
) -> None:
    trial = _trial(_latent(tmp_path, **change))
    assert next(iter(verdict(trial))).id == f"repaired_by.{repair}"


def test_the_layout_of_rotated_rows_is_restored(tmp_path: Path) -> None:
    healthy, planted = (
        as_served(open_drafter(str(path)), LATENT_LAYERS)
        for path in (_latent(tmp_path / "a"), _latent(tmp_path / "b", weights=_in_halves))
    )
    (repair,) = (one for one in attention_repairs(planted) if one.id == "rope_layout")
    moved = [n for n in healthy.state if not torch.equal(healthy.state[n], planted.state[n])]
    assert moved == [CACHED, QUERIES]
    for name, tensor in repair.variant.state.items():
        assert torch.equal(tensor, healthy.state[name]), name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q_lora_rank": None}, "q_lora_rank"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "llama3"),
    ],
)
def test_what_the_reference_cannot_run_is_named(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    path = _latent(tmp_path, config=fields(**change))
    with pytest.raises(CheckpointError, match=words):
        as_served(open_drafter(str(path)), LATENT_LAYERS)


def test_a_norm_before_fc_is_neither_read_nor_proposed(tmp_path: Path) -> None:
    path = _latent(tmp_path, config=fields(norm_before_fc=True))
    config = as_served(open_drafter(str(path)), LATENT_LAYERS).config
    assert config.latent == SIZES and not config.norm_before_fc


@pytest.mark.slow
def test_a_target_with_latent_attention_answers_too(tmp_path: Path) -> None:
    """Weights are random, so that nothing is accepted, and no repair helps."""
    KIMI.build(tmp_path)
    first, *_ = words = {f"t{token}": token for token in range(VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token=first))
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=first)
    whole.save_pretrained(tmp_path / "target")
    target = open_target(str(tmp_path / "target"))
    asked = {f"p{at:02d}": [1 + (at * n) % 200 for n in range(1, 12)] for at in range(8)}
    bench = Bench(target, lambda _: asked)
    drafter = open_drafter(str(tmp_path / "drafter"))
    trial = run_trial(drafter, target.layers, lambda: bench, LATENT_K)
    assert trial.prompts == len(asked) and trial.acceptance.mean_length < 1.2
    assert [result.id for result in verdict(trial)] == ["accepts_little"]
