"""Train EAGLE-3 and EAGLE-3.1 drafters side by side: same seed, same batches, same steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from driftscope_probes.reference.config import PAD_ID
from driftscope_probes.reference.drafter import ChainKeys
from driftscope_probes.reference.model import Drafter, Target, save_drafter
from driftscope_probes.trio import recipe
from driftscope_probes.trio.optimizer import Optimizer, Schedule
from driftscope_probes.trio.progress import Progress
from driftscope_probes.trio.recipe import DrafterRecipe
from driftscope_probes.trio.rows import RowMaker

INIT_STD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLoss:
    """`loss`: what is minimised. Per depth: `agreement`, the share of top tokens equal to the
    target's, and `prenorm_rms`.
    """

    loss: Tensor
    agreement: list[float]
    prenorm_rms: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Teaching:
    """What the target gives for one batch `ids` [B, S]: captured states and log-probabilities."""

    ids: Tensor
    embeddings: Tensor
    aux: tuple[Tensor, ...]
    log_probs: Tensor


class Trainee:
    """A drafter, its optimizer, and the factors on its captured states.

    A target's layers differ in scale and grow with depth. EAGLE-3.1 norms them; EAGLE-3 has no such
    norm, so here each is divided by its RMS, a constant that `exported` folds into `fc`. Without
    that EAGLE-3 trains worse, and the comparison would be unfair.
    """

    def __init__(
        self, name: str, target: Target, aux_rms: Sequence[float], s: DrafterRecipe
    ) -> None:
        torch.manual_seed(s.seed)
        self.name = name
        self.drafter = Drafter(recipe.DRAFTERS[name])
        _initialize(self.drafter, target)
        fc_norm = self.drafter.config.fc_norm
        self.aux_factors = [1.0 if fc_norm else 1.0 / rms for rms in aux_rms]
        self.optimizer = Optimizer(
            self.drafter,
            adamw_rate=s.learning_rate,
            muon_rate=s.muon_learning_rate,
            muon_weight_decay=0.0,
            not_muon="lm_head",
            schedule=_schedule(s),
        )

    def exported(self) -> Drafter:
        """A copy that takes the captured states as they are."""
        copy = Drafter(self.drafter.config)
        copy.load_state_dict(self.drafter.state_dict())
        size = copy.config.layer.hidden_size
        factors = torch.tensor(self.aux_factors).repeat_interleave(size)
        copy.fc.weight.data.mul_(factors)
        return copy.eval()


def train_drafters(
    target: Target, rows: RowMaker, written: Tensor, s: DrafterRecipe, folder: Path, log: Progress
) -> dict[str, Drafter]:
    """Train both, save them under `folder` as it goes, and return them.

    `written` [rows, length] is target-generated text: half of each batch, the rest is real text.
    """
    target.requires_grad_(False)
    aux_rms = _aux_rms(target, written[:16])
    trainees = [Trainee(name, target, aux_rms, s) for name in recipe.DRAFTERS]
    for step, ids in zip(range(s.steps), _batches(rows, written, s), strict=False):
        teaching = teach(target, ids)
        for trainee in trainees:
            figures = draft_loss(trainee, teaching, s)
            trainee.optimizer.step(figures.loss, step)
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
    return {trainee.name: trainee.exported() for trainee in trainees}


@torch.no_grad()
def teach(target: Target, ids: Tensor) -> Teaching:
    """Run the target over a batch."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=recipe.BF16_AUTOCAST):
        output = target(ids, aux_layers=recipe.AUX_LAYERS)
        logits = target.logits(output.hidden)
    return Teaching(
        ids=ids,
        embeddings=target.embed(ids),
        aux=output.aux,
        log_probs=logits.float().log_softmax(-1),
    )


def draft_loss(trainee: Trainee, teaching: Teaching, s: DrafterRecipe) -> DraftLoss:
    """Training-time test: from every slot at once, draft `depths` deep on the true tokens.

    Per depth the cross-entropy against the target's distribution, padding left out.
    """
    slots = teaching.ids.shape[1] - 1 - s.depths
    anchors = torch.arange(slots)
    drafter = trainee.drafter
    total = torch.zeros(())
    agreement, prenorm_rms = [], []
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=recipe.BF16_AUTOCAST):
        scaled = zip(teaching.aux, trainee.aux_factors, strict=True)
        hidden = drafter.fuse([aux[:, :slots] * factor for aux, factor in scaled])
        context = drafter.context(teaching.embeddings[:, 1 : 1 + slots], hidden)
        chain_keys = ChainKeys()
        for depth in range(1, s.depths + 1):
            window = slice(depth, depth + slots)
            step = drafter.step(
                embedding=teaching.embeddings[:, window],
                hidden=hidden,
                depth=depth,
                anchors=anchors,
                context=context,
                chain_keys=chain_keys,
            )
            hidden, chain_keys = step.fed, step.chain_keys
            logits = drafter.lm_head(step.postnorm).float()
            wanted = teaching.log_probs[:, window]
            counted = teaching.ids[:, window] != PAD_ID
            entropy = -(wanted.exp() * logits.log_softmax(-1)).sum(-1)
            total = total + s.decay ** (depth - 1) * entropy[counted].mean()
            same = logits.argmax(-1) == wanted.argmax(-1)
            agreement.append(same[counted].float().mean().item())
            prenorm_rms.append(step.prenorm.detach().float().square().mean(-1).sqrt().mean().item())
    return DraftLoss(loss=total, agreement=agreement, prenorm_rms=prenorm_rms)


def _initialize(drafter: Drafter, target: Target) -> None:
    """Normal(0, 0.02); the head and the final norm start as the target's."""
    for parameter in drafter.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, 0.0, INIT_STD)
    drafter.lm_head.weight.data.copy_(target.model.embed_tokens.weight)
    drafter.norm.weight.data.copy_(target.model.norm.weight)


@torch.no_grad()
def _aux_rms(target: Target, ids: Tensor) -> list[float]:
    """RMS of each captured layer over all positions of `ids`."""
    aux = target(ids, aux_layers=recipe.AUX_LAYERS).aux
    return [layer.square().mean().sqrt().item() for layer in aux]


def _batches(rows: RowMaker, written: Tensor, s: DrafterRecipe) -> Iterator[Tensor]:
    half = s.batch_size // 2
    generator = torch.Generator().manual_seed(s.seed)
    for epoch in itertools.count():
        real = torch.from_numpy(rows.rows(s.length, held_out=False, seed=777 + epoch))
        real = real[torch.randperm(len(real), generator=generator)]
        own = written[torch.randperm(len(written), generator=generator)]
        for first, second in zip(torch.split(own, half), torch.split(real, half), strict=False):
            if len(first) == len(second) == half:
                yield torch.cat([first, second])


def _schedule(s: DrafterRecipe) -> Schedule:
    """Warm up, then a cosine down to `final_share`."""

    def factor(step: int) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * step / s.steps))
        warm = min(1.0, (step + 1) / s.warmup_steps)
        return warm * (s.final_share + (1 - s.final_share) * cosine)

    return factor
