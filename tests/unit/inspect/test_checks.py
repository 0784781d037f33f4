"""Checks of a checkpoint's files: each planted mistake is found, and healthy checkpoints pass."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.checkpoints import (
    ATTENTION,
    AUX,
    DOWN,
    FEWER,
    NORMS,
    TARGET,
    UP,
    Config,
    Edit,
    Planting,
    State,
    added,
    as_speculators,
    captured,
    changed,
    each,
    eagle1_config,
    fields,
    latent_drafter,
    of_dims,
    own_vocabulary,
    own_vocabulary_config,
    save_model,
    speculators_names,
    stored,
    without,
)
from verification.zoo.mtp import DEEPSEEK, ERNIE, MIMO, MIMO_V2

from driftscope.errors import CheckpointError
from driftscope.inspect.checkpoints import find_heads, open_drafter, open_target
from driftscope.inspect.checks.config import check_bias, check_engine, check_norm_flags
from driftscope.inspect.checks.layer_fields import (
    NEUTRAL,
    OF_BLOCKS,
    OWN_PARTS,
    RUN_WITH,
    SGLANG_ALONE,
    SOURCES,
    WITHOUT_EFFECT,
    fields_read,
    not_promised,
    vllm_models,
)
from driftscope.inspect.checks.result import CheckLevel, CheckResult, Inspected
from driftscope.inspect.checks.tensors import check_shapes
from driftscope.inspect.drafter_classes import row_of
from driftscope.inspect.inspection import (
    Soundness,
    checks_of,
    inspect_files,
    run_checks,
)
from driftscope.inspect.reference.drafter import ReferenceDrafter
from driftscope.inspect.trial.drafting import as_served
from driftscope_lab.training.checkpoints import load_target, save_drafter
from driftscope_lab.trio import trio_path

H = 256


def _results(drafter: Path, target: Path | None = TARGET) -> dict[str, CheckResult]:
    opened = open_target(str(target)) if target else None
    inspected = Inspected(drafter=open_drafter(str(drafter)), target=opened)
    return {result.id: result for result in run_checks(inspected)}


def _bad(results: dict[str, CheckResult]) -> list[str]:
    return [name for name, result in results.items() if result.level is not CheckLevel.NOTE]


@pytest.mark.parametrize("name", ["eagle3", "eagle31"])
@pytest.mark.parametrize("target", [TARGET, None], ids=["with target", "alone"])
def test_a_shipped_drafter_has_no_error_and_no_warning(name: str, target: Path | None) -> None:
    assert not _bad(_results(trio_path() / name, target))


@pytest.mark.parametrize(
    ("config", "weights"),
    [(own_vocabulary_config, own_vocabulary), (as_speculators, speculators_names)],
    ids=["a smaller vocabulary", "the speculators format"],
)
def test_a_healthy_drafter_of_another_layout_has_no_error(
    config: Edit, weights: Planting, tmp_path: Path
) -> None:
    results = _results(changed(tmp_path / "a", config=config, weights=weights))
    assert not _bad(results)
    flags = results.get("flags_need_newer_vllm")
    assert (flags is not None) is (config is as_speculators)
    assert flags is None or "vllm#46488" in flags.expected


def _wrapped(prefix: str, state: State) -> None:
    for name in [*state]:
        state[f"{prefix}{name}"] = state.pop(name)


@pytest.mark.parametrize(
    "prefix", ["eagle_module.", "module.model.", "_orig_mod.", "module.draft_model."]
)
def test_a_wrappers_prefix_is_the_only_mistake_of_a_drafter_that_is_whole(
    prefix: str, tmp_path: Path
) -> None:
    results = _results(changed(tmp_path / "a", weights=partial(_wrapped, prefix)))
    assert _bad(results) == ["prefixed_names"]
    assert results["prefixed_names"].level is CheckLevel.ERROR


@pytest.mark.parametrize(
    ("config", "weights", "bad"),
    [
        (fields(ptd_token_id=100), {"mask_hidden": torch.rand(1, 1, 768)}, []),
        (fields(pard_token=100), {}, ["missing_tensor"]),
        (fields(pard_token=100), {"mask_hidden": torch.rand(H)}, ["wrong_shape"]),
        (None, {"mask_hidden": torch.rand(1, 1, 768)}, ["mask_token_missing"]),
    ],
    ids=["vLLM's", "a token alone", "one state", "no token"],
)
def test_an_eagle3_drafter_with_a_mask_drafts_in_parallel(
    config: Edit | None, weights: State, bad: list[str], tmp_path: Path
) -> None:
    path = changed(tmp_path / "a", config=config, weights=lambda state: state.update(weights))
    drafter = open_drafter(str(path))
    assert drafter.format.name == "P-EAGLE" and drafter.format.parallel
    results = _results(path)
    assert _bad(results) == bad and "fields_not_known" not in results


EMBEDDING = stored("target")["model.embed_tokens.weight"]


def _targets_head(state: State) -> None:
    table = state.get("d2t", torch.zeros(len(EMBEDDING), dtype=torch.long))
    state["lm_head.weight"] = EMBEDDING[torch.arange(len(table)) + table].clone()


def _targets_norm(state: State) -> None:
    state["norm.weight"] = stored("target")["model.norm.weight"]


def _norm_over_all(state: State) -> None:
    norms = [state.pop(f"fc_norm.{layer}.weight") for layer in range(3)]
    state["input_norm.weight"] = torch.cat(norms)


def _rows(value: float, count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: torch.cat([torch.full_like(tensor[:count], value), tensor[count:]])


FC_NORMS = [f"fc_norm.{layer}" for layer in range(3)]


def _swapped_flag(config: Config) -> None:
    config["eagle_config"]["norm_output"] = config.pop("norm_output")


FP8 = fields(quantization_config={"quant_method": "fp8"})
INPUT_NORM = added("input_norm.weight", torch.rand(768))
LINEAR = {"rope_type": "linear", "factor": 2.0}
PLANTED_IN_CONFIG = {
    "fc_norm_unused": fields(fc_norm=False),
    "norm_output_off": fields(norm_output=False),
    "flag_not_boolean": fields(norm_output="false"),
    "flag_not_read": _swapped_flag,
    "fc_width": captured(1, 2),
    "captured_layers_order": captured(3, 2, 1),
    "captured_layers_range": captured(1, 2, 9),
    "captured_layers_contradict": fields(**{AUX: [2, 3, 4]}),
    "captured_layers_collapse": captured(),
    "wrong_shape": fields(intermediate_size=500),
    "other_vocabulary": fields(vocab_size=2048, draft_vocab_size=1024),
    "d2t_missing": own_vocabulary_config,
    "target_width": fields(target_hidden_size=128),
    "rope_theta_differs": fields(rope_theta=500000.0),
    "rope_scaling_differs": fields(rope_scaling=LINEAR),
    "context_shorter": fields(max_position_embeddings=512),
    "quantized_on_one_side": FP8,
    "weights_not_quantized": FP8,
    "other_type": fields(torch_dtype="float16"),
    "own_window": fields(sliding_window=128),
}


def _in_8_bits(state: State) -> State:
    return {name: one.to(torch.float8_e4m3fn) for name, one in state.items() if one.dim() == 2}


def _bits(kind: torch.dtype, read: torch.dtype) -> Planting:
    def change(one: torch.Tensor) -> torch.Tensor:
        return one.to(kind).view(torch.int16).view(read).float()

    return each(change, DOWN)


PLANTED_IN_WEIGHTS = {
    "odd_numbers of bfloat16 as float16": _bits(torch.bfloat16, torch.float16),
    "odd_numbers of float16 as bfloat16": _bits(torch.float16, torch.bfloat16),
    "odd_numbers of a row": each(_rows(3e38, 1), DOWN),
    "fc_norm_missing": without("fc_norm."),
    "fc_norm_count": without("fc_norm.2"),
    "fc_norm_and_norm_before_fc_swapped": _norm_over_all,
    "norm_all_ones": each(torch.ones_like, *FC_NORMS),
    "captured_layer_ignored": lambda state: state["fc.weight"][:, :H].mul_(1e-6),
    "missing_tensor": without("midlayer.mlp.up_proj"),
    "unexpected_tensor": added("layers.1.mlp.up_proj.weight", torch.rand(512, H)),
    "prefixed_names": lambda state: state.update({"model.norm.weight": state.pop("norm.weight")}),
    "not_finite": each(_rows(float("nan"), 1), "fc"),
    "dead_rows": each(_rows(0, 40), "lm_head"),
    "dead_rows that are columns": each(lambda one: torch.cat([one[:, :9] * 0, one[:, 9:]], 1), UP),
    "head_shared": without("lm_head."),
    "whole_numbers": lambda state: state.update({f"{UP}.weight": state[f"{UP}.weight"].int()}),
    "weights_repeated": lambda state: state.update(
        {"fc_norm.1.weight": state["fc_norm.0.weight"].clone()}
    ),
    "scale_lost": each(_rows(448, 1), UP),
    "scale_lost of 8 bits": lambda state: state.update(_in_8_bits(state)),
    "head_is_targets": _targets_head,
    "head_of_other_tokens": each(
        lambda head: torch.cat([head[:500], head[500:600].roll(1, 0), head[600:]]), "lm_head"
    ),
    "norm_is_targets": _targets_norm,
    "norms_of_ones": each(torch.ones_like, NORMS[1]),
    "d2t_unused": added("d2t", torch.zeros(1024, dtype=torch.long)),
    "embedding_not_targets": added("embed_tokens.weight", torch.randn(1024, H)),
}
PLANTED = {
    **{name: (config, None) for name, config in PLANTED_IN_CONFIG.items()},
    **{name: (None, weights) for name, weights in PLANTED_IN_WEIGHTS.items()},
    "norm_before_fc_unused": (fields(fc_norm=False), _norm_over_all),
    "norm_before_fc_missing": (fields(fc_norm=False, norm_before_fc=True), without("fc_norm.")),
    "two_norms_before_fc": (fields(norm_before_fc=True), INPUT_NORM),
    "norm_output_of_specforge": (fields(fc_norm=False), without("fc_norm.")),
}
"""Mistake by the id of the result that names it: changes of config and weights."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_named(name: str, tmp_path: Path) -> None:
    config, weights = PLANTED[name]
    results = _results(changed(tmp_path / "a", config=config, weights=weights))
    id_ = name.partition(" ")[0]
    assert id_ in results, f"found only {list(results)}"
    result = results[id_]
    assert result.expected and result.rule and result.found
    assert result.change or result.level is CheckLevel.NOTE


