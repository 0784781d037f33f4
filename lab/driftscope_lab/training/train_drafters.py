"""Trains EAGLE-3 and EAGLE-3.1 drafters together: same seed, same batches, same steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from driftscope.inspect.reference.chain import rms
from driftscope.inspect.reference.config import PAD_ID, DrafterConfig
from driftscope.inspect.reference.drafter import (
    ChainKeys,
    Drafter,
    StepOutput,
    Target,
    save_drafter,
)
from driftscope.inspect.reference.layers import TargetLayer
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
from driftscope_lab.training.recipe import DrafterRecipe
from driftscope_lab.training.rows import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Teaching:
    """The target's output for a batch `ids` [B, S]: embeddings, captured states, and the
    log-probabilities [B, S, vocabulary] of the token after each token."""

    ids: Tensor
    embeddings: Tensor
    aux: tuple[Tensor, ...]
    log_probs: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLoss:
    """The loss and its figures. `loss` is minimised. Per depth, `agreement` is the share of slots
    where drafter and target prefer the same token, and `prenorm_rms` is a mean over slots."""

    loss: Tensor
    agreement: list[float]
    prenorm_rms: list[float]


@torch.no_grad()
def teach(target: Target, ids: Tensor, aux_layers: Sequence[int] = recipe.AUX_LAYERS) -> Teaching:
    """Run the target over a batch."""
    with autocast(ids.device):
        output = target(ids, aux_layers=aux_layers)
        logits = target.logits(output.hidden)
    return Teaching(
        ids=ids,
        embeddings=target.embed(ids),
        aux=output.aux,
        log_probs=logits.float().log_softmax(-1),
    )


def draft_loss(
    drafter: Drafter, aux_factors: Sequence[float], teaching: Teaching, *, depths: int, decay: float
) -> DraftLoss:
    """Run the training-time test: from every slot at once, draft `depths` deep on the true tokens.

    The loss is the sum over depth of decay^(depth-1) times the cross-entropy against the target's
    distribution. Captured states are multiplied by `aux_factors` first.
    """
    total = torch.zeros((), device=teaching.ids.device)
    agreement, prenorm_rms = [], []
    with autocast(teaching.ids.device):
        scaled = [aux * by for aux, by in zip(teaching.aux, aux_factors, strict=True)]
        steps = _unrolled(drafter, scaled, teaching.embeddings, depths)
        for depth, step in enumerate(steps, start=1):
            entropy, same = _compared(drafter.lm_head(step.postnorm), teaching, depth)
            total = total + decay ** (depth - 1) * entropy
            agreement.append(same)
            prenorm_rms.append(rms(step.prenorm.detach()).mean().item())
    return DraftLoss(loss=total, agreement=agreement, prenorm_rms=prenorm_rms)


def _unrolled(
    drafter: Drafter, aux: Sequence[Tensor], embeddings: Tensor, depths: int
) -> Iterator[StepOutput]:
    """Yield each depth of the chains of all slots; slot i is anchored at token i of the batch."""
    slots = embeddings.shape[1] - 1 - depths
    hidden = drafter.fuse([layer[:, :slots] for layer in aux])
    context = drafter.context(embeddings[:, 1 : 1 + slots], hidden)
    chain_keys = ChainKeys()
    for depth in range(1, depths + 1):
        step = drafter.step(
            embedding=embeddings[:, depth : depth + slots],
            hidden=hidden,
            depth=depth,
            anchors=torch.arange(slots, device=embeddings.device),
            context=context,
            chain_keys=chain_keys,
        )
        yield step
        hidden, chain_keys = step.fed, step.chain_keys


def _compared(logits: Tensor, teaching: Teaching, depth: int) -> tuple[Tensor, float]:
    """Return cross-entropy (nats) and top-token agreement: means over unpadded slots."""
    logits = logits.float()
    window = slice(depth, depth + logits.shape[1])
    wanted = teaching.log_probs[:, window]
    counted = teaching.ids[:, window] != PAD_ID
    entropy = -(wanted.exp() * logits.log_softmax(-1)).sum(-1)
    same = logits.argmax(-1) == wanted.argmax(-1)
    return entropy[counted].mean(), same[counted].float().mean().item()


INIT_STD = 0.02


class Trainee:
    """A drafter, its optimizer, and the factors on its captured states.

    A target's layers differ in scale and grow with depth. EAGLE-3.1 norms them. EAGLE-3 has no such
    norm, so here each is divided by its RMS, a constant that `exported` folds into `fc`. Without
    that, EAGLE-3 would train worse and the comparison would be unfair.
    """

    def __init__(
        self,
        name: str,
        config: DrafterConfig,
        target: Target,
        aux_rms: Sequence[float],
        s: DrafterRecipe,
    ) -> None:
        torch.manual_seed(s.seed)
        self.name = name
        self._settings = s
        self.drafter = Drafter(config)
        _initialize(self.drafter, target)
        if s.reuse_last_layer:
            _reuse_last_layer(self.drafter, target, aux_rms[-1])
        self.drafter.to(device_of(target))
        fc_norm = self.drafter.config.fc_norm
        self.aux_factors = [1.0 if fc_norm else 1.0 / rms for rms in aux_rms]
        self.optimizer = Optimizer(
            self.drafter,
            Rates(adamw=s.learning_rate, muon=s.muon_learning_rate),
            not_muon="lm_head",
            schedule=_schedule(s),
        )

    def learn(self, teaching: Teaching, step: int) -> DraftLoss:
        """Take one step on a batch."""
        s = self._settings
        figures = draft_loss(
            self.drafter, self.aux_factors, teaching, depths=s.depths, decay=s.decay
        )
        self.optimizer.step(figures.loss, step)
        return figures

    def exported(self) -> Drafter:
        """Return a copy that takes the captured states unscaled."""
        copy = Drafter(self.drafter.config)
        copy.load_state_dict(self.drafter.state_dict())  # on the CPU, from where it is saved
        size = copy.config.layer.hidden_size
        factors = torch.tensor(self.aux_factors).repeat_interleave(size)
        copy.fc.weight.data.mul_(factors)
        return copy.eval()


def train_drafters(
    target: Target,
    rows: Rows,
    written: Tensor,
    s: DrafterRecipe,
    folder: Path,
    log: Progress,
    *,
    models: Mapping[str, DrafterConfig] = recipe.DRAFTERS,
    checkpoint: Path | None = None,
) -> dict[str, Drafter]:
    """Train the drafters, save them under `folder` regularly, and return them.

    `written` [rows, length] is text written by the target: half of each batch; the rest is real
    text. Both drafters of `models` capture the same layers. Training resumes from `checkpoint` if
    it exists.
    """
    target.requires_grad_(False)
    (aux_layers,) = {config.aux_layers for config in models.values()}
    aux_rms = _aux_rms(target, written[:16], aux_layers)
    trainees = [Trainee(name, one, target, aux_rms, s) for name, one in models.items()]
    kept = Checkpoint(
        checkpoint or folder / "drafters.checkpoint",
        s.checkpoint_every,
        {t.name: t.drafter for t in trainees} | {f"{t.name} opt": t.optimizer for t in trainees},
    )
    start = kept.restore(device_of(target))
    batches = itertools.islice(_batches(rows, written, s), start, None)
    for step, ids in zip(range(start, s.steps), batches, strict=False):
        teaching = teach(target, ids, aux_layers)
        for trainee in trainees:
            figures = trainee.learn(teaching, step)
            if step % s.log_every == 0 or step + 1 == s.steps:
                log.step(
                    trainee.name,
                    step,
                    s.steps,
                    loss=figures.loss.item(),
                    agreement=figures.agreement,
                    prenorm_rms=figures.prenorm_rms,
                )
        if (step + 1) % s.save_every == 0 or step + 1 == s.steps:
            for trainee in trainees:
                save_drafter(trainee.exported(), folder / trainee.name)
        kept.save(step + 1, s.steps)
    return {trainee.name: trainee.exported() for trainee in trainees}


def _initialize(drafter: Drafter, target: Target) -> None:
    """Initialise with Normal(0, 0.02); head and final norm start as the target's."""
    for parameter in drafter.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, 0.0, INIT_STD)
    drafter.lm_head.weight.data.copy_(target.model.embed_tokens.weight)
    drafter.get_parameter("norm.weight").data.copy_(target.model.norm.weight)


