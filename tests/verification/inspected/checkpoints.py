"""Checkpoints to inspect: the shipped drafters with one mistake each, and healthy ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from support.checkpoints import (
    AUX,
    Config,
    State,
    as_speculators,
    changed,
    own_vocabulary,
    own_vocabulary_config,
    speculators_names,
)
from torch import Tensor

from driftscope.inspect.reference.config import PAD_ID
from driftscope.inspect.reference.drafter import load_drafter, load_target, save_drafter
from driftscope.inspect.reference.engine import generate
from driftscope_lab.training.text import Batch
from driftscope_lab.training.train_drafters import Teacher, draft_loss
from driftscope_lab.trio import Prompt, encode, load_prompts, trio_path
from verification.inspected.plants import EAGLE3, EAGLE31, NORMS, Plant, exchanged, fields

_HEAD_SIZE = 32
_SEED = 9


def _both(*changes: Callable[[Config], object]) -> Callable[[Config], None]:
    def change(fields: Config) -> None:
        for each in changes:
            each(fields)

    return change


def _layers(by: int) -> Callable[[Config], None]:
    def change(fields: Config) -> None:
        fields[AUX] = fields["eagle_config"][AUX] = [each + by for each in fields[AUX]]

    return change


def _unnamed_layers(fields: Config) -> None:
    del fields[AUX], fields["eagle_config"][AUX]


def _without(prefix: str) -> Callable[[State], None]:
    def change(state: State) -> None:
        for name in [name for name in state if name.startswith(prefix)]:
            del state[name]

    return change


def _columns(state: State) -> None:
    state["fc.weight"] = torch.cat(state["fc.weight"].chunk(3, -1)[::-1], -1)


def _table(made: Callable[[Tensor], Tensor], *, mask: bool) -> Callable[[State], None]:
    def change(state: State) -> None:
        own_vocabulary(state)
        state["d2t"] = made(state["d2t"])
        if not mask:
            del state["t2d"]

    return change


def _other_embedding(state: State) -> None:
    state["embed_tokens.weight"] = torch.randn(1024, 256, generator=_generator())


def _permuted_head(state: State) -> None:
    order = torch.randperm(1024, generator=_generator())
    state["lm_head.weight"] = state["lm_head.weight"][order]


def _interleaved(state: State) -> None:
    for part in "qk":
        name = f"midlayer.self_attn.{part}_proj.weight"
        heads = state[name].reshape(-1, 2, _HEAD_SIZE // 2, state[name].shape[-1])
        state[name] = heads.transpose(1, 2).reshape(state[name].shape)


def _halves(state: State) -> None:
    for part in "qkv":
        name = f"midlayer.self_attn.{part}_proj.weight"
        state[name] = torch.cat(state[name].chunk(2, -1)[::-1], -1)


def _other_target(state: State) -> None:
    """Make the drafter one of a target whose states are permuted, but not its tokens."""
    order = torch.randperm(256, generator=_generator())
    blocks = state["fc.weight"].chunk(3, -1)
    state["fc.weight"] = torch.cat([block[:, order] for block in blocks], -1)
    state["embed_tokens.weight"] = torch.randn(1024, 256, generator=_generator())


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(_SEED)


def _speculators(**lost: None) -> Callable[[Config], None]:
    def change(fields: Config) -> None:
        as_speculators(fields)
        for name in lost:
            fields.pop(name)

    return change


PUBLISHED = (
    Plant(
        name="norm_output on (SpecForge#879)",
        of=EAGLE3,
        causes=("repaired_by.norm_output",),
        config=fields(norm_output=True),
    ),
    Plant(
        name="norm_output lost in the speculators format (vllm#46488)",
        of=EAGLE31,
        causes=("repaired_by.norm_output",),
        config=_speculators(norm_output=None),
        weights=speculators_names,
    ),
    Plant(
        name="norm_before_fc for fc_norm (speculators#610, #670)",
        of=EAGLE31,
        causes=("fc_norm_and_norm_before_fc_swapped",),
        config=fields(fc_norm=False, norm_before_fc=True),
    ),
    Plant(
        name="captured layers one too low (sglang#32334)",
        of=EAGLE31,
        causes=("repaired_by.captured_layers_2_3_5",),
        config=_layers(-1),
    ),
    Plant(
        name="captured layers one too high",
        of=EAGLE3,
        causes=("repaired_by.captured_layers_2_3_5",),
        config=_layers(1),
    ),
    Plant(
        name="captured layers not named",
        of=EAGLE31,
        causes=("captured_layers_collapse",),
        config=_unnamed_layers,
    ),
    Plant(
        name="norm_before_residual on",
        of=EAGLE3,
        causes=("repaired_by.norm_before_residual",),
        config=fields(norm_before_residual=True),
    ),
    Plant(
        name="norm_before_residual left out in the speculators format",
        of=EAGLE3,
        causes=("repaired_by.norm_before_residual",),
        config=_speculators(norm_before_residual=None),
        weights=speculators_names,
    ),
    Plant(
        name="fc_norm off",
        of=EAGLE31,
        causes=("fc_norm_unused", "repaired_by.fc_norm"),
        config=fields(fc_norm=False),
    ),
    Plant(
        name="fc_norm lost, flag and weights",
        of=EAGLE31,
        causes=("repaired_by.fc_norm_of_ones",),
        config=fields(fc_norm=False),
        weights=_without("fc_norm."),
    ),
    Plant(
        name="columns of fc reversed",
        of=EAGLE3,
        causes=("repaired_by.states_order_3_2_1",),
        weights=_columns,
    ),
    Plant(
        name="columns of fc reversed",
        of=EAGLE31,
        # The order of the norms changes nothing that can be measured.
        causes=("repaired_by.fc_order_3_2_1", "repaired_by.states_order_3_2_1"),
        weights=_columns,
    ),
    Plant(
        name="fc_norm reversed",
        of=EAGLE31,
        causes=("repaired_by.fc_norm_order_3_2_1",),
        weights=exchanged("fc_norm.0", "fc_norm.2"),
    ),
    Plant(
        name="input and hidden norm exchanged",
        of=EAGLE3,
        causes=("repaired_by.input_and_hidden_norm",),
        weights=exchanged(*NORMS),
    ),
    Plant(
        name="input and hidden norm exchanged",
        of=EAGLE31,
        causes=("repaired_by.input_and_hidden_norm",),
        weights=exchanged(*NORMS),
    ),
    Plant(
        name="d2t holds ids",
        of=EAGLE31,
        causes=("d2t_absolute",),
        config=own_vocabulary_config,
        weights=_table(lambda table: table + torch.arange(len(table)), mask=False),
    ),
    Plant(
        name="d2t all zero",
        of=EAGLE3,
        causes=("d2t_zero",),
        config=own_vocabulary_config,
        weights=_table(torch.zeros_like, mask=True),
    ),
    Plant(
        name="d2t one too high",
        of=EAGLE31,
        causes=("d2t_range", "repaired_by.d2t_minus_one"),
        config=own_vocabulary_config,
        weights=_table(lambda table: table + 1, mask=False),
    ),
    Plant(
        name="an embedding of its own",
        of=EAGLE31,
        causes=("embedding_not_targets", "repaired_by.targets_embedding"),
        weights=_other_embedding,
    ),
    Plant(
        name="head permuted",
        of=EAGLE3,
        causes=("repaired_by.targets_head",),
        weights=_permuted_head,
    ),
    Plant(
        name="rope_theta not the target's",
        of=EAGLE31,
        causes=("rope_theta_differs", "repaired_by.rope_theta"),
        config=fields(rope_theta=1e6),
    ),
    Plant(
        name="queries and keys interleaved",
        of=EAGLE3,
        causes=("repaired_by.rope_layout",),
        weights=_interleaved,
    ),
    Plant(
        name="halves of attention's input exchanged",
        of=EAGLE31,
        causes=("repaired_by.attention_halves",),
        weights=_halves,
    ),
    Plant(
        name="drafter of another target",
        of=EAGLE31,
        causes=("another_target", "embedding_not_targets"),
        weights=_other_target,
    ),
)


DEPTHS, DECAY, LENGTH, ROWS = 3, 0.8, 160, 8
STEPS = 12
"""Steps of training: enough to move every weight, few enough for a CPU."""


def healthy(folder: Path, seeds: int) -> Iterator[tuple[str, str, Path]]:
    """Yield name, kind and folder of healthy drafters; `seeds` re-trained ones of each kind."""
    for name in (EAGLE3, EAGLE31):
        yield "as shipped", name, trio_path() / name
        yield "int8 rounding", name, changed(folder / f"{name}-int8", name, weights=_rounded)
        yield (
            "own vocabulary",
            name,
            changed(
                folder / f"{name}-own", name, config=own_vocabulary_config, weights=own_vocabulary
            ),
        )
        yield (
            "speculators format",
            name,
            changed(
                folder / f"{name}-spec", name, config=as_speculators, weights=speculators_names
            ),
        )
    rows = text_of(load_prompts()[32:]) if seeds else torch.empty(0)
    for seed in range(seeds):
        for name in (EAGLE3, EAGLE31):
            yield (
                f"trained on, seed {seed}",
                name,
                trained(folder / f"{name}-{seed}", name, seed, rows),
            )


def _rounded(state: State) -> None:
    """Round each row of the matrices to 8 bits."""
    for name, tensor in state.items():
        if tensor.dim() == 2:
            step = tensor.float().abs().amax(-1, keepdim=True) / 127
            state[name] = ((tensor.float() / step).round() * step).to(tensor.dtype)


def text_of(prompts: Sequence[Prompt]) -> torch.Tensor:
    """Return rows [prompts, LENGTH] of prompts with the target's answers."""
    target, drafter = load_target(trio_path() / "target"), load_drafter(trio_path() / EAGLE31)
    made = []
    for prompt in prompts:
        ids = encode(prompt.in_distribution)
        answer = generate(target, drafter, ids, LENGTH, 5).token_ids
        made.append(torch.tensor([*ids, *answer][-LENGTH:]))
    return torch.stack(made)


