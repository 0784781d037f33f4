"""Errors and warnings of `inspect` about healthy drafters, counted: `make inspect-healthy`.

Each drafter is a shipped one with other weights (noise, or trained on) or written otherwise (types,
shards, vocabularies, fields). It is inspected as the command does, on half of the trio's prompts,
drawn by its seed; the other half is what it was trained on. The command fails if more than
MOST_ALARMS of the drafters have an error or a warning.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from support.checkpoints import (
    TARGET,
    Config,
    State,
    added,
    as_speculators,
    changed,
    fields,
    of_dims,
    sharded,
    speculators_names,
    stored,
    vocabulary_of,
)
from support.reference_engine import generate
from torch import Tensor

from driftscope.analysis.statistics.intervals import exact_interval
from driftscope.inspect.checkpoints import open_target
from driftscope.inspect.inspection import Soundness
from driftscope.inspect.reference.config import PAD_ID
from driftscope.inspect.trial.trial import Bench
from driftscope_lab.training.checkpoints import load_drafter, load_target, save_drafter
from driftscope_lab.training.text import Batch
from driftscope_lab.training.train_drafters import TrainingTarget, draft_loss
from driftscope_lab.trio import TrioPrompt, encode, load_prompts, trio_path
from verification.inspected.plants import EAGLE3, EAGLE31, Plant
from verification.inspected.table import TITLES, Row, inspected, line

MOST_ALARMS = 0.05
"""Largest share of healthy drafters that may have an error or a warning."""
SEEDS = 34
"""Number of seeds, each with two drafters: 68 without an alarm show a share below 5 %."""
PROMPTS = 32
LENGTHS = (5, 3, 8)
"""Numbers of drafted tokens."""
Maker = Callable[[Path, str, int, Tensor], Path]


DEPTHS, DECAY, LENGTH, ROWS = 3, 0.8, 160, 8
STEPS = 12
"""Steps of training: enough to move every weight, few enough for a CPU."""


def _text_of(prompts: Sequence[TrioPrompt]) -> Tensor:
    """Return rows [prompts, LENGTH] of prompts with the target's answers."""
    target, drafter = load_target(trio_path() / "target"), load_drafter(trio_path() / EAGLE31)
    made = []
    for prompt in prompts:
        ids = encode(prompt.in_distribution)
        answer = generate(target, drafter, ids, LENGTH, 5).token_ids
        made.append(torch.tensor([*ids, *answer][-LENGTH:]))
    return torch.stack(made)


def _with_noise(share: float, folder: Path, name: str, seed: int, _rows: Tensor) -> Path:
    """Write a drafter whose weights have noise of a share of their own size, tensor by tensor."""
    generator = torch.Generator().manual_seed(seed)

    def shaken(state: State) -> None:
        for key, tensor in state.items():
            wide = tensor.float()
            noise = torch.randn(wide.shape, generator=generator) * wide.square().mean().sqrt()
            state[key] = (wide + share * noise).to(tensor.dtype)

    return changed(folder, name, weights=shaken)


def _with_training(folder: Path, name: str, seed: int, rows: Tensor) -> Path:
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
        teaching = TrainingTarget(target, drafter.config.aux_layers, None).teach(batch)
        loss = draft_loss(drafter, factors, teaching, depths=DEPTHS, decay=DECAY).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_drafter(drafter.eval(), folder)
    return folder


def _written(
    config: Callable[[Config], object] | None,
    weights: Callable[[State], object] | None,
    folder: Path,
    name: str,
    _seed: int,
    _rows: Tensor,
) -> Path:
    return changed(folder, name, config=config, weights=weights)


def _type(dtype: torch.dtype) -> Maker:
    def weights(state: State) -> None:
        state.update({name: one.to(dtype) for name, one in state.items()})

    return partial(_written, fields(torch_dtype=str(dtype).removeprefix("torch.")), weights)


def _rope_parameters(config: Config) -> None:
    theta = config.pop("rope_theta")
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}


def _rounded(tensor: Tensor) -> Tensor:
    """Round each row of a matrix to 8 bits."""
    step = tensor.abs().amax(-1, keepdim=True) / 127
    return (tensor / step).round() * step


