"""Trains the target on the corpus, and lets it write text for the drafters to learn from."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from driftscope.inspect.reference.config import BOS_ID, EOS_ID, PAD_ID, DecoderConfig
from driftscope.inspect.reference.drafter import Target, save_target
from driftscope.inspect.reference.layers import KVCache
from driftscope_lab.training import recipe
from driftscope_lab.training.loop import (
    Checkpoint,
    Optimizer,
    Progress,
    Rates,
    Schedule,
    autocast,
    device_of,
)
from driftscope_lab.training.recipe import SamplingRecipe, TargetRecipe
from driftscope_lab.training.rows import Rows


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


INIT_STD = 0.02
CPU = torch.device("cpu")


def train_target(
    rows: Rows,
    settings: TargetRecipe,
    folder: Path,
    log: Progress,
    *,
    model: DecoderConfig = recipe.TARGET,
    device: torch.device = CPU,
    checkpoint: Path | None = None,
    before: Target | None = None,
) -> Target:
    """Train the target, save it into `folder` at each validation, and return it.

    Training goes on from the target `before`, if there is one, and resumes from `checkpoint` if
    that exists.
    """
    torch.manual_seed(settings.seed)
    target = before
    if target is None:
        target = Target(model)
        _initialize(target)
    target.to(device)
    optimizer = Optimizer(
        target,
        Rates(
            adamw=settings.learning_rate,
            muon=settings.learning_rate if settings.muon else None,
            muon_decay=settings.muon_weight_decay,
            adamw_decay=settings.adamw_weight_decay,
        ),
        not_muon="embed_tokens",
        schedule=_schedule(settings),
    )
    validation = torch.from_numpy(rows.rows(settings.lengths[0], held_out=True, seed=7))
    validation = validation[: settings.validation_tokens // settings.lengths[0]].to(device)
    kept = Checkpoint(
        checkpoint or folder / "target.checkpoint",
        settings.checkpoint_every,
        {"target": target, "optimizer": optimizer},
    )
    start = kept.restore(device)
    batches = itertools.islice(_batches(rows, settings, device), start, None)
    for step, batch in zip(range(start, settings.steps), batches, strict=False):
        loss = next_token_loss(target, batch)
        optimizer.step(loss, step)
        if step % settings.log_every == 0:
            log.step("target", step, settings.steps, loss_nats=loss.item())
        if (step + 1) % settings.validate_every == 0 or step + 1 == settings.steps:
            held_out_nats = validation_loss(target, validation)
            log.step("target", step + 1, settings.steps, held_out_nats=held_out_nats)
            save_target(target, folder)
        kept.save(step + 1, settings.steps)
    return target


def next_token_loss(target: Target, ids: Tensor) -> Tensor:
    """Return the mean cross-entropy, in nats per token, over `ids` [B, S] without the padding."""
    with autocast(ids.device):
        logits = target.logits(target(ids[:, :-1]).hidden)
    wanted = ids[:, 1:].flatten()
    return functional.cross_entropy(logits.float().flatten(0, 1), wanted, ignore_index=PAD_ID)


@torch.no_grad()
def validation_loss(target: Target, ids: Tensor) -> float:
    """Return `next_token_loss` averaged over batches of 8 rows."""
    losses = [next_token_loss(target, batch).item() for batch in torch.split(ids, 8)]
    return sum(losses) / len(losses)


def _initialize(target: Target) -> None:
    """Initialise with Normal(0, 0.02); divide residual outputs by sqrt(2 layers)."""
    residual_std = INIT_STD / (2 * target.config.num_hidden_layers) ** 0.5
    for name, parameter in target.named_parameters():
        if parameter.dim() == 2:
            into_residual = "o_proj" in name or "down_proj" in name
            nn.init.normal_(parameter, 0.0, residual_std if into_residual else INIT_STD)


def _batches(rows: Rows, settings: TargetRecipe, device: torch.device) -> Iterator[Tensor]:
    """Yield batches of `tokens_per_step` tokens, with row lengths in turn."""
    streams = {
        length: _stream(rows, length, settings.tokens_per_step // length, device)
        for length in settings.lengths
    }
    for length in itertools.cycle(settings.lengths):
        yield next(streams[length])


def _stream(rows: Rows, length: int, batch_size: int, device: torch.device) -> Iterator[Tensor]:
    """Yield batches; each epoch is on the device as a whole, so that no batch waits."""
    for epoch in itertools.count():
        # Use one seed per length and epoch, so that no two passes cut the files identically.
        epoch_rows = torch.from_numpy(rows.rows(length, held_out=False, seed=length + epoch))
        epoch_rows = epoch_rows.to(device)
        yield from (
            batch for batch in torch.split(epoch_rows, batch_size) if len(batch) == batch_size
        )


def _schedule(settings: TargetRecipe) -> Schedule:
    hold = int(settings.steps * settings.hold_share)

    def factor(step: int) -> float:
        warm = min(1.0, (step + 1) / settings.warmup_steps)
        fall = 1.0 - max(0, step - hold) / max(1, settings.steps - hold)
        return warm * max(settings.final_share, fall)

    return factor