NOISE = torch.Generator().manual_seed(5)


def _noisy(one: torch.Tensor) -> torch.Tensor:
    return one * (1 + 0.01 * torch.randn(one.shape, generator=NOISE))


def _head_from_targets(state: State) -> None:
    _targets_head(state)
    state["lm_head.weight"][::100] *= 1.05


def _norm_from_targets(state: State) -> None:
    _targets_norm(state)
    each(_noisy, "norm")(state)


def _quantised_and_back(levels: int, one: torch.Tensor) -> torch.Tensor:
    scale = one.abs().max() / levels
    return (one / scale).round() * scale


def _scaled(state: State) -> None:
    for name, one in _in_8_bits(state).items():
        state |= {name: one, f"{name}_scale": torch.ones(())}


LOOK_ALIKES: dict[str, tuple[str, Callable[[State], object]]] = {
    "matrices quantised and scaled back": (
        "scale_lost",
        of_dims(2, partial(_quantised_and_back, 127)),
    ),
    "matrices with large numbers": ("scale_lost", of_dims(2, lambda one: one * 400 / one.max())),
    "trained on": ("scale_lost", of_dims(2, _noisy)),
    "a head trained from the target's": ("head_is_targets", _head_from_targets),
    "8-bit numbers beside scales": ("scale_lost", _scaled),
    "4-bit numbers, scaled back": ("odd_numbers", of_dims(2, partial(_quantised_and_back, 7))),
    "evenly spread numbers": ("odd_numbers", of_dims(2, lambda one: torch.rand_like(one) - 0.5)),
    "a head of random rows": (
        "head_of_other_tokens",
        each(lambda one: torch.randn(one.shape, generator=NOISE), "lm_head"),
    ),
    "a head that is the embedding": (
        "weights_repeated",
        lambda state: state.update(
            {f"{name}.weight": EMBEDDING.clone() for name in ("lm_head", "embed_tokens")}
        ),
    ),
    "a small matrix": ("odd_numbers", added("extra.weight", torch.ones(8, 8) - torch.eye(8) / 2)),
    "norms of ones": ("weights_repeated", of_dims(1, torch.ones_like)),
    "a bias of zeros": ("dead_rows", added(f"{ATTENTION}.q_proj.bias", torch.zeros(H))),
    "norms that are not trained at all": ("norms_of_ones", of_dims(1, torch.ones_like)),
    "norms trained from ones": ("norms_of_ones", of_dims(1, lambda one: _noisy(one * 0 + 1))),
    "a norm trained from the target's": ("norm_is_targets", _norm_from_targets),
}
"""Healthy weights that resemble lost or copied ones, and the result that they must not have."""


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_weights_that_resemble_lost_or_copied_ones_are_not_named(name: str, tmp_path: Path) -> None:
    result, weights = LOOK_ALIKES[name]
    assert result not in _results(changed(tmp_path / "a", weights=weights))


