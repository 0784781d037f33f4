"""Positions of an answer from which chains can start."""

from __future__ import annotations

import pytest
import torch
from support.checkpoints import TARGET

from driftscope.inspect.trial.target import CPU, GPU, Passage, Teacher, placement, weight_of
from driftscope_lab.trio import encode, load_prompts

PROMPT = 5


@pytest.mark.parametrize(
    ("answer", "k", "anchors"),
    [(6, 4, [4, 5]), (5, 4, [4]), (4, 4, []), (1, 4, []), (2, 1, [4])],
)
def test_a_chain_needs_k_tokens_after_the_one_that_is_known(
    answer: int, k: int, anchors: list[int]
) -> None:
    passage = Passage(key="a", ids=torch.arange(PROMPT + answer), prompt_tokens=PROMPT, states={})
    assert passage.anchors(k).tolist() == anchors


def test_only_a_gpu_with_accelerate_has_a_device_map() -> None:
    assert placement(GPU, accelerate=True) == {"device_map": "auto"}
    assert placement(GPU, accelerate=False) == {}
    assert placement(CPU, accelerate=True) == {}


def test_a_weight_that_is_there_is_returned_as_it_is() -> None:
    layer = torch.nn.Linear(3, 2)
    assert weight_of(layer).data_ptr() == layer.weight.data_ptr()
    assert not weight_of(layer).requires_grad


def _passages(teacher: Teacher) -> list[Passage]:
    prompts = {each.id: encode(each.in_distribution) for each in load_prompts()[:3]}
    return list(teacher.passages(prompts, {0, 2, 4}))


@pytest.mark.slow
def test_layers_that_are_kept_elsewhere_change_nothing() -> None:
    pytest.importorskip("accelerate")
    places = {"model.embed_tokens": CPU, "model.norm": CPU, "model.rotary_emb": CPU, "lm_head": CPU}
    layers = {f"model.layers.{layer}": "disk" if layer % 2 else CPU for layer in range(4)}
    plain = Teacher(TARGET, CPU)
    parted = Teacher(TARGET, CPU, device_map={**places, **layers})
    assert next(parted.model.model.layers[1].parameters()).is_meta
    for one, other in zip(_passages(plain), _passages(parted), strict=True):
        assert torch.equal(one.ids, other.ids)
        for layer, states in one.states.items():
            assert torch.equal(states, other.states[layer]), layer
    offloaded = parted.model.model.layers[1].mlp.up_proj
    assert torch.equal(weight_of(offloaded), plain.model.model.layers[1].mlp.up_proj.weight)
    assert offloaded.weight.is_meta
