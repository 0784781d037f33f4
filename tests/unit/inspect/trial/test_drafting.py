"""The probability of the target's tokens follows the same drafts as what is accepted."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from support.checkpoints import (
    AUX,
    TARGET,
    Config,
    State,
    as_speculators,
    changed,
    own_vocabulary,
    own_vocabulary_config,
    speculators_names,
)

from driftscope.errors import CheckpointError
from driftscope.inspect.checkpoints import open_drafter
from driftscope.inspect.reference.drafter import load_drafter
from driftscope.inspect.trial.drafting import Drafted, Variant, as_served, draft
from driftscope.inspect.trial.target import Passage, Teacher
from driftscope_lab.trio import encode, load_prompts, trio_path

LAYERS = 4


def _variant(path: Path) -> Variant:
    return as_served(open_drafter(str(path)), LAYERS)


def _equal(first: Variant, second: Path) -> bool:
    built, expected = first.build("cpu").state_dict(), load_drafter(second).state_dict()
    return built.keys() == expected.keys() and all(
        torch.equal(built[name], expected[name]) for name in built
    )


@pytest.mark.parametrize("name", ["eagle3", "eagle31"])
def test_a_shipped_drafter_is_the_reference_drafter(name: str) -> None:
    path = trio_path() / name
    assert _equal(_variant(path), path)
    assert _variant(path).config == load_drafter(path).config


def test_the_speculators_format_gives_the_same_drafter(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", config=as_speculators, weights=speculators_names)
    assert _equal(_variant(path), trio_path() / "eagle31")


def test_captured_layers_are_sorted_as_vllm_sorts_them(tmp_path: Path) -> None:
    def config(fields: Config) -> None:
        fields[AUX] = fields["eagle_config"][AUX] = [3, 1, 2]

    assert _variant(changed(tmp_path / "a", config=config)).config.aux_layers == (1, 2, 3)


def test_norms_that_are_missing_are_ones_as_an_engine_leaves_them(tmp_path: Path) -> None:
    def weights(state: State) -> None:
        for layer in range(3):
            del state[f"fc_norm.{layer}.weight"]

    built = _variant(changed(tmp_path / "a", weights=weights)).build("cpu")
    assert torch.equal(built.fc_norm[1].weight, torch.ones(256))


def test_an_embedding_of_its_own_is_used(tmp_path: Path) -> None:
    own = torch.rand(1024, 256)
    path = changed(tmp_path / "a", weights=lambda state: state.update({"embed_tokens.weight": own}))
    built = _variant(path).build("cpu")
    assert torch.equal(built.embed_tokens.weight, own)
    assert built.fc.weight.shape == (256, 768)


def test_scaled_positions_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    scaling = {"rope_type": "linear", "factor": 4.0}
    path = changed(tmp_path / "a", config=lambda fields: fields.update(rope_scaling=scaling))
    found = _variant(path).build("cpu").rotary
    config = LlamaConfig(hidden_size=256, num_attention_heads=8, rope_scaling=dict(scaling))
    positions = torch.arange(100)[None]
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    torch.testing.assert_close(found.cos[:100].float(), cos[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(found.sin[:100].float(), sin[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"attention_bias": True}, "biases"), ({"quantization_config": {"bits": 4}}, "quantised")],
)
def test_what_the_reference_code_cannot_run_is_an_error(
    tmp_path: Path, fields: Config, words: str
) -> None:
    path = changed(tmp_path / "a", config=lambda config: config.update(fields))
    with pytest.raises(CheckpointError, match=words):
        _variant(path)


pytestmark = pytest.mark.slow
K, VOCABULARY = 4, 1024


@functools.cache
def _passages() -> tuple[Teacher, list[Passage]]:
    teacher = Teacher(TARGET, "cpu")
    prompts = {each.id: encode(each.in_distribution) for each in load_prompts()[:2]}
    return teacher, list(teacher.passages(prompts, {2, 3, 5}))


def _drafted(drafter: Path) -> list[Drafted]:
    teacher, passages = _passages()
    built = as_served(open_drafter(str(drafter)), 4).build("cpu")
    return [draft(built, teacher, each, K) for each in passages]


def _head(factor: float, state: State) -> None:
    state["lm_head.weight"] = state["lm_head.weight"] * factor


def test_a_drafter_that_is_always_certain_has_what_it_accepts(tmp_path: Path) -> None:
    sure = changed(tmp_path / "sure", weights=functools.partial(_head, 2.0**12))
    plain = _drafted(changed(tmp_path / "plain"))
    for one, other in zip(_drafted(sure), plain, strict=True):
        assert torch.equal(one.accepted, other.accepted)
        assert (one.probability - one.accepted).abs().mean() < 0.01
        assert (other.probability - other.accepted).abs().mean() > 0.1


def test_a_drafter_that_knows_nothing_gives_each_token_the_same(tmp_path: Path) -> None:
    blank = changed(tmp_path / "a", weights=functools.partial(_head, 0.0))
    for each in _drafted(blank):
        wrong = each.accepted == 0
        assert wrong.any()
        assert torch.allclose(each.probability[wrong], torch.tensor(1 / VOCABULARY))


def test_tokens_that_cannot_be_drafted_have_no_probability(tmp_path: Path) -> None:
    path = changed(tmp_path / "a", config=own_vocabulary_config, weights=own_vocabulary)
    for each, passage in zip(_drafted(path), _passages()[1], strict=True):
        odd = passage.ids[passage.anchors(K) + 2] % 2 == 1
        assert odd.any() and not odd.all()
        assert (each.probability[odd] == 0).all()
        assert (each.probability[~odd] > 0).all()