def noisy(folder: Path, name: str, seed: int, share: float) -> Path:
    """Write a drafter whose weights have noise of a share of their own size, tensor by tensor."""
    generator = torch.Generator().manual_seed(seed)

    def shaken(state: State) -> None:
        for key, tensor in state.items():
            wide = tensor.float()
            noise = torch.randn(wide.shape, generator=generator) * wide.square().mean().sqrt()
            state[key] = (wide + share * noise).to(tensor.dtype)

    return changed(folder, name, weights=shaken)


def trained(folder: Path, name: str, seed: int, rows: torch.Tensor) -> Path:
    """Write a drafter that was trained on for STEPS steps, at a rate that follows from the seed."""
    target, drafter = load_target(trio_path() / "target"), load_drafter(trio_path() / name)
    generator = torch.Generator().manual_seed(seed)
    rate = (1e-4, 3e-4, 1e-3)[seed % 3]
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=rate)
    factors = [1.0] * len(drafter.config.aux_layers)
    drafter.train()
    for _ in range(STEPS):
        ids = rows[torch.randperm(len(rows), generator=generator)[:ROWS]]
        batch = Batch(ids=ids, counted=ids != PAD_ID)
        teaching = Teacher(target, drafter.config.aux_layers).teach(batch)
        loss = draft_loss(drafter, factors, teaching, depths=DEPTHS, decay=DECAY).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_drafter(drafter.eval(), folder)
    return folder
