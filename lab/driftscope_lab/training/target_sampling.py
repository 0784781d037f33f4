"""Text that the target itself writes, for the drafters to learn from."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from driftscope.inspect.reference.config import BOS_ID, EOS_ID, PAD_ID
from driftscope.inspect.reference.model import Target
from driftscope.inspect.reference.target import KVCache
from driftscope_lab.training.compute import autocast, device_of
from driftscope_lab.training.conversation_rows import Rows
from driftscope_lab.training.progress import Progress
from driftscope_lab.training.recipe import SamplingRecipe
from driftscope_lab.trio.template import ASSISTANT, SPECIAL_TOKENS

ASSISTANT_ID = SPECIAL_TOKENS.index(ASSISTANT)


def sample_rows(target: Target, rows: Rows, settings: SamplingRecipe, log: Progress) -> Tensor:
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


def sample_conversations(
    target: Target, rows: Rows, settings: SamplingRecipe, log: Progress
) -> Tensor:
    """Return the beginnings of conversations continued by the target, which also writes the ends of
    turns and the user's next: ids [rows, length].

    `settings.prompt_tokens` are the shortest and the longest beginning. Every second batch is
    greedy, the others are sampled.
    """
    device = device_of(target)
    generator = torch.Generator(device).manual_seed(settings.seed)
    rng = random.Random(settings.seed)
    written = []
    for index in range(settings.batches):
        beginnings = rows.rows(settings.length, held_out=False, seed=555 + index)
        given = rng.randint(*settings.prompt_tokens)
        ids = torch.from_numpy(beginnings[: settings.batch_size, :given]).to(device)
        temperature = 0.0 if index % 2 == 0 else settings.temperature
        count = settings.length - given
        written.append(
            continue_rows(target, ids, count, temperature, generator, never=(BOS_ID, PAD_ID))
        )
        log.note(f"sampling {index + 1}/{settings.batches}  temperature {temperature}")
    return torch.cat(written)


@torch.no_grad()
def continue_rows(
    target: Target,
    ids: Tensor,
    count: int,
    temperature: float,
    generator: torch.Generator,
    never: Sequence[int] = range(max(EOS_ID, PAD_ID) + 1),
) -> Tensor:
    """Return `ids` [B, P] with `count` tokens appended to each row; the tokens `never`, by default
    all special tokens, are not written."""
    cache = KVCache(ids.shape[1] + count)
    newest = ids
    for _ in range(count):
        with autocast(ids.device):
            logits = target.logits(target(newest, cache=cache).hidden[:, -1]).float()
        logits[:, list(never)] = float("-inf")
        newest = _pick(logits, temperature, generator)
        ids = torch.cat([ids, newest], 1)
    return ids


def _pick(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    if temperature == 0.0:
        return logits.argmax(-1, keepdim=True)
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)


def _prompt_batches(rows: Rows, settings: SamplingRecipe) -> list[tuple[Tensor, int]]:
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