def test_of_a_quantised_drafter_a_module_without_tensors_is_missing(tmp_path: Path) -> None:
    for folder, gone in (("whole", "none"), ("partly", "midlayer.mlp.")):
        path = changed(tmp_path / folder, config=FP8, weights=_scaled)
        results = _results(changed(path, path, weights=without(gone)))
        assert _bad(results) == (["missing_tensor"] if folder == "partly" else [])


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"quant_algo": None, "kv_cache_quant_algo": "FP8"}, set()),
        ({"quant_algo": "FP8", "exclude_modules": ["lm_head"]}, {"weights_not_quantized"}),
        ({"quant_algo": "FP8", "exclude_modules": ["model.layers.8*", "fc"]}, set()),
    ],
    ids=["only the cache", "the head left out", "all left out"],
)
def test_what_modelopt_left_out_is_not_quantised(
    tmp_path: Path, settings: Config, found: set[str]
) -> None:
    path = changed(tmp_path / "a")
    (path / "hf_quant_config.json").write_text(json.dumps({"quantization": settings}))
    assert {*_bad(_results(path))} == found


def _tabled(change: Callable[[State], object], state: State) -> None:
    own_vocabulary(state)
    change(state)


def _end_left_out(state: State) -> None:
    state["d2t"].add_(1)
    state["t2d"] = state["t2d"].roll(1)