@torch.no_grad()
def _reuse_last_layer(drafter: Drafter, target: Target, rms: float) -> None:
    """Start the drafter's layer as the target's last layer, read from the last captured state.

    `rms` is that state's; the state reaches `fc` with an RMS of about 1. The half of attention's
    input that is the embedding starts at random.
    """
    size = target.config.hidden_size
    source: TargetLayer = target.model.layers[-1]  # type: ignore[assignment]
    layer = drafter.midlayer
    drafter.fc.weight[:, -size:] = torch.eye(size) * rms
    layer.get_parameter("hidden_norm.weight").copy_(source.input_layernorm.weight)
    layer.post_attention_layernorm.load_state_dict(source.post_attention_layernorm.state_dict())
    layer.mlp.load_state_dict(source.mlp.state_dict())
    for name, weight in source.self_attn.named_parameters():
        own = layer.self_attn.get_parameter(name)
        own[:, -weight.shape[1] :] = weight


@torch.no_grad()
def _aux_rms(target: Target, ids: Tensor, aux_layers: Sequence[int]) -> list[float]:
    """Return the RMS of each captured layer over all positions of `ids`."""
    aux = target(ids, aux_layers=aux_layers).aux
    return [layer.square().mean().sqrt().item() for layer in aux]


def _batches(rows: Rows, written: Tensor, s: DrafterRecipe) -> Iterator[Tensor]:
    half = s.batch_size // 2
    generator = torch.Generator().manual_seed(s.seed)
    for epoch in itertools.count():
        real = torch.from_numpy(rows.rows(s.length, held_out=False, seed=777 + epoch))
        # Draw on the CPU, so that every device gets the same batches.
        real = real[torch.randperm(len(real), generator=generator)].to(written.device)
        own = written[torch.randperm(len(written), generator=generator)]
        for first, second in zip(torch.split(own, half), torch.split(real, half), strict=False):
            if len(first) == len(second) == half:
                yield torch.cat([first, second])


def _schedule(s: DrafterRecipe) -> Schedule:
    """Return a schedule: warm-up times a cosine that falls to `final_share`."""

    def factor(step: int) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * step / s.steps))
        warm = min(1.0, (step + 1) / s.warmup_steps)
        return warm * (s.final_share + (1 - s.final_share) * cosine)

    return factor
