"""Files of EAGLE-1 drafters are checked by the rules of vLLM's model of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import eagle1_config

from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.checks.result import CheckResult, Inspected, Level
from driftscope.inspect.inspection import FOR_ANY_DRAFTER, FOR_EAGLE1, checks_made, run_checks
from driftscope.inspect.reference.drafter import Drafter, load_target, save_drafter
from driftscope_lab.trio import trio_path

State = dict[str, torch.Tensor]
HIDDEN = 256


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    config = eagle1_config(load_target(trio_path() / "target"))
    save_drafter(Drafter(config), tmp_path / "drafter")
    return tmp_path / "drafter"


def _results(drafter: Path) -> list[CheckResult]:
    return run_checks(
        Inspected(
            drafter=open_drafter(str(drafter)), target=open_target(str(trio_path() / "target"))
        )
    )


NOTES = ["architecture_of_one_engine", "bias_random_in_sglang"]


def _name(drafter: Path, architecture: str) -> None:
    path = drafter / "config.json"
    fields = {**json.loads(path.read_text()), "architectures": [architecture]}
    path.write_text(json.dumps(fields))


def test_a_whole_checkpoint_has_notes_on_engines_only(drafter: Path) -> None:
    found = _results(drafter)
    assert [each.id for each in found] == NOTES
    assert {each.level for each in found} == {Level.NOTE}
    assert "EagleLlamaForCausalLM" in found[0].there and "SGLang" in found[0].title
    made = checks_made(Inspected(drafter=open_drafter(str(drafter)), target=None))
    assert made == len(FOR_EAGLE1) + len(FOR_ANY_DRAFTER)


def test_one_that_names_its_targets_architecture_is_the_same(drafter: Path) -> None:
    _name(drafter, "LlamaForCausalLM")
    assert open_drafter(str(drafter)).format.name == "EAGLE-1 or EAGLE-2"
    assert [each.id for each in _results(drafter)] == NOTES


def test_one_for_sglang_should_have_a_bias_and_may_have_a_head(drafter: Path) -> None:
    _name(drafter, "LlamaForCausalLMEagle")
    found = {each.id: each for each in _results(drafter)}
    assert found["bias_random_in_sglang"].level is Level.WARNING
    file = drafter / "model.safetensors"
    state = load_file(file)
    for name, shape in (("fc.bias", (HIDDEN,)), ("lm_head.weight", (1024, HIDDEN))):
        _add(name, *shape)(state)
    save_file(state, file)
    (only,) = _results(drafter)
    assert only.id == "architecture_of_one_engine" and "vLLM" in only.title


def _add(name: str, *shape: int) -> Callable[[State], None]:
    return lambda state: state.update({name: torch.ones(shape, dtype=torch.bfloat16)})


def _renamed(state: State) -> None:
    for name in [*state]:
        state[name.replace("layers.0.", "midlayer.")] = state.pop(name)


def _narrow(state: State) -> None:
    state["fc.weight"] = state["fc.weight"][:, :HIDDEN].contiguous()


PLANTED = {
    "a head of its own": (_add("lm_head.weight", 1024, HIDDEN), "unexpected_tensor", "lm_head"),
    "a bias": (_add("fc.bias", HIDDEN), "unexpected_tensor", "fc.bias"),
    "a norm at the input": (
        _add("layers.0.input_layernorm.weight", HIDDEN),
        "unexpected_tensor",
        "input_layernorm",
    ),
    "names of EAGLE-3": (_renamed, "unexpected_tensor", "layers.0.mlp"),
    "fc of one input": (_narrow, "fc_width", "256 x 256"),
    "no fc": (lambda state: state.pop("layers.0.mlp.up_proj.weight"), "missing_tensor", "up_proj"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_vllm_refuses_is_an_error(drafter: Path, name: str) -> None:
    plant, id_, words = PLANTED[name]
    file = drafter / "model.safetensors"
    state = load_file(file)
    plant(state)
    save_file(state, file)
    found = {each.id: each for each in _results(drafter) if each.level is not Level.NOTE}
    assert found.keys() == {id_}
    assert words in found[id_].there
    assert "llama_eagle.py" in found[id_].rule