TABLES: dict[str, Callable[[State], object]] = {
    "d2t_zero": lambda state: state["d2t"].zero_(),
    "d2t_absolute": lambda state: state["d2t"].add_(torch.arange(FEWER)),
    "d2t_range": lambda state: state["d2t"].add_(5),
    "d2t_repeats": lambda state: state["d2t"][3:4].sub_(2),
    "t2d_contradicts_d2t": lambda state: state["t2d"].logical_not_(),
    "d2t_type": lambda state: state.update(d2t=state["d2t"].bfloat16()),
    "head_of_other_tokens": lambda state: state["d2t"][300:].add_(1),
    "head_is_targets": _targets_head,
    "end_token_not_drafted": _end_left_out,
}


@pytest.mark.parametrize("name", TABLES)
def test_a_wrong_table_of_the_draft_vocabulary_is_named(name: str, tmp_path: Path) -> None:
    weights = partial(_tabled, TABLES[name])
    result = _results(changed(tmp_path / "a", config=own_vocabulary_config, weights=weights))[name]
    if name == "end_token_not_drafted":
        assert result.level is CheckLevel.NOTE and "[4]" in result.found
    elif "2" in name:
        assert result.level is CheckLevel.ERROR


def test_a_copied_embedding_is_a_note_with_its_size(tmp_path: Path) -> None:
    results = _results(changed(tmp_path / "a", weights=added("embed_tokens.weight", EMBEDDING)))
    assert results["embedding_copied"].level is CheckLevel.NOTE
    assert not _bad(results)


def test_another_tokenizer_and_another_template_are_named(tmp_path: Path) -> None:
    path = changed(tmp_path / "a")
    written = (TARGET / "tokenizer.json").read_text()
    other, added = json.loads(written), json.loads(written)
    words = other["model"]["vocab"].items()
    other["model"]["vocab"] = {word: 1023 - n for word, n in words}
    added["added_tokens"][0]["content"] = "<another>"
    (path / "chat_template.jinja").write_text("{{ messages }}")
    for tokenizer, level in ((other, CheckLevel.ERROR), (added, CheckLevel.WARNING)):
        (path / "tokenizer.json").write_text(json.dumps(tokenizer))
        results = _results(path)
        assert results["tokenizer_differs"].level is level
        assert results["template_differs"].level is CheckLevel.WARNING
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TARGET / name, path / name)
    (path / "chat_template.jinja").unlink()
    assert not _bad(_results(path))
    older = json.loads(written)
    older["model"]["merges"] = [" ".join(pair) for pair in older["model"]["merges"]]
    (path / "tokenizer.json").write_text(json.dumps(older))
    assert not _bad(_results(path))


