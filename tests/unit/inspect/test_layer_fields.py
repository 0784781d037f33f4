"""Every field that an engine reads for a drafter's layers is known, and others are reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.checkpoints import TARGET, Config, changed, latent_drafter

from driftscope.inspect.checkpoints import open_drafter
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
from driftscope.inspect.checks.result import Level
from driftscope.inspect.drafter_classes import row_of
from driftscope.inspect.inspection import Answer, inspect_files

KNOWN = RUN_WITH | WITHOUT_EFFECT | NEUTRAL.keys()
LLAMA4 = {"intermediate_size_mlp", "hot_vocab_size"}
"""Fields of SGLang's drafters of other families."""


@pytest.mark.skipif(vllm_models() is None, reason="vLLM is not installed")
@pytest.mark.parametrize("modules", SOURCES.values())
def test_the_installed_vllm_reads_no_other_field(modules: tuple[str, ...]) -> None:
    found = fields_read(vllm_models(), modules)
    assert {"hidden_act", "rms_norm_eps", "num_attention_heads"} <= found
    assert not found - KNOWN


@pytest.mark.skipif(vllm_models() is None, reason="vLLM is not installed")
@pytest.mark.parametrize("name", ["DFlashDraftModel", "DFlash2DraftModel", "Qwen3DSparkModel"])
def test_the_installed_vllm_reads_no_other_field_of_a_block(name: str) -> None:
    row = row_of(name)
    assert row is not None
    found = fields_read(vllm_models(), tuple(row.source.split(", ")))
    assert {"hidden_act", "mask_token_id", "swa_window_size"} <= found
    assert not found - KNOWN - OF_BLOCKS - set(OWN_PARTS)


def test_sglang_reads_no_other_field() -> None:
    folders = Path(__file__).parents[3].glob(".venv/sglang-*/lib/python*/site-packages/sglang")
    for folder in folders:
        modules = ("llama_eagle3.py", "llama.py")
        found = fields_read(folder / "srt" / "models", modules)
        assert "hidden_act" in found
        assert not found - KNOWN - SGLANG_ALONE.keys() - LLAMA4 - {"__class__"}


def _found(folder: Path, **fields: object) -> dict[str, Level]:
    path = changed(folder / "drafter", config=lambda config: config.update(fields))
    return {each.id: each.level for each in inspect_files(str(path), str(TARGET)).results}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"hidden_act": "gelu"}, {"activation_refused": Level.ERROR}),
        ({"partial_rotary_factor": 0.5}, {"partial_rotary_differs": Level.WARNING}),
        ({"rms_norm_eps": 1.0}, {"eps_differs": Level.WARNING}),
        ({"rms_norm_eps": 1e-6}, {"eps_differs": Level.NOTE}),
        (
            {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
            {"heads_differ": Level.WARNING},
        ),
        ({"attention_bias": True}, {"missing_tensor": Level.ERROR}),
        ({"mlp_bias": True}, {"missing_tensor": Level.ERROR}),
        ({"is_causal": False}, {"fields_not_run": Level.WARNING}),
        ({"layer_types": ["sliding_attention"]}, {"fields_not_run": Level.WARNING}),
        ({"layer_types": ["full_attention"]}, {}),
        ({"tie_word_embeddings": True}, {"field_of_sglang": Level.NOTE}),
        ({"my_own_field": 3}, {"fields_not_known": Level.NOTE}),
    ],
)
def test_a_field_is_a_result(tmp_path: Path, fields: Config, found: dict[str, Level]) -> None:
    assert _found(tmp_path, **fields) == found


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"index_topk": 16}, {"fields_not_run": Level.WARNING}),
        ({"hidden_act": "gelu"}, {"activation_refused": Level.ERROR}),
        ({"my_own_field": 3}, {"fields_not_known": Level.NOTE}),
        ({"rms_norm_eps": 1.0}, {"eps_differs": Level.WARNING}),
    ],
)
def test_a_field_of_latent_attention_is_a_result(
    tmp_path: Path, fields: Config, found: dict[str, Level]
) -> None:
    path = latent_drafter(tmp_path) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    results = inspect_files(str(tmp_path), str(TARGET)).results
    assert found.items() <= {each.id: each.level for each in results}.items()


def test_files_alone_are_no_all_clear(tmp_path: Path) -> None:
    inspection = inspect_files(str(changed(tmp_path / "drafter")), str(TARGET))
    assert inspection.answer is Answer.CANNOT_TELL
    assert inspection.conclusion == "No mistake in the files."


def test_a_promise_needs_fields_that_are_run(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", config=lambda config: config.update(is_causal=False))
    assert "is_causal" in not_promised(open_drafter(str(path)))[0]
    assert not not_promised(open_drafter(str(changed(tmp_path / "b"))))
