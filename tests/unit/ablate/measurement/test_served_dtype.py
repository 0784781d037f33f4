"""The served dtype: which one it is, and a drafter that runs in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import TARGET, changed

from driftscope.ablate.run import ServedDrafter, served_dtype
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.trial.target import Passage
from driftscope.inspect.trial.variant import as_served
from driftscope_lab.trio import trio_path


@pytest.mark.parametrize(
    ("targets", "drafters", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, {"torch_dtype": "float16"}, torch.bfloat16),
        ({"dtype": "torch.float16"}, {}, torch.float16),
        ({}, {"torch_dtype": "bfloat16"}, torch.bfloat16),
        ({"torch_dtype": "float32"}, {"torch_dtype": "bfloat16"}, None),
        ({}, {"torch_dtype": 16}, None),
    ],
)
def test_the_targets_config_decides_then_the_drafters(
    targets: dict[str, Any], drafters: dict[str, Any], dtype: torch.dtype | None
) -> None:
    target = replace(open_target(str(TARGET)), raw=targets, fields=targets)
    drafter = replace(open_drafter(str(trio_path() / "eagle3")), raw=drafters, fields=drafters)
    assert served_dtype(target, drafter) is dtype


def test_weights_states_and_embeddings_are_rounded_and_the_original_is_not(tmp_path: Path) -> None:
    folder = changed(tmp_path / "d", weights=lambda state: state.update(_third(state)))
    drafter = as_served(open_drafter(str(folder)), 4).build("cpu")

    class Target:
        def embed(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.full((*ids.shape, 4), 1 / 3)

    served = ServedDrafter(drafter, Target(), torch.bfloat16)
    third = torch.tensor(1 / 3).bfloat16()
    assert served.drafter.fc.weight.dtype is torch.bfloat16
    assert bool((served.drafter.fc.weight == third).all())
    assert float(drafter.fc.weight[0, 0]) == pytest.approx(1 / 3, abs=1e-7)
    assert bool((served.embed(torch.tensor([1])) == third).all())
    states = {1: torch.full((1, 2, 4), 1 / 3)}
    passage = Passage(key="a", ids=torch.arange(3), prompt_tokens=1, states=states)
    assert bool((served.cast(passage).states[1] == third).all())


def _third(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"fc.weight": torch.full(state["fc.weight"].shape, 1 / 3)}
