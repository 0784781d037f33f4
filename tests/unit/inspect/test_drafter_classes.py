"""Every class of drafter is checked, partly checked or unknown; an unknown one is never judged."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import added, changed, fields, save_model
from support.command import run_command
from support.every_drafter import ALL, BASE, CAPTURED, HEAD_DIM, MASK_TOKEN, H, V, write

from driftscope.errors import EXIT_GATE_FAILED, EXIT_OK, EXIT_UNKNOWN
from driftscope.inspect.checkpoints import DrafterFiles, open_drafter, open_target, recognise
from driftscope.inspect.checks.result import Inspected
from driftscope.inspect.checks.tensors import required
from driftscope.inspect.drafter_classes import (
    SPECULATORS,
    TARGETS,
    Coverage,
    drafter_architecture,
    names_drafter,
    row_of,
)
from driftscope.inspect.engine_loading import EngineAnswer, EngineProcess
from driftscope.inspect.inspection import inspect_files
from driftscope_probes.server.doctor import drafter_classes, package_folder

Fields = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]


def _write(folder: Path, config: Fields, shapes: Shapes) -> Path:
    torch.manual_seed(0)
    return save_model(
        folder,
        config,
        {name: torch.rand(one) + (0.5 if len(one) < 2 else -0.5) for name, one in shapes.items()},
    )


def _target(folder: Path, **fields: object) -> Path:
    config = {**BASE, "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 6, **fields}
    return _write(folder, config, {"model.embed_tokens.weight": (V, H)})


def _inspected(*words: object) -> tuple[int, Fields]:
    done = run_command("inspect", *map(str, words), "--files-only", "--json")
    return done.returncode, json.loads(done.stdout)


def _ids(document: Fields, *levels: str) -> list[str]:
    return [found["id"] for found in document["results"] if found["level"] in levels]


def _heads(layer: str, *norms: str, **columns: int) -> Shapes:
    return {
        **{f"{layer}{norm}.weight": (H,) for norm in norms},
        **{f"{layer}{name}.weight": (H, times * H) for name, times in columns.items()},
        f"{layer}self_attn.q_proj.weight": (H, H),
    }


DFLASH_TENSORS = {"fc.weight": (H, 3 * H), "hidden_norm.weight": (H,), "norm.weight": (H,)}


ENTRY = ("enorm", "hnorm")
IN_QWEN = {
    **_heads("mtp.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", fc=2),
    **_heads("mtp.layers.0."),
}
HEADS: dict[str, Shapes] = {
    "DeepseekV32MTPModel": _heads("model.layers.2.", *ENTRY, eh_proj=2),
    "Glm5NextMTPModel": _heads("model.layers.2.", *ENTRY, eh_proj=2),
    "DeepSeekV4MTPModel": _heads("mtp.0.", *ENTRY, "norm", e_proj=1, h_proj=1),
    "LongCatFlashMTPModel": {
        "model.mtp.norm.weight": (H,),
        "model.mtp.embed_tokens.weight": (V, H),
        **_heads("model.mtp.layers.0.", "enorm.m", "hnorm.m", eh_proj=2),
    },
    "NemotronHMTPModel": {
        **_heads("mtp.layers.0.", *ENTRY, eh_proj=2),
        **_heads("mtp.layers.1.", "final_layernorm"),
    },
    "Qwen3_5MTP": IN_QWEN,
    "ExaoneMoeMTP": IN_QWEN,
    "MiniMaxM3MTP": _heads(
        "language_model.model.mtp.layers.0.", *ENTRY, "final_layernorm", eh_proj=2
    ),
}
"""Tensors of a target's head, named as the module of vLLM loads them."""


@pytest.mark.parametrize("name", HEADS)
def test_heads_are_found_in_the_layout_of_their_architecture(name: str, tmp_path: Path) -> None:
    config = ALL[name].target
    code, document = _inspected(_write(tmp_path / "whole", config, HEADS[name]))
    assert (code, document["coverage"], _ids(document, "error", "warning")) == (
        EXIT_OK,
        Coverage.PARTLY,
        [],
    )
    assert name in document["format"]
    code, document = _inspected(_write(tmp_path / "none", config, {"model.norm.weight": (H,)}))
    assert (code, _ids(document, "error")) == (EXIT_GATE_FAILED, ["mtp_heads_missing"])