def _vocabulary(kept: Callable[[Tensor], Tensor]) -> Maker:
    """Give the drafter a vocabulary of the ids that `kept` takes from all, the most frequent in the
    target's answers first."""

    def made(folder: Path, name: str, _seed: int, rows: Tensor) -> Path:
        ids = kept(rows.flatten().bincount(minlength=1024).argsort(descending=True, stable=True))
        config = fields(draft_vocab_size=len(ids))
        return changed(folder, name, config=config, weights=vocabulary_of(ids))

    return made


OWN = 768
INV_FREQ = 10000.0 ** -(torch.arange(0, 32, 2) / 32)
EMBEDDING = stored("target")["model.embed_tokens.weight"]
KINDS: dict[str, Maker] = {
    "noise of 2%": partial(_with_noise, 0.02),
    "noise of 10%": partial(_with_noise, 0.1),
    "trained on": _with_training,
    "as shipped": partial(_written, None, None),
    "float16": _type(torch.float16),
    "float32": _type(torch.float32),
    "two shards": lambda folder, name, _seed, _rows: sharded(changed(folder, name)),
    "no head_dim": partial(_written, lambda config: config.pop("head_dim"), None),
    "rope_parameters": partial(_written, _rope_parameters, None),
    "eps 1e-6": partial(_written, fields(rms_norm_eps=1e-6), None),
    "int8 rounding": partial(_written, None, of_dims(2, _rounded)),
    "speculators format": partial(_written, as_speculators, speculators_names),
    "inv_freq": partial(_written, None, added("midlayer.self_attn.rotary_emb.inv_freq", INV_FREQ)),
    "copied embedding": partial(_written, None, added("embed_tokens.weight", EMBEDDING)),
    "own vocabulary, sorted": _vocabulary(lambda ids: ids[:OWN].sort().values),
    "own vocabulary, by frequency": _vocabulary(lambda ids: ids[:OWN]),
    "own vocabulary, the first ids": _vocabulary(lambda ids: ids.sort().values[:1000]),
}


def rows(folder: Path, first: int, seeds: int) -> Iterator[Row]:
    """Make and inspect both drafters of each seed; every kind twice with 34 seeds."""
    prompts = load_prompts()
    text = _text_of(prompts)
    for seed in range(first, first + seeds):
        order = torch.randperm(len(prompts), generator=torch.Generator().manual_seed(seed)).tolist()
        chosen = [prompts[at] for at in order[:PROMPTS]]
        encoded = {one.id: encode(one.in_distribution) for one in chosen}
        bench = Bench(open_target(str(TARGET)), lambda _, encoded=encoded: encoded)
        kind = list(KINDS)[seed % len(KINDS)]
        for name in (EAGLE3, EAGLE31):
            path = KINDS[kind](folder / f"{name}-{seed}", name, seed, text[order[PROMPTS:]])
            yield inspected(path, Plant(kind, of=name), bench, k=LENGTHS[seed % len(LENGTHS)])


def verdict(made: Sequence[Row]) -> tuple[str, bool]:
    """Return the sentence about all drafters, and whether the bound holds."""
    alarms = sum(row.answer is not Soundness.NOT_COMPARED for row in made)
    most = exact_interval(alarms, len(made)).high
    holds = alarms <= MOST_ALARMS * len(made)
    return (
        f"{alarms} of {len(made)} healthy drafters have an error or a warning: at most "
        f"{most:.1%} would (95 % interval). Allowed here: {MOST_ALARMS:.0%} of them."
    ), holds


def main() -> None:
    """Print the table; exit with 1 if there are more alarms than allowed."""
    parser = argparse.ArgumentParser(prog="python -m verification.inspected.false_alarms")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="each has two drafters")
    parser.add_argument("--first", type=int, default=0, help="first seed, to go on later")
    options = parser.parse_args()
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    made = []
    print(f"| {TITLES} |\n|{'---|' * len(TITLES.split('|'))}")
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(Path(folder), options.first, options.seeds):
            made.append(row)
            print(line(row), flush=True)
    sentence, holds = verdict(made)
    print(f"\n{sentence}")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
