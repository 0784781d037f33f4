"""Text that the target itself writes, for the drafters to learn from."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from driftscope.inspect.reference.config import BOS_ID, EOS_ID, PAD_ID
from driftscope.inspect.reference.model import Target
from driftscope.inspect.reference.target import KVCache
from driftscope_lab.training.compute import autocast, device_of
from driftscope_lab.training.conversation_rows import Rows
from driftscope_lab.training.progress import Progress
from driftscope_lab.training.recipe import SamplingRecipe


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
