"""Trains EAGLE-3 and EAGLE-3.1 drafters together: same seed, same batches, same steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from driftscope.inspect.reference.config import DrafterConfig
from driftscope.inspect.reference.model import Drafter, Target, save_drafter
from driftscope.inspect.reference.target import TargetLayer
from driftscope_lab.training import recipe
from driftscope_lab.training.checkpoint import Checkpoint
from driftscope_lab.training.compute import device_of
from driftscope_lab.training.conversation_rows import Rows
from driftscope_lab.training.draft_loss import DraftLoss, Teaching, draft_loss, teach
from driftscope_lab.training.optimizer import Optimizer, Rates, Schedule
from driftscope_lab.training.progress import Progress
from driftscope_lab.training.recipe import DrafterRecipe

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
