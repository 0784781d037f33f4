"""A deeper target that computes what the shipped one does, and the shipped drafters for it.

Their configs name its captured layers, or do not, as most published drafters' do not: then vLLM
captures its default layers. Layers that add nothing lie between the shipped target's, so that
vLLM's default layers of the deeper target are those on which the drafters were trained. A layer
captured beside them would show in every figure, and in the acceptance.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from driftscope_probes.reference.config import default_aux_layers
from driftscope_probes.reference.model import (
    Target,
    load_drafter,
    load_target,
    save_drafter,
    save_target,
)
from driftscope_probes.trio import trio_path
from vllm_engine.job import Job
from vllm_engine.truth import RECORD
from vllm_engine.versions import older_job, runners, version

LAYERS = 8
PLACES = (1, 3, 4, 5)
"""Where the shipped target's layers lie in the deeper one, counted from 0."""
CAPTURED = (2, 4, 5)
"""vLLM's default of a target of 8 layers: the states behind 1, 2 and 3 of the shipped layers."""
SEED = 11
DRAFTERS = ("eagle3", "eagle31")
TOP, NESTED = "eagle_aux_hidden_state_layer_ids", "eagle_config"


def deep_target() -> Target:
    """The shipped target with layers between its own whose outputs are zero."""
    shipped = load_target(trio_path() / "target")
    deep = Target(replace(shipped.config, num_hidden_layers=LAYERS))
    generator = torch.Generator().manual_seed(SEED)
    state = deep.state_dict()
    for name, values in state.items():
        if values.dim() == 2:
            values.copy_(torch.randn(values.shape, generator=generator) / values.shape[1] ** 0.5)
    for layer in range(LAYERS):
        for output in ("self_attn.o_proj", "mlp.down_proj"):
            state[f"model.layers.{layer}.{output}.weight"].zero_()
    for name, values in shipped.state_dict().items():
        parts = name.split(".")
        if parts[1] == "layers":
            parts[2] = str(PLACES[int(parts[2])])
        state[".".join(parts)].copy_(values)
    deep.load_state_dict(state)
    return deep.eval()


def write_deep(folder: Path) -> Path:
    """Write the target, and each drafter with its layers unnamed, named, and named in
    `eagle_config` alone; return the folder."""
    save_target(deep_target(), folder / "target")
    for name in DRAFTERS:
        drafter = load_drafter(trio_path() / name)
        for how, named in (("default", False), ("named", True), ("nested", True)):
            drafter.config = replace(drafter.config, aux_layers=CAPTURED, names_aux_layers=named)
            save_drafter(drafter, folder / f"{how}-{name}")
        path = folder / f"nested-{name}" / "config.json"
        fields = json.loads(path.read_text())
        del fields[TOP]
        path.write_text(json.dumps(fields))
    assert default_aux_layers(LAYERS) == CAPTURED
    return folder


def deep_job(folder: Path, how: str, drafter: str, runner: str = "v1") -> Job:
    """A job for the installed vLLM; `how` is "default", "named" or "nested"."""
    return Job(
        drafter=str(folder / f"{how}-{drafter}"), target=str(folder / "target"), runner=runner,
        probe=RECORD,
    )  # fmt: skip


def older_deep_jobs(folder: Path, older: Path, how: str, drafter: str) -> dict[str, Job]:
    """By version and runner, a job for each runner of the vLLM in `older`."""
    return {
        f"{version(older)} {runner}": replace(
            older_job(older, runner, str(folder / f"{how}-{drafter}")),
            target=str(folder / "target"),
        )
        for runner in runners(older)
    }
