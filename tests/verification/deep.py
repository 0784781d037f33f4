"""A deeper target that computes the same as the shipped one, and the shipped drafters for it.

Their configs name its captured layers or, like most published drafters', do not: then vLLM captures
its default layers. Layers that add nothing lie between the shipped target's, so that vLLM's default
layers of the deeper target are those on which the drafters were trained. Capturing a neighbouring
layer would show in every figure, and in the acceptance.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from support.checkpoints import AUX, changed
from support.engine_process.job import Job

from driftscope.inspect.reference.layers import Target
from driftscope_lab.training.checkpoints import load_drafter, load_target, save_drafter, save_target
from driftscope_lab.trio import trio_path
from verification.truth import RECORD, older_job

LAYERS = 10
PLACES = (0, 1, 3, 5, 6, 8)
"""Indices of the shipped target's layers in the deeper one, from 0."""
CAPTURED = (2, 5, 7)
"""vLLM's default for a target of 10 layers: the states after 2, 3 and 5 of the shipped layers."""
SEED = 11
DRAFTERS = ("eagle3", "eagle31")
DEFAULT, NAMED, NESTED = "default", "named", "nested"
HOW = {DEFAULT: (), NAMED: CAPTURED, NESTED: (1, 2, 3)}
"""Layers that a drafter's config names: none; those that it was trained on; or others, in
`eagle_config` alone, where vLLM's V2 runner does not look."""
SHORT = {"max_tokens": 16}


def deep_target() -> Target:
    """Return the shipped target with inserted layers whose outputs are zero."""
    shipped = load_target(trio_path() / "target")
    deep = Target(replace(shipped.config, num_hidden_layers=LAYERS))
    generator = torch.Generator().manual_seed(SEED)
    state = deep.state_dict()
    for values in state.values():
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
    """Write the target, and each drafter in each of HOW; return the folder."""
    save_target(deep_target(), folder / "target")
    for name in DRAFTERS:
        drafter = load_drafter(trio_path() / name)
        for how, named in HOW.items():
            drafter.config = replace(
                drafter.config,
                aux_layers=CAPTURED if how == DEFAULT else named,
                names_aux_layers=how != DEFAULT,
            )
            save_drafter(drafter, folder / f"{how}-{name}")
        nested = folder / f"{NESTED}-{name}"
        changed(nested, nested, config=lambda config: config.pop(AUX))
    return folder


def deep_job(folder: Path, how: str, drafter: str, runner: str = "v1") -> Job:
    """A job for the installed vLLM; `how` is one of HOW."""
    return Job(
        drafter=str(folder / f"{how}-{drafter}"),
        target=str(folder / "target"),
        runner=runner,
        probe=RECORD,
        sampling=SHORT,
    )


def older_deep_job(folder: Path, older: Path, how: str, drafter: str, runner: str) -> Job:
    """Return the job for the vLLM that is unpacked in `older`."""
    job = older_job(older, runner, str(folder / f"{how}-{drafter}"))
    return replace(job, target=str(folder / "target"), sampling=SHORT)