UNKNOWN: dict[str, tuple[Fields, Shapes]] = {
    "a target that no table has": (
        {"architectures": ["NewForCausalLM"], "num_nextn_predict_layers": 1},
        _heads("model.layers.1.", *ENTRY, eh_proj=2),
    ),
    "a drafter that vLLM registers": (
        {"architectures": ["EagleMiniCPMForCausalLM"]},
        {"a.b": (H,)},
    ),
    "a drafter that vLLM does not register": (
        {"architectures": ["LlamaForCausalLMEagle4"]},
        {"fc.weight": (H, 3 * H)},
    ),
    "a layer that vLLM has no EAGLE-3 for": (
        {"architectures": ["GptOssForCausalLM"]},
        {"midlayer.hidden_norm.weight": (H,)},
    ),
    "a new kind of speculators": (
        {"speculators_model_type": "later", "architectures": ["LaterDraftModel"]},
        {"fc.weight": (H, 3 * H)},
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_layout_is_not_judged(name: str, tmp_path: Path) -> None:
    fields, shapes = UNKNOWN[name]
    path = _write(tmp_path / "a", {**BASE, **fields}, shapes)
    code, document = _inspected(path)
    assert (code, document["coverage"]) == (EXIT_UNKNOWN, Coverage.UNKNOWN)
    assert document["results"] == [] and document["checks"] == 0
    shown = " ".join(run_command("inspect", str(path), "--files-only").stdout.split())
    assert "is of no known kind: nothing is judged" in shown
    assert f"recognised: architecture {fields['architectures'][0]}" in shown
    assert next(iter(shapes)) in shown and "drafter_classes.py" in shown


BLOCKS: Fields = {**BASE, "num_hidden_layers": 2, "markov_rank": 8}
BLOCK = {"mask_token_id": MASK_TOKEN, "target_layer_ids": CAPTURED}
DFLASH = {**BLOCKS, "architectures": ["DFlashDraftModel"], "dflash_config": BLOCK}
SPARK = {**DFLASH, "architectures": ["Qwen3DSparkModel"]}


def _block(**changes: object) -> Fields:
    return {"dflash_config": {**BLOCK, **changes}}


WRONG: dict[str, tuple[Fields, str]] = {
    "captured_layers_range": (_block(target_layer_ids=[1, 3, 6]), "[1, 3, 6]"),
    "mask_token_range": (_block(mask_token_id=V), f"{V}"),
    "mask_token_missing": ({"dflash_config": {"target_layer_ids": CAPTURED}}, "None"),
    "fc_width": (_block(target_layer_ids=[1, 2, 3, 5]), "3 captured states"),
    "captured_layers_order": (_block(target_layer_ids=[3, 1, 5]), "[3, 1, 5]"),
    "rope_theta_differs": ({"rope_theta": 5e5}, "500000"),
    "other_vocabulary": ({"vocab_size": V + 8}, f"{V + 8}"),
    "d2t_missing": ({"draft_vocab_size": V // 2}, "none"),
    "target_layers_differ": ({"num_target_layers": 36}, "36"),
    "eps_differs": ({"rms_norm_eps": 1.0}, "1"),
    "fields_not_known": (
        {"mine": 1, **_block(own=1, causal=True)},
        "mine, dflash_config.own",
    ),
}


@pytest.mark.parametrize("config", [DFLASH, SPARK], ids=["DFlash", "DSpark"])
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_with_a_parallel_drafter_is_named(
    config: Fields, wrong: str, tmp_path: Path
) -> None:
    target = _target(tmp_path / "target")
    whole = _write(tmp_path / "whole", config, DFLASH_TENSORS)
    code, document = _inspected(whole, "--target", target)
    assert (code, _ids(document, "error", "warning")) == (EXIT_OK, [])
    changes, words = WRONG[wrong]
    path = _write(tmp_path / "wrong", {**config, **changes}, DFLASH_TENSORS)
    _, document = _inspected(path, "--target", target)
    found = {result["id"]: result["found"] for result in document["results"]}
    assert words in found[wrong]


@pytest.mark.parametrize(("base", "ids"), [(1e6, []), (10000.0, ["rope_theta_differs"])])
def test_a_dflash_drafter_without_a_rotary_base_has_vllms(
    base: float, ids: list[str], tmp_path: Path
) -> None:
    config = {name: value for name, value in DFLASH.items() if name != "rope_theta"}
    path = _write(tmp_path / "a", config, DFLASH_TENSORS)
    target = _target(tmp_path / "target", rope_theta=base)
    _, document = _inspected(path, "--target", target)
    assert _ids(document, "error", "warning") == ids


def test_a_dflash_table_of_zeros_is_an_error(tmp_path: Path) -> None:
    config = {**DFLASH, "draft_vocab_size": V // 2}
    path = _write(tmp_path / "a", config, {**DFLASH_TENSORS, "lm_head.weight": (V // 2, H)})
    changed(path, path, weights=added("d2t", torch.zeros(V // 2, dtype=torch.long)))
    assert "d2t_zero" in _ids(_inspected(path)[1], "error")


def test_medusas_old_names_are_read_and_its_lost_biases_named(tmp_path: Path) -> None:
    sizes = {"hidden_size": H, "vocab_size": V, "medusa_num_heads": 2, "medusa_num_layers": 1}
    config = {"architectures": ["MedusaModel"], **sizes}
    names = {"0.linear.weight": (H, H), "0.linear.bias": (H,), "1.weight": (V, H)}
    shapes = {f"{head}.{name}": shape for head in range(2) for name, shape in names.items()}
    path = _write(tmp_path / "a", config, shapes)
    code, document = _inspected(path)
    assert (code, _ids(document, "error", "warning")) == (EXIT_OK, ["medusa_bias_dropped"])
    changed(path, path, config=fields(medusa_fc_bias=True))
    assert _inspected(path)[1]["results"] == []


def _layer_of_eagle3(states: int) -> Shapes:
    config = {**BASE, "architectures": ["LlamaForCausalLMEagle3"], "num_aux_hidden_states": states}
    kind = recognise(config, ())
    return required(DrafterFiles(folder=Path(), format=kind, raw=config, fields=config, tensors={}))


@pytest.mark.parametrize(
    ("layer", "counted", "ids"),
    [
        ("llama", {}, ["captured_layers_uncounted"]),
        ("llama", {"num_aux_hidden_states": 4}, []),
        ("qwen3", {}, []),
    ],
)
def test_four_captured_layers_that_vllm_does_not_count_are_an_error(
    layer: str, counted: Fields, ids: list[str], tmp_path: Path
) -> None:
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4],
        "transformer_layer_config": {**BASE, "model_type": layer, **counted},
        "norm_before_residual": False,
        "torch_dtype": "float32",
    }
    shapes = _layer_of_eagle3(4)
    if layer == "qwen3":
        shapes |= {f"layers.0.self_attn.{one}_norm.weight": (HEAD_DIM,) for one in "qk"}
    _, document = _inspected(_write(tmp_path / "a", config, shapes))
    assert _ids(document, "error", "warning") == ids


def test_a_drafter_without_captured_layers_needs_no_fc(tmp_path: Path) -> None:
    config = {
        **BASE,
        "architectures": ["LlamaForCausalLMEagle3"],
        "eagle_config": {"use_aux_hidden_state": False, "eagle_aux_hidden_state_layer_ids": []},
    }
    shapes = {name: shape for name, shape in _layer_of_eagle3(3).items() if name != "fc.weight"}
    shapes["lm_head.weight"] = (V, H)
    code, document = _inspected(_write(tmp_path / "a", config, shapes))
    assert (code, document["results"]) == (EXIT_OK, [])
    code, document = _inspected(_write(tmp_path / "a", config, _layer_of_eagle3(3)))
    assert (code, _ids(document, "error")) == (EXIT_GATE_FAILED, ["unexpected_tensor"])


def _vllm_source(*parts: str) -> str:
    folder = package_folder("vllm")
    if folder is None:
        pytest.skip("vLLM is not installed")
    return folder.joinpath(*parts).read_text()


def test_the_table_has_every_class_that_the_installed_vllm_registers() -> None:
    _vllm_source("__init__.py")
    registered = drafter_classes(package_folder("vllm") or Path())
    assert len(registered) > 50
    assert [name for name in registered if not names_drafter(name)] == ["ExtractHiddenStatesModel"]
    partly, unknown = row_of("DeepSeekV4MTPModel"), row_of("DFlashLagunaForCausalLM")
    assert partly is not None and partly.coverage is Coverage.PARTLY and unknown is None


def test_the_targets_of_mtp_heads_are_those_that_the_installed_vllm_converts() -> None:
    source = _vllm_source("config", "speculative.py")
    override = source[source.index("def hf_config_override") : source.index("def _apply_composed")]
    classes = set(re.findall(r'"(\w*(?:MTP|MTPModel))"', override))
    assert len(classes) > 25 and classes <= set(TARGETS)
    assert {row_of(name) is not None for name in TARGETS} == {True}


def test_the_kinds_of_speculators_are_those_of_the_installed_vllm() -> None:
    parts = ("transformers_utils", "configs", "speculators", "algos.py")
    source = _vllm_source(*parts)
    assert set(re.findall(r'@register_speculator\("(\w+)"\)', source)) == set(SPECULATORS)


OF_SPECULATORS: Fields = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "transformer_layer_config": {"model_type": "qwen3"},
}


@pytest.mark.parametrize(
    ("config", "method", "architecture"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "eagle3", "Eagle3LlamaForCausalLM"),
        ({"architectures": ["LlamaForCausalLM"]}, "eagle", "EagleLlamaForCausalLM"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3", "LlamaForCausalLMEagle3"),
        ({"architectures": ["LagunaForCausalLM"]}, "dflash", "DFlashLagunaForCausalLM"),
        (
            {"architectures": ["DSparkDraftModel"], "model_type": "qwen3"},
            "dspark",
            "Qwen3DSparkModel",
        ),
        (OF_SPECULATORS, "eagle3", "Eagle3Qwen3ForCausalLM"),
        ({"speculators_model_type": "dflash2"}, None, "DFlash2DraftModel"),
        ({"model_type": "gemma4_assistant"}, "mtp", "Gemma4MTPModel"),
        ({"architectures": ["DeepseekV3ForCausalLM"]}, "eagle3", "Eagle3DeepseekV3ForCausalLM"),
    ],
)
def test_the_class_is_the_one_that_vllm_looks_up(
    config: Fields, method: str | None, architecture: str
) -> None:
    assert drafter_architecture(config, method) == architecture
    assert names_drafter(architecture)


NAME = "EagleMiniCPMForCausalLM"
"""A class of which nothing is known here."""
NOTHING: dict[str, Any] = {"refusals": [], "unfilled": {}, "cut": {}, "class": "Minicpm"}


def _refused(stage: str, *, certain: bool, place: str = "models/a.py:1 load") -> dict[str, Any]:
    refusal = {"reason": "ValueError: no", "place": place, "tensor": "a.b", "certain": certain}
    return {**NOTHING, "stage": stage, "refusals": [refusal]}


def _answering(answer: dict[str, Any]) -> EngineProcess:
    lines = f"print({json.dumps(json.dumps({'version': '9.9'}))}, flush=True)"
    said = f"print({json.dumps(json.dumps(answer))}, flush=True)"
    return EngineProcess(command=(sys.executable, "-c", f"{lines}\nwhile input():\n    {said}"))


def _asked(folder: Path, answer: Fields, *, with_target: bool) -> EngineAnswer:
    drafter, target = write(folder, NAME, {"model.fc.weight": (64, 128)})
    opened = open_target(str(target)) if with_target else None
    with _answering(answer) as process:
        return process.ask(Inspected(drafter=open_drafter(str(drafter)), target=opened))


@pytest.mark.parametrize("with_target", [True, False])
def test_a_tensor_that_vllm_refuses_is_an_error_with_its_reason(
    tmp_path: Path, *, with_target: bool
) -> None:
    found = _asked(tmp_path, _refused("weights", certain=True), with_target=with_target)
    (error,) = found.results
    assert (error.id, error.found) == ("refused_by_engine", "ValueError: no")
    assert "a.b" in error.title and error.rule == "vLLM 9.9, models/a.py:1 load"


@pytest.mark.parametrize(
    ("with_target", "certain", "ids", "unknown"),
    [
        (False, True, [], "with --target"),
        (True, True, ["refused_by_engine"], ""),
        (True, False, [], "models/a.py:1 load: ValueError: no"),
    ],
)
def test_a_refusal_that_may_be_the_stand_ins_or_this_machines_is_no_error(
    tmp_path: Path, *, with_target: bool, certain: bool, ids: list[str], unknown: str
) -> None:
    found = _asked(tmp_path, _refused("model", certain=certain), with_target=with_target)
    assert [result.id for result in found.results] == ids
    assert unknown in found.unknown if unknown else not found.unknown


def test_parameters_without_numbers_and_tensors_that_are_cut_are_errors(tmp_path: Path) -> None:
    answer = {**NOTHING, "stage": "loaded", "unfilled": {"a": [1, 2]}, "cut": {"b": [3, 4]}}
    found = _asked(tmp_path, answer, with_target=True)
    assert {result.id: result.found.partition(": ")[2] for result in found.results} == {
        "wrong_shape": "b 3 of 4",
        "missing_tensor": "a 1 of 2",
    }


@pytest.mark.parametrize("program", ["raise SystemExit(1)", "import time; time.sleep(60)"])
def test_a_vllm_that_does_not_answer_leaves_the_layout_unknown(
    program: str, tmp_path: Path
) -> None:
    drafter, target = write(tmp_path, NAME, {"model.fc.weight": (64, 128)})
    with EngineProcess(command=(sys.executable, "-c", program), most_seconds=1) as process:
        inspection = inspect_files(str(drafter), str(target), engine=process)
    assert inspection.coverage is Coverage.UNKNOWN and inspection.loaded_by == ""
    assert inspection.unknown is not None
    assert "gave no answer" in inspection.unknown.not_recognised[-1]


def test_a_class_that_vllm_loads_is_checked_and_its_numbers_too(tmp_path: Path) -> None:
    drafter, target = write(tmp_path, NAME, {"model.fc.weight": (64, 128)})
    with _answering({**NOTHING, "stage": "loaded"}) as process:
        inspection = inspect_files(str(drafter), str(target), engine=process)
    assert (inspection.coverage, inspection.loaded_by) == (Coverage.CHECKED, "vLLM 9.9")
    assert inspection.checks > 1 and inspection.sizes.parameters == 64 * 128