def test_of_a_target_only_config_embedding_and_head_are_needed(tmp_path: Path) -> None:
    shutil.copy(TARGET / "config.json", tmp_path)
    shards = {"model.embed_tokens.weight": "a.safetensors", "model.norm.weight": "gone.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    shutil.copy(TARGET / "model.safetensors", tmp_path / "a.safetensors")
    path = changed(tmp_path / "drafter", weights=added("embed_tokens.weight", torch.randn(1024, H)))
    assert "embedding_not_targets" in _results(path, tmp_path)


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    save_drafter(ReferenceDrafter(eagle1_config(load_target(TARGET))), tmp_path / "drafter")
    return tmp_path / "drafter"


NOTES = ["architecture_of_one_engine", "bias_random_in_sglang"]


def test_a_whole_checkpoint_has_notes_on_engines_only(drafter: Path) -> None:
    found = _results(drafter)
    assert [*found] == NOTES and not _bad(found)
    first = found[NOTES[0]]
    assert "EagleLlamaForCausalLM" in first.found and "SGLang" in first.title
    made = checks_of(Inspected(drafter=open_drafter(str(drafter)), target=None))
    assert {check_engine, check_bias, check_shapes} < {*made} and check_norm_flags not in made


def test_one_that_names_its_targets_architecture_is_the_same(drafter: Path) -> None:
    changed(drafter, drafter, config=fields(architectures=["LlamaForCausalLM"]))
    assert open_drafter(str(drafter)).format.name == "EAGLE-1 or EAGLE-2"
    assert [*_results(drafter)] == NOTES


def test_one_for_sglang_should_have_a_bias_and_may_have_a_head(drafter: Path) -> None:
    changed(drafter, drafter, config=fields(architectures=["LlamaForCausalLMEagle"]))
    assert _results(drafter)["bias_random_in_sglang"].level is CheckLevel.WARNING
    own = {"fc.bias": _ones(H), "lm_head.weight": _ones(1024, H)}
    changed(drafter, drafter, weights=lambda state: state.update(own))
    (only,) = _results(drafter).values()
    assert only.id == "architecture_of_one_engine" and "vLLM" in only.title


def _ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bfloat16)


def _renamed(state: State) -> None:
    for name in [*state]:
        state[name.replace("layers.0.", "midlayer.")] = state.pop(name)


NORM = "layers.0.input_layernorm.weight"
PLANTED_IN_EAGLE1: dict[str, tuple[Planting, str, str]] = {
    "a head of its own": (added("lm_head.weight", _ones(1024, H)), "unexpected_tensor", "lm_head"),
    "a bias": (added("fc.bias", _ones(H)), "unexpected_tensor", "fc.bias"),
    "a norm at the input": (added(NORM, _ones(H)), "unexpected_tensor", "input_layernorm"),
    "names of EAGLE-3": (_renamed, "unexpected_tensor", "layers.0.mlp"),
    "fc of one input": (each(lambda fc: fc[:, :H], "fc"), "fc_width", "256 x 256"),
    "no fc": (without("layers.0.mlp.up_proj"), "missing_tensor", "up_proj"),
}


@pytest.mark.parametrize("name", PLANTED_IN_EAGLE1)
def test_what_vllm_refuses_is_an_error(drafter: Path, name: str) -> None:
    plant, id_, words = PLANTED_IN_EAGLE1[name]
    found = _results(changed(drafter, drafter, weights=plant))
    assert _bad(found) == [id_]
    assert words in found[id_].found
    assert "llama_eagle.py" in found[id_].rule


KINDS = {
    "DeepSeekMTPModel": DEEPSEEK,
    "MiMoMTPModel": MIMO,
    "MiMoV2MTPModel": MIMO_V2,
    "ErnieMTPModel": ERNIE,
}


