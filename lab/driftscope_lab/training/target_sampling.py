"""Text that the target itself writes, for the drafters to learn from."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor

from driftscope.inspect.reference.config import EOS_ID, PAD_ID
from driftscope.inspect.reference.model import Target
from driftscope.inspect.reference.target import KVCache
from driftscope_lab.training.compute import autocast, device_of
from driftscope_lab.training.progress import Progress
from driftscope_lab.training.recipe import SamplingRecipe
from driftscope_lab.training.training_rows import RowMaker
from driftscope_lab.trio.template import ASSISTANT, SPECIAL_TOKENS

ASSISTANT_ID = SPECIAL_TOKENS.index(ASSISTANT)


def sample_rows(target: Target, rows: RowMaker, settings: SamplingRecipe, log: Progress) -> Tensor:
    """Return training prompts continued by the target: ids [rows, length].

    Every second batch is greedy, the others are sampled.
    """
    device = device_of(target)
    generator = torch.Generator(device).manual_seed(settings.seed)
    written = []
    for index, (prompts, prompt_tokens) in enumerate(_prompt_batches(rows, settings)):
        temperature = 0.0 if index % 2 == 0 else settings.temperature
        count = settings.length - prompt_tokens
        batch = continue_rows(target, prompts.to(device), count, temperature, generator)
        written.append(batch)
        log.note(f"sampling {index + 1}/{settings.batches}  temperature {temperature}")
    return torch.cat(written)


@torch.no_grad()
def continue_rows(
    target: Target, ids: Tensor, count: int, temperature: float, generator: torch.Generator
) -> Tensor:
    """Return `ids` [B, P] with `count` tokens appended to each row; special tokens are never
    written, so that all rows of a batch have equal length."""
    cache = KVCache(ids.shape[1] + count)
    newest = ids
    for _ in range(count):
        with autocast(ids.device):
            logits = target.logits(target(newest, cache=cache).hidden[:, -1]).float()
        logits[:, : max(EOS_ID, PAD_ID) + 1] = float("-inf")
        newest = _pick(logits, temperature, generator)
        ids = torch.cat([ids, newest], 1)
    return ids


def _pick(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    if temperature == 0.0:
        return logits.argmax(-1, keepdim=True)
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)


def _prompt_batches(rows: RowMaker, settings: SamplingRecipe) -> list[tuple[Tensor, int]]:
    """Return full rows of similar prompt length, cut at their batch's longest prompt."""
    candidates = rows.rows(settings.length, held_out=False, seed=555)
    candidates = candidates[(candidates != PAD_ID).all(1)]
    prompt_ends = (candidates == ASSISTANT_ID).argmax(1) + 1
    shortest, longest = settings.prompt_tokens
    kept = (prompt_ends > shortest) & (prompt_ends <= longest)
    candidates, prompt_ends = candidates[kept], prompt_ends[kept]
    order = np.argsort(prompt_ends, kind="stable")
    size = settings.batch_size
    groups = [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
    random.Random(settings.seed).shuffle(groups)
    chosen = groups[: settings.batches]
    cuts = [int(prompt_ends[group].max()) for group in chosen]
    return [
        (torch.from_numpy(candidates[group][:, :cut]), cut)
        for group, cut in zip(chosen, cuts, strict=True)
    ]
