"""Each planted mistake is found by its check, and a healthy checkpoint has no error or warning."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.checkpoints import (
    AUX,
    FEWER,
    TARGET,
    Config,
    State,
    as_speculators,
    changed,
    own_vocabulary,
    own_vocabulary_config,
    speculators_names,
)

from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.checks.result import CheckResult, Inspected, Level
from driftscope.inspect.inspection import run_checks
from driftscope_lab.trio import trio_path

H = 256


def _results(drafter: Path, target: Path | None = TARGET) -> dict[str, CheckResult]:
    opened = open_target(str(target)) if target else None
    inspected = Inspected(drafter=open_drafter(str(drafter)), target=opened)
    return {result.id: result for result in run_checks(inspected)}


def _bad(results: dict[str, CheckResult]) -> list[str]:
    return [name for name, result in results.items() if result.level is not Level.NOTE]


@pytest.mark.parametrize("name", ["eagle3", "eagle31"])
@pytest.mark.parametrize("target", [TARGET, None], ids=["with target", "alone"])
def test_a_shipped_drafter_has_no_error_and_no_warning(name: str, target: Path | None) -> None:
    assert not _bad(_results(trio_path() / name, target))


def test_a_healthy_drafter_of_a_smaller_vocabulary_has_no_error(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", config=own_vocabulary_config, weights=own_vocabulary)
    assert not _bad(_results(path))


def test_a_healthy_drafter_in_the_speculators_format_has_no_error(tmp_path: Path) -> None:
    results = _results(changed(tmp_path / "a", config=as_speculators, weights=speculators_names))
    assert not _bad(results)
    assert "vllm#46488" in results["flags_need_newer_vllm"].expected


def _set(**values: object) -> Callable[[Config], None]:
    return lambda fields: fields.update(values)


def _layers(*layers: int) -> Callable[[Config], None]:
    def change(fields: Config) -> None:
        fields[AUX] = fields["eagle_config"][AUX] = list(layers)

    return change


def _drop(prefix: str) -> Callable[[State], None]:
    def change(state: State) -> None:
        for name in [name for name in state if name.startswith(prefix)]:
            del state[name]

    return change


def _fill(name: str, value: float, rows: int | None = None) -> Callable[[State], None]:
    return lambda state: state[name][:rows].fill_(value)


def _norm_over_all(state: State) -> None:
    norms = [state.pop(f"fc_norm.{layer}.weight") for layer in range(3)]
    state["input_norm.weight"] = torch.cat(norms)


def _add(name: str, tensor: torch.Tensor) -> Callable[[State], None]:
    return lambda state: state.update({name: tensor})


PLANTED = {
    "fc_norm_unused": (_set(fc_norm=False), None),
    "fc_norm_missing": (None, _drop("fc_norm.")),
    "fc_norm_count": (None, _drop("fc_norm.2")),
    "fc_norm_and_norm_before_fc_swapped": (None, _norm_over_all),
    "norm_before_fc_unused": (_set(fc_norm=False), _norm_over_all),
    "norm_before_fc_missing": (_set(fc_norm=False, norm_before_fc=True), _drop("fc_norm.")),
    "two_norms_before_fc": (_set(norm_before_fc=True), _add("input_norm.weight", torch.rand(768))),
    "norm_output_off": (_set(norm_output=False), None),
    "norm_output_of_specforge": (_set(fc_norm=False), _drop("fc_norm.")),
    "flag_not_boolean": (_set(norm_output="false"), None),
    "flag_not_read": (
        lambda fields: fields["eagle_config"].update(norm_output=fields.pop("norm_output")),
        None,
    ),
    "norm_all_ones": (
        None,
        lambda state: [state[f"fc_norm.{n}.weight"].fill_(1) for n in range(3)],
    ),
    "fc_width": (_layers(1, 2), None),
    "captured_layers_order": (_layers(3, 2, 1), None),
    "captured_layers_range": (_layers(1, 2, 9), None),
    "captured_layers_contradict": (_set(**{AUX: [2, 3, 4]}), None),
    "captured_layers_collapse": (
        lambda fields: (fields.pop(AUX), fields["eagle_config"].pop(AUX)),
        None,
    ),
    "captured_layer_ignored": (None, lambda state: state["fc.weight"][:, :H].mul_(1e-6)),
    "missing_tensor": (None, _drop("midlayer.mlp.up_proj")),
    "unexpected_tensor": (None, _add("layers.1.mlp.up_proj.weight", torch.rand(512, H))),
    "wrong_shape": (_set(intermediate_size=500), None),
    "prefixed_names": (
        None,
        lambda state: state.update({"model.norm.weight": state.pop("norm.weight")}),
    ),
    "not_finite": (None, _fill("fc.weight", float("nan"), rows=1)),
    "dead_rows": (None, _fill("lm_head.weight", 0, rows=40)),
    "other_vocabulary": (_set(vocab_size=2048, draft_vocab_size=1024), None),
    "d2t_missing": (_set(draft_vocab_size=FEWER), None),
    "d2t_unused": (None, _add("d2t", torch.zeros(1024, dtype=torch.long))),
    "target_width": (_set(target_hidden_size=128), None),
    "rope_theta_differs": (_set(rope_theta=500000.0), None),
    "rope_scaling_differs": (_set(rope_scaling={"rope_type": "linear", "factor": 2.0}), None),
    "context_shorter": (_set(max_position_embeddings=512), None),
    "quantized_on_one_side": (_set(quantization_config={"quant_method": "fp8"}), None),
    "embedding_not_targets": (None, _add("embed_tokens.weight", torch.randn(1024, H))),
    "other_type": (_set(torch_dtype="float16"), None),
    "own_window": (_set(sliding_window=128), None),
}
"""Mistake by the id of the result that names it: changes of config and weights."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_named(name: str, tmp_path: Path) -> None:
    config, weights = PLANTED[name]
    results = _results(changed(tmp_path / "a", config=config, weights=weights))
    assert name in results, f"found only {list(results)}"
    result = results[name]
    assert result.expected and result.rule and result.there
    assert result.change or result.level is Level.NOTE


