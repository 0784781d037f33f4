"""Weights that were lost, copied or never trained, among the results of `inspect` on files.

Each trial draws another drafter: a shipped one with noise in every weight, as further training
leaves it, and the matrices or norms that are damaged. Wanted: the result where the damage is, and
none on its healthy twin and on weights that only look like it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from support.checkpoints import TARGET, State, changed
from torch import Tensor
from verification.inspected.plants import EAGLE3, EAGLE31, stored

from benchmarks.calibration.table import FOUND, NEVER, Bound, Figures, table
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.checks import weights
from driftscope.inspect.checks.result import Inspected

NOISE = 0.03
"""Noise of the weights as a share of their size."""
LARGEST = {"e4m3fn": 448.0, "e4m3fnuz": 240.0, "e5m2": 57344.0, "int8": 127.0}
HEAD, NORM = "lm_head.weight", "norm.weight"
CHECKS = (weights.check_values, weights.check_norms, weights.check_head)
Damage = Callable[[State, torch.Generator], object]


def _drawn(state: State, source: torch.Generator) -> None:
    """Add noise to every weight, in bfloat16 as it is stored."""
    for name, one in state.items():
        if one.is_floating_point():
            wide = one.float()
            size = wide.square().mean().sqrt()
            state[name] = (wide + NOISE * size * torch.randn(wide.shape, generator=source)).to(
                one.dtype
            )


def _some(state: State, source: torch.Generator, dims: int) -> list[str]:
    """Draw some matrices, or norms, but not all."""
    names = [name for name in sorted(state) if state[name].dim() == dims and name != HEAD]
    names = [name for name in names if state[name].is_floating_point()]
    order = torch.randperm(len(names), generator=source).tolist()
    most = int(torch.randint(1, len(names), (), generator=source))
    return [names[at] for at in order[:most]]


def _quantised(one: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    scale = one.float().abs().max() / largest
    return (one.float() / scale).round().clamp(-largest, largest).to(one.dtype), scale


def _without_scales(state: State, source: torch.Generator) -> None:
    kinds = list(LARGEST.values())
    largest = kinds[int(torch.randint(len(kinds), (), generator=source))]
    for name in _some(state, source, 2):
        state[name] = _quantised(state[name], largest)[0]


def _with_scales(state: State, source: torch.Generator) -> None:
    for name in _some(state, source, 2):
        whole, scale = _quantised(state[name], LARGEST["int8"])
        state[name] = (whole.float() * scale).to(state[name].dtype)


def _large(state: State, source: torch.Generator) -> None:
    """Make one matrix large, with a largest number from 100 to 500."""
    name = _some(state, source, 2)[0]
    most = 100 + 400 * torch.rand((), generator=source)
    state[name] = (state[name].float() * (most / state[name].float().abs().max())).to(
        state[name].dtype
    )


def _targets_head(state: State, source: torch.Generator) -> None:
    state[HEAD] = stored("target")["model.embed_tokens.weight"].to(state[HEAD].dtype)
    if torch.rand((), generator=source) < 0.5:  # with a vocabulary of its own
        ids = torch.randperm(len(state[HEAD]), generator=source)[:768].sort().values
        state[HEAD], state["d2t"] = state[HEAD][ids], ids - torch.arange(len(ids))


def _head_from_targets(state: State, source: torch.Generator) -> None:
    """Train the target's head on: one row in a hundred moves."""
    head = stored("target")["model.embed_tokens.weight"].to(state[HEAD].dtype).clone()
    rows = torch.randperm(len(head), generator=source)[: len(head) // 100]
    head[rows] += 0.05 * torch.randn(head[rows].shape, generator=source).to(head.dtype)
    state[HEAD] = head


def _ones(state: State, source: torch.Generator) -> None:
    for name in _some(state, source, 1):
        state[name] = torch.ones_like(state[name])


def _all_ones(state: State, _source: torch.Generator) -> None:
    for name, one in state.items():
        if one.dim() == 1 and one.is_floating_point():
            state[name] = torch.ones_like(one)


def _near_ones(state: State, source: torch.Generator) -> None:
    """Train norms that began at 1 by one hundredth."""
    for name in _some(state, source, 1):
        drift = 0.01 * torch.randn(state[name].shape, generator=source)
        state[name] = (1 + drift).to(state[name].dtype)


def _targets_norm(state: State, _source: torch.Generator) -> None:
    state[NORM] = stored("target")["model.norm.weight"].to(state[NORM].dtype)


def _from_targets_norm(state: State, source: torch.Generator) -> None:
    _targets_norm(state, source)
    drift = 0.01 * torch.randn(state[NORM].shape, generator=source)
    state[NORM] = (state[NORM].float() * (1 + drift)).to(state[NORM].dtype)


def _nothing(_state: State, _source: torch.Generator) -> None: ...


World = tuple[str, Bound, Damage]
"""Result, how often it must be given, and what is done to the weights."""
WORLDS: dict[str, World] = {
    "matrices without their scales": ("scale_lost", FOUND, _without_scales),
    "matrices quantised and scaled back": ("scale_lost", NEVER, _with_scales),
    "a matrix with large numbers": ("scale_lost", NEVER, _large),
    "trained on, scales": ("scale_lost", NEVER, _nothing),
    "the target's head": ("head_is_targets", FOUND, _targets_head),
    "a head trained from the target's": ("head_is_targets", NEVER, _head_from_targets),
    "trained on, head": ("head_is_targets", NEVER, _nothing),
    "some norms of ones": ("norms_of_ones", FOUND, _ones),
    "norms that are not trained at all": ("norms_of_ones", NEVER, _all_ones),
    "norms trained from ones": ("norms_of_ones", NEVER, _near_ones),
    "the target's final norm": ("norm_is_targets", FOUND, _targets_norm),
    "a norm trained from the target's": ("norm_is_targets", NEVER, _from_targets_norm),
    "trained on, norm": ("norm_is_targets", NEVER, _nothing),
}


@table(
    "weights",
    "Weights that were lost or copied: {trials} drafters in each world",
    worlds=WORLDS,
    wanted=lambda world: {"called": world[1]},
    most_trials=100,
)
def called(world: World, seed: int) -> Figures:
    """Return whether a drafter of this world has the result."""
    result, _, damage = world
    source = torch.Generator().manual_seed(seed)

    def damaged(state: State) -> None:
        _drawn(state, source)
        damage(state, source)

    with tempfile.TemporaryDirectory() as folder:
        path = changed(Path(folder), (EAGLE3, EAGLE31)[seed % 2], weights=damaged)
        inspected = Inspected(drafter=open_drafter(str(path)), target=open_target(str(TARGET)))
        return {"called": any(one.id == result for check in CHECKS for one in check(inspected))}
