"""Repairs of layers: each undoes the mistake that it is for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.checkpoints import TARGET, Config, State, changed

from driftscope.inspect.checkpoints import open_drafter
from driftscope.inspect.files import read_config
from driftscope.inspect.trial.drafting import Repair, Variant, as_served
from driftscope.inspect.trial.layer_repairs import OF_VOCABULARY, layer_repairs
from driftscope_lab.trio import trio_path

Q, K, V, OUT, GATE, UP = (
    f"midlayer.{name}_proj.weight"
    for name in (
        *(f"self_attn.{part}" for part in ("q", "k", "v", "o")),
        *(f"mlp.{part}" for part in ("gate", "up")),
    )
)


def _repairs(folder: Path, **changes: Callable[..., object]) -> tuple[Variant, dict[str, Repair]]:
    base = as_served(open_drafter(str(changed(folder, **changes))), 6)
    found = {one.id: one for one in layer_repairs(base, read_config(TARGET))}
    return base, found


def _heads(name: str, order: list[int]) -> Callable[[State], None]:
    def change(state: State) -> None:
        state[name] = torch.unflatten(state[name], 0, (len(order), -1))[order].flatten(0, 1)

    return change


def _transposed(state: State) -> None:
    state[OUT] = state[OUT].T.contiguous()


def _exchanged(state: State) -> None:
    state[GATE], state[UP] = state[UP], state[GATE]


def _minus_one(state: State) -> None:
    for name in [name for name in state if "norm" in name]:
        state[name] = (state[name].double() - 1).float()


def _halved(state: State) -> None:
    for name, one in state.items():
        if one.dim() == 2 and not name.startswith(OF_VOCABULARY):
            state[name] = one / 2


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("order_of_heads", _heads(Q, [7, 0, 1, 2, 3, 4, 5, 6])),
        ("order_of_heads", _heads(K, [3, 0, 1, 2])),
        ("order_of_heads", _heads(V, [1, 0, 3, 2])),
        ("o_proj_transposed", _transposed),
        ("gate_and_up", _exchanged),
        ("norms_plus_one", _minus_one),
        ("matrices_half_as_large", _halved),
    ],
)
def test_a_repair_of_weights_restores_them(
    tmp_path: Path, name: str, plant: Callable[[State], None]
) -> None:
    _, found = _repairs(tmp_path, weights=plant)
    healthy = load_file(trio_path() / "eagle31" / "model.safetensors")
    repaired = found[name].variant.state
    assert all(torch.allclose(repaired[key], one.float()) for key, one in healthy.items())


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("rms_norm_eps", {"rms_norm_eps": 1.0}),
        ("partial_rotary_factor", {"partial_rotary_factor": 0.5}),
        (
            "heads_8_of_32",
            {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
        ),
    ],
)
def test_a_repair_of_the_config_takes_the_targets_value(
    tmp_path: Path, name: str, fields: Config
) -> None:
    base, found = _repairs(tmp_path, config=lambda config: config.update(fields))
    target = read_config(TARGET)
    expected = {field: target.get(field, 1.0) for field in fields}
    assert found[name].fields == expected
    layer = found[name].variant.config.layer
    assert {field: getattr(layer, field) for field in fields} == expected
    assert layer != base.config.layer


def test_an_outlying_row_is_made_as_large_as_the_others(tmp_path: Path) -> None:
    def plant(state: State) -> None:
        state[V][17] = state[V][17] * 1e4

    base, found = _repairs(tmp_path, weights=plant)
    rows = found["outlying_rows"].variant.state[V].abs().amax(-1)
    assert rows[17] == pytest.approx(float(base.state[V].abs().amax(-1).median()), rel=1e-3)
    assert "row 17 of midlayer.self_attn.v_proj.weight" in found["outlying_rows"].mistake


def test_a_healthy_drafter_gets_only_repairs_that_run(tmp_path: Path) -> None:
    base, found = _repairs(tmp_path)
    assert set(found) == {
        *("o_proj_transposed", "matrices_half_as_large", "heads_4_of_64", "heads_16_of_16")
    }
    assert all(one.variant.build("cpu") for one in found.values()) and base