@pytest.fixture(params=KINDS)
def built(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    KINDS[request.param].build(tmp_path / "model")
    return request.param, tmp_path / "model"


def _found(path: Path) -> dict[str, CheckResult]:
    results = _results(path, None)
    return {name: results[name] for name in _bad(results)}


def test_heads_that_vllm_loads_have_no_fault(built: tuple[str, Path]) -> None:
    name, path = built
    drafter = open_drafter(str(path))
    heads = find_heads(drafter.raw, drafter.tensors)
    assert heads is not None and list(heads.heads) == [0]
    assert drafter.format.architecture == name
    assert _found(path) == {}
    assert check_shapes not in checks_of(Inspected(drafter=drafter))


def test_only_the_heads_tensors_are_opened(built: tuple[str, Path]) -> None:
    _, path = built
    whole = load_file(path / "model.safetensors")
    opened = open_drafter(str(path)).tensors
    assert 0 < len(opened) < len(whole)
    assert "model.layers.0.self_attn.o_proj.weight" in whole.keys() - opened.keys()


def test_lost_heads_are_an_error(built: tuple[str, Path]) -> None:
    _, path = built
    heads = open_drafter(str(path)).tensors
    changed(path, path, weights=lambda state: [state.pop(name) for name in heads])
    (found,) = _found(path).values()
    assert (found.id, found.found) == ("mtp_heads_missing", "0")
    assert "vllm#35548" in found.rule


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"quant_method": "fp8"}, True),
        ({"quant_method": "compressed-tensors", "ignore": ["lm_head"]}, True),
        (
            {"quant_method": "modelopt", "ignore": ["*mtp*", "model.layers.2*", "model.layers.3*"]},
            False,
        ),
        (
            {
                "quant_method": "fp8",
                "modules_to_not_convert": ["mtp_layers", "mtp", "mtp_block", "2", "3"],
            },
            False,
        ),
        ({"quant_method": "compressed-tensors", "ignore": [r"re:.*(mtp|layers\.[23]\.).*"]}, False),
    ],
    ids=["no list", "another layer", "a pattern", "a part", "an expression"],
)
def test_plain_heads_are_a_warning_only_where_an_engine_builds_them_quantised(
    built: tuple[str, Path], settings: dict[str, Any], warned: bool
) -> None:
    _, path = built
    changed(path, path, config=fields(quantization_config=settings))
    found = _found(path)
    assert ("mtp_heads_not_quantized" in found) is warned
    if warned:
        assert "sglang#35797" in found["mtp_heads_not_quantized"].rule


def test_numbers_of_heads_are_checked(built: tuple[str, Path]) -> None:
    _, path = built
    name = next(iter(open_drafter(str(path)).tensors))
    changed(path, path, weights=lambda state: state[name].fill_(float("nan")))
    assert "not_finite" in _found(path)


def test_heads_of_qwen_share_norms_and_projection(tmp_path: Path) -> None:
    shapes = {
        "mtp.fc": (8, 16),
        "mtp.norm": (8,),
        "mtp.pre_fc_norm_embedding": (8,),
        "mtp.layers.0.self_attn.q_proj": (8, 8),
        "model.language_model.layers.0.self_attn.q_proj": (8, 8),
    }
    state = {f"{name}.weight": torch.ones(shape) for name, shape in shapes.items()}
    text = {"num_hidden_layers": 1, "hidden_size": 8, "mtp_num_hidden_layers": 1}
    config = {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text}
    save_model(tmp_path, config, state)
    assert len(open_drafter(str(tmp_path)).tensors) == 4
    assert _found(tmp_path) == {}


def test_only_heads_of_mimo_are_run(built: tuple[str, Path]) -> None:
    name, path = built
    if name == "MiMoMTPModel":
        as_served(open_drafter(str(path)), 2).check()
        return
    with pytest.raises(CheckpointError, match=f"the MTP heads of {name}"):
        as_served(open_drafter(str(path)), 2)


def test_a_missing_shard_without_heads_is_not_needed(tmp_path: Path) -> None:
    MIMO.build(tmp_path)
    names = load_file(tmp_path / "model.safetensors")
    heads = "model.safetensors"
    places = {name: heads if "mtp" in name else "gone.safetensors" for name in names}
    changed(tmp_path, tmp_path, weights=lambda s: [s.pop(n) for n in names if "mtp" not in n])
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert _found(tmp_path) == {}