TABLES = {
    "d2t_zero": lambda state: state["d2t"].zero_(),
    "d2t_absolute": lambda state: state["d2t"].add_(torch.arange(FEWER)),
    "d2t_range": lambda state: state["d2t"].add_(5),
    "d2t_repeats": lambda state: state["d2t"][3:4].sub_(2),
    "t2d_contradicts_d2t": lambda state: state["t2d"].logical_not_(),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_wrong_table_of_the_draft_vocabulary_is_named(name: str, tmp_path: Path) -> None:
    def weights(state: State) -> None:
        own_vocabulary(state)
        TABLES[name](state)

    results = _results(changed(tmp_path / "a", config=own_vocabulary_config, weights=weights))
    assert results[name].level is Level.ERROR


def test_an_end_token_that_cannot_be_drafted_is_a_note(tmp_path: Path) -> None:
    def weights(state: State) -> None:
        own_vocabulary(state)
        state["d2t"].add_(1)
        state["t2d"] = state["t2d"].roll(1)

    results = _results(changed(tmp_path / "a", config=own_vocabulary_config, weights=weights))
    assert "[4]" in results["end_token_not_drafted"].there


def test_a_copied_embedding_is_a_note_with_its_size(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    embedding = load_file(TARGET / "model.safetensors")["model.embed_tokens.weight"]
    path = changed(tmp_path / "a", weights=_add("embed_tokens.weight", embedding))
    results = _results(path)
    assert results["embedding_copied"].level is Level.NOTE
    assert not _bad(results)


def test_another_tokenizer_and_another_template_are_named(tmp_path: Path) -> None:
    path = changed(tmp_path / "a")
    tokenizer = json.loads((TARGET / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = {
        word: 1023 - n for word, n in tokenizer["model"]["vocab"].items()
    }
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (path / "chat_template.jinja").write_text("{{ messages }}")
    results = _results(path)
    assert results["tokenizer_differs"].level is Level.ERROR
    assert results["template_differs"].level is Level.WARNING
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TARGET / name, path / name)
    (path / "chat_template.jinja").unlink()
    assert not _bad(_results(path))


def test_of_a_target_only_config_embedding_and_head_are_needed(tmp_path: Path) -> None:
    shutil.copy(TARGET / "config.json", tmp_path)
    shards = {"model.embed_tokens.weight": "a.safetensors", "model.norm.weight": "gone.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    shutil.copy(TARGET / "model.safetensors", tmp_path / "a.safetensors")
    path = changed(tmp_path / "drafter", weights=_add("embed_tokens.weight", torch.randn(1024, H)))
    assert "embedding_not_targets" in _results(path, tmp_path)
