"""Faults of a drafter, its config or its engine, one at a time, on the reference engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from support.checkpoints import captured, changed, fields, without
from support.reference_engine import record_run
from torch import Tensor, nn

from driftscope.inspect.reference.drafter import ReferenceDrafter
from driftscope.inspect.reference.layers import Rotary, Target
from driftscope_lab.training.checkpoints import load_drafter, load_target, save_drafter, save_target
from driftscope_lab.trio import encode, load_prompts, trio_path

EAGLE3, EAGLE31, FEWER = "eagle3", "eagle31", "eagle31 of 512 tokens"
HEALTHY = (EAGLE3, EAGLE31, FEWER)
FEWER_TOKENS = 512
SEED = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, and the healthy drafter to which it is applied."""

    of: str
    """One of HEALTHY."""
    config: Callable[[dict[str, Any]], object] | None = None
    """Changes the drafter's config before it is loaded."""
    weights: Callable[[dict[str, Tensor]], object] | None = None
    """Changes the drafter's weights before they are loaded."""
    target: Callable[[Target], object] | None = None
    """Changes the target before it is loaded."""
    engine: Callable[[ReferenceDrafter], object] | None = None
    """Changes the loaded drafter, so that the engine deviates from the config."""


def _models(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the folders of target and drafter, healthy or with the fault of that name in their
    files; what is not shipped is written below `folder`."""
    fault = FAULTS.get(name, Fault(of=name))
    target, drafter = trio_path() / "target", trio_path() / fault.of
    if fault.of == FEWER:
        drafter = folder / "fewer"
        save_drafter(_fewer(load_drafter(trio_path() / EAGLE31)), drafter)
    if fault.target:
        other = load_target(target)
        fault.target(other)
        target = folder / "other-target"
        save_target(other, target)
    if fault.config or fault.weights:
        made = folder / "drafter"
        drafter = changed(made, str(drafter), config=fault.config, weights=fault.weights)
    return target, drafter


def _fewer(drafter: ReferenceDrafter) -> ReferenceDrafter:
    """Return the drafter with a vocabulary of its own: the tokens that the held-out texts use
    most."""
    seen = Counter(token for prompt in load_prompts() for token in encode(prompt.in_distribution))
    vocabulary = drafter.config.layer.vocab_size
    order = sorted(range(vocabulary), key=lambda token: (-seen[token], token))
    kept = torch.tensor(sorted(order[:FEWER_TOKENS]))
    drafter.config = replace(drafter.config, draft_vocab_size=FEWER_TOKENS)
    drafter.lm_head.weight = nn.Parameter(drafter.lm_head.weight[kept])
    drafter.register_buffer("d2t", kept - torch.arange(FEWER_TOKENS))
    return drafter


def _permuted_head(state: dict[str, Tensor]) -> None:
    head = state["lm_head.weight"]
    state["lm_head.weight"] = head[_permutation(len(head))]


def _own_embedding(drafter: ReferenceDrafter) -> None:
    """Give the drafter an untrained embedding of its own, instead of sharing the target's."""
    layer = drafter.config.layer
    drafter.config = replace(drafter.config, target_hidden_size=layer.hidden_size)
    drafter.embed_tokens = nn.Embedding(layer.vocab_size, layer.hidden_size)
    drafter.embed_tokens.weight.data = torch.randn(
        drafter.embed_tokens.weight.shape, generator=torch.Generator().manual_seed(SEED)
    )


class _Interleaved(Rotary):
    """Rotary positions that turn neighbours (GPT-J's layout) instead of halves (Llama's)."""

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        halves = torch.cat([x[..., ::2], x[..., 1::2]], -1)
        turned = super().__call__(halves, positions)
        return torch.stack(turned.chunk(2, -1), -1).flatten(-2)


def _rope_interleaved(drafter: ReferenceDrafter) -> None:
    drafter.rotary = _Interleaved(drafter.config.layer)


def _norm_output_not_applied(drafter: ReferenceDrafter) -> None:
    drafter.config = replace(drafter.config, norm_output=False)


def _other_target(target: Target) -> None:
    """Turn the target into another model of the same sizes: it answers identically, but its hidden
    states are permuted."""
    order = _permutation(target.config.hidden_size)
    body = target.model
    reading = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens")
    for name, weight in body.named_parameters():
        kind = name.split(".")[-2]
        if kind in reading:
            weight.data = weight.data[:, order]
        else:  # norms, and everything that writes to the residual stream
            weight.data = weight.data[order]


def _permutation(size: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(SEED))


FAULTS = {
    "norm_output off in the config": Fault(of=EAGLE31, config=fields(norm_output=False)),
    "norm_output not applied": Fault(of=EAGLE31, engine=_norm_output_not_applied),
    "norm_output on in the config": Fault(of=EAGLE3, config=fields(norm_output=True)),
    "fc_norm missing": Fault(of=EAGLE31, config=fields(fc_norm=False), weights=without("fc_norm.")),
    "captured layers one too low": Fault(of=EAGLE31, config=captured(1, 2, 4)),
    "captured layers one too high": Fault(of=EAGLE31, config=captured(3, 4, 6)),
    "captured layers one too high, eagle3": Fault(of=EAGLE3, config=captured(3, 4, 6)),
    "d2t shifted": Fault(of=FEWER, weights=lambda state: state.update(d2t=state["d2t"] + 1)),
    "d2t zero": Fault(of=FEWER, weights=lambda state: state.update(d2t=0 * state["d2t"])),
    "own embedding": Fault(of=EAGLE31, engine=_own_embedding),
    "head permuted": Fault(of=EAGLE31, weights=_permuted_head),
    "rope interleaved": Fault(of=EAGLE31, engine=_rope_interleaved),
    "other target": Fault(of=EAGLE31, target=_other_target),
}
"""Faults by name."""


K, REQUESTS, MAX_TOKENS = 4, 36, 24
"""Size of the runs: enough rounds to identify a dead drafter with certainty, and to show the
mildest fault."""


def record(run: Path, name: str, folder: Path) -> Path:
    """Record the healthy drafter or the fault of that name into `run`; models go to `folder`."""
    torch.set_num_threads(1)
    fault = FAULTS.get(name)
    target, drafter = _models(folder, name)
    prompts = [encode(prompt.in_distribution) for prompt in load_prompts()[:REQUESTS]]
    change = fault.engine if fault else None
    size = {"k": K, "max_tokens": MAX_TOKENS}
    with torch.inference_mode():
        record_run(run, target, drafter, prompts, **size, label="in distribution", change=change)
    return run