KNOWN = RUN_WITH | WITHOUT_EFFECT | NEUTRAL.keys()
LLAMA4 = {"intermediate_size_mlp", "hot_vocab_size"}
"""Fields of SGLang's drafters of other families."""


@pytest.mark.skipif(vllm_models() is None, reason="vLLM is not installed")
@pytest.mark.parametrize(
    "modules", [*SOURCES.values(), "DFlashDraftModel", "DFlash2DraftModel", "Qwen3DSparkModel"]
)
def test_the_installed_vllm_reads_no_other_field(modules: str | tuple[str, ...]) -> None:
    needed, known = {"rms_norm_eps", "num_attention_heads"}, KNOWN
    if isinstance(modules, str):  # a drafter of blocks
        row = row_of(modules)
        assert row is not None
        needed, known = {"mask_token_id", "swa_window_size"}, KNOWN | OF_BLOCKS | set(OWN_PARTS)
        modules = tuple(row.source.split(", "))
    found = fields_read(vllm_models(), modules)
    assert {"hidden_act", *needed} <= found
    assert not found - known


def test_sglang_reads_no_other_field() -> None:
    folders = Path(__file__).parents[3].glob(".venv/sglang-*/lib/python*/site-packages/sglang")
    for folder in folders:
        modules = ("llama_eagle3.py", "llama.py")
        found = fields_read(folder / "srt" / "models", modules)
        assert "hidden_act" in found
        assert not found - KNOWN - SGLANG_ALONE.keys() - LLAMA4 - {"__class__"}


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"hidden_act": "gelu"}, {"activation_refused": CheckLevel.ERROR}),
        ({"partial_rotary_factor": 0.5}, {"partial_rotary_differs": CheckLevel.WARNING}),
        ({"rms_norm_eps": 1.0}, {"eps_differs": CheckLevel.WARNING}),
        ({"rms_norm_eps": 1e-6}, {"eps_differs": CheckLevel.NOTE}),
        (
            {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
            {"heads_differ": CheckLevel.WARNING},
        ),
        ({"attention_bias": True}, {"missing_tensor": CheckLevel.ERROR}),
        ({"mlp_bias": True}, {"missing_tensor": CheckLevel.ERROR}),
        ({"is_causal": False}, {"fields_not_run": CheckLevel.WARNING}),
        ({"layer_types": ["sliding_attention"]}, {"fields_not_run": CheckLevel.WARNING}),
        ({"layer_types": ["full_attention"]}, {}),
        ({"layer_types": [["full_attention"]]}, {"fields_not_run": CheckLevel.WARNING}),
        ({"tie_word_embeddings": True}, {"field_of_sglang": CheckLevel.NOTE}),
        ({"my_own_field": 3}, {"fields_not_known": CheckLevel.NOTE}),
        ({"rope_scaling": {"rope_type": "linear", "factor": 1.0}}, {}),
    ],
)
def test_a_field_is_a_result(tmp_path: Path, values: Config, found: dict[str, CheckLevel]) -> None:
    results = _results(changed(tmp_path / "a", config=fields(**values)))
    assert {name: result.level for name, result in results.items()} == found


@pytest.mark.parametrize(
    ("values", "found", "level"),
    [
        ({"index_topk": 16}, "fields_not_run", CheckLevel.WARNING),
        ({"hidden_act": "gelu"}, "activation_refused", CheckLevel.ERROR),
        ({"my_own_field": 3}, "fields_not_known", CheckLevel.NOTE),
        ({"rms_norm_eps": 1.0}, "eps_differs", CheckLevel.WARNING),
    ],
)
def test_a_field_of_latent_attention_is_a_result(
    tmp_path: Path, values: Config, found: str, level: CheckLevel
) -> None:
    results = _results(changed(tmp_path, latent_drafter(tmp_path), config=fields(**values)))
    assert results[found].level is level


def test_files_alone_are_no_all_clear(tmp_path: Path) -> None:
    inspection = inspect_files(str(changed(tmp_path / "drafter")), str(TARGET))
    assert inspection.answer is Soundness.CANNOT_TELL
    assert inspection.conclusion == "No mistake in the files."


def test_a_promise_needs_fields_that_are_run(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", config=fields(is_causal=False))
    assert "is_causal" in not_promised(open_drafter(str(path)))[0]
    assert not not_promised(open_drafter(str(changed(tmp_path / "b"))))
