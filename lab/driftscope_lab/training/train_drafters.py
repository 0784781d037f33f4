"""Trains EAGLE-3 and EAGLE-3.1 drafters of one target together: same seed, same batches, same
steps."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from driftscope.inspect.reference.config import DrafterConfig
from driftscope.inspect.reference.drafter import ChainKeys, ReferenceDrafter, StepOutput, rms
from driftscope.inspect.reference.layers import Target, TargetOutput
from driftscope_lab.training.checkpoints import save_drafter
from driftscope_lab.training.text import Batch, TokenizedConversation, batches


def autocast(device: torch.device) -> torch.autocast:
    """Return a context in which matrix products run in bf16 on any device; weights stay float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16)


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's parameters."""
    return next(module.parameters()).device


SAVED_EVERY_S = 30.0
"""Seconds of training that an interruption loses at most, and a step."""


class Stateful(Protocol):
    """A module or an optimizer."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return everything that changes in training."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> object:
        """Restore the result of `state_dict`."""
        ...


class Checkpoint:
    """A file with the number of steps taken and the state of the parts after them."""

    def __init__(self, path: Path, parts: Mapping[str, Stateful]) -> None:
        self._path, self._parts, self._saved = path, parts, time.monotonic()

    def restore(self, device: torch.device) -> int:
        """Restore the parts; return the number of steps that they have taken, 0 without a file."""
        if not self._path.is_file():
            return 0
        state = torch.load(self._path, map_location=device, weights_only=True)
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        return int(state["steps"])

    def save(self, taken: int, steps: int) -> None:
        """Save the state after `taken` of `steps`, twice a minute and at the end."""
        if time.monotonic() - self._saved < SAVED_EVERY_S and taken != steps:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        torch.save({"steps": taken, **{n: p.state_dict() for n, p in self._parts.items()}}, partial)
        partial.replace(self._path)
        self._saved = time.monotonic()


class Progress:
    """Appends progress lines to a file, each with the seconds since the start."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._start = path, time.monotonic()

    def step(self, stage: str, step: int, steps: int, **figures: float | list[float]) -> None:
        """Report figures of one step, on stderr too."""
        elapsed_s = round(time.monotonic() - self._start, 1)
        shown = "  ".join(f"{name} {_short(value)}" for name, value in figures.items())
        sys.stderr.write(f"{elapsed_s:7.1f} s  {stage} {step}/{steps}  {shown}\n")
        sys.stderr.flush()
        record = {"stage": stage, "step": step, "elapsed_s": elapsed_s, **figures}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def _short(value: float | list[float]) -> str:
    if isinstance(value, list):
        return "[" + " ".join(f"{item:.3f}" for item in value) + "]"
    return f"{value:.3f}"


CLIP_NORM = 1.0


class Optimizer:
    """Muon for the matrices of a drafter's layers, AdamW for its head and norms; both step
    together, with rates that follow one schedule."""

    def __init__(
        self, module: nn.Module, *, adamw: float, muon: float, schedule: Callable[[int], float]
    ) -> None:
        """`adamw` and `muon` are learning rates, `schedule` gives the factor on them by step."""
        matrices, others = list[nn.Parameter](), list[nn.Parameter]()
        for name, parameter in module.named_parameters():
            in_layers = parameter.dim() == 2 and "lm_head" not in name
            (matrices if in_layers else others).append(parameter)
        self._module, self._schedule = module, schedule
        self._parts = {
            "muon": torch.optim.Muon(
                matrices, lr=muon, momentum=0.95, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
            ),
            "adamw": torch.optim.AdamW(
                others, lr=adamw, betas=(0.9, 0.95), weight_decay=0.0, fused=True
            ),
        }
        self._rates = {"muon": muon, "adamw": adamw}

    def state_dict(self) -> dict[str, object]:
        """Return the states of the optimizers by name."""
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        for name, part in self._parts.items():
            part.load_state_dict(state[name])

    def step(self, loss: torch.Tensor, step: int) -> None:
        """Run backward, clip the gradients, update the parameters, clear the gradients."""
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._module.parameters(), CLIP_NORM)
        for name, optimizer in self._parts.items():
            for group in optimizer.param_groups:
                group["lr"] = self._rates[name] * self._schedule(step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterRecipe:
    """Training-time test: losses are summed over `depths`, weighted by `decay`^(depth-1).

    The rates warm up, hold until `hold_share` of the steps, and fall to nothing.
    """

    steps: int = 1500
    tokens_per_step: int = 4096
    depths: int = 5
    decay: float = 0.8
    learning_rate: float = 1e-3
    muon_learning_rate: float = 4e-3
    warmup_steps: int = 30
    hold_share: float = 0.4
    log_every: int = 10
    check_every: int = 100
    """Steps between agreements on held-out text, after which the drafters are saved, too."""
    seed: int = 0


def drafter_configs(
    target: Target, aux_layers: Sequence[int], draft_vocab_size: int | None
) -> dict[str, DrafterConfig]:
    """Return an EAGLE-3 and an EAGLE-3.1 drafter of one layer with the target's sizes."""
    plain = DrafterConfig(
        layer=replace(target.config, num_hidden_layers=1),
        aux_layers=tuple(aux_layers),
        draft_vocab_size=draft_vocab_size,
    )
    return {"eagle3": plain, "eagle31": replace(plain, fc_norm=True, norm_output=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Teaching:
    """The target's output for a batch: embeddings [B, S, H], captured states, and `wanted`
    [B, S, V], the distribution of the token after each token over the drafter's vocabulary.
    `counted` [B, S], on the CPU, says which of them count."""

    embeddings: Tensor
    aux: tuple[Tensor, ...]
    wanted: Tensor
    counted: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLoss:
    """The loss and its figures, on the device until they are asked for. `loss` is minimised. Per
    depth, `agreement` [D] is the share of counted slots where drafter and target prefer the same
    token, and `prenorm_rms` [D] is a mean over slots. `accepted` is the mean number of tokens a
    round, the target's own with them, that greedy decoding would give: those up to the first
    disagreement, plus one."""

    loss: Tensor
    agreement: Tensor
    accepted: Tensor
    prenorm_rms: Tensor


REMEMBERED_BYTES = 4 << 30
"""Size of the target's states that are kept for the next epoch."""


class TrainingTarget:
    """A target that teaches drafters: it runs over a batch, or remembers its states of it.

    `vocabulary` [V] holds the ids that the drafters know; None: all of the target's.
    """

    def __init__(
        self, target: Target, aux_layers: Sequence[int], vocabulary: Tensor | None
    ) -> None:
        self._target, self._aux_layers = target, aux_layers
        head = target.model.embed_tokens.weight
        self._head = head if vocabulary is None else head[vocabulary]
        self._remembered: dict[int, TargetOutput] = {}
        self._left = REMEMBERED_BYTES

    @torch.no_grad()
    def teach(self, batch: Batch, *, remember: bool = False) -> Teaching:
        """Return what a batch teaches. `remember`: it will come again."""
        ids = batch.ids.to(self._head.device)
        with autocast(ids.device):
            output = self._remembered.get(batch.group) if remember else None
            if output is None:
                output = self._target(ids, aux_layers=self._aux_layers)
                size = sum(tensor.nbytes for tensor in (*output.aux, output.hidden))
                if remember and size <= self._left:
                    self._remembered[batch.group] = output
                    self._left -= size
            logits = nn.functional.linear(output.hidden, self._head)
        return Teaching(
            embeddings=self._target.embed(ids),
            aux=output.aux,
            wanted=logits.softmax(-1, dtype=torch.float32).to(logits.dtype),
            counted=batch.counted,
        )


def draft_loss(
    drafter: ReferenceDrafter,
    aux_factors: Sequence[float],
    teaching: Teaching,
    *,
    depths: int,
    decay: float,
) -> DraftLoss:
    """Run the training-time test: from every slot at once, draft `depths` deep on the true tokens.

    The loss is the sum over depth of decay^(depth-1) times the cross-entropy against the target's
    distribution. Captured states are multiplied by `aux_factors` first.
    """
    device = teaching.embeddings.device
    slots = teaching.embeddings.shape[1] - 1 - depths
    total = torch.zeros((), device=device)
    agreement, prenorm_rms, agreed = list[Tensor](), list[Tensor](), list[Tensor]()
    wanted = teaching.wanted.flatten(0, 1)
    with autocast(device):
        scaled = [aux * by for aux, by in zip(teaching.aux, aux_factors, strict=True)]
        for depth, step in enumerate(
            _unrolled(drafter, scaled, teaching.embeddings, depths), start=1
        ):
            row, slot = torch.nonzero(teaching.counted[:, depth : depth + slots], as_tuple=True)
            at = (row * slots + slot).to(device)
            given = wanted[(row * teaching.counted.shape[1] + slot + depth).to(device)]
            logits = drafter.lm_head(step.postnorm.flatten(0, 1)[at]).float()
            entropy = nn.functional.cross_entropy(logits, given.float())
            total = total + decay ** (depth - 1) * entropy
            right = logits.argmax(-1) == given.argmax(-1)
            same = torch.zeros(len(teaching.counted) * slots, dtype=torch.bool, device=device)
            same[at] = right
            agreed.append(same if depth == 1 else agreed[-1] & same)
            agreement.append(right.float().mean())
            prenorm_rms.append(rms(step.prenorm.detach()).mean())
    return DraftLoss(
        loss=total,
        agreement=torch.stack(agreement),
        accepted=1 + _per_chain(agreed, teaching.counted, slots),
        prenorm_rms=torch.stack(prenorm_rms),
    )


def _per_chain(agreed: Sequence[Tensor], counted: Tensor, slots: int) -> Tensor:
    """Return the tokens that chains whose every depth counts would have had accepted, per chain."""
    depths = range(1, len(agreed) + 1)
    whole = torch.stack([counted[:, d : d + slots] for d in depths]).all(0).flatten()
    chains = torch.nonzero(whole).flatten().to(agreed[0].device)
    return torch.stack([same[chains] for same in agreed]).float().sum(0).mean()


def _unrolled(
    drafter: ReferenceDrafter, aux: Sequence[Tensor], embeddings: Tensor, depths: int
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


class Trainee:
    """A drafter, its optimizer, and the factors on its captured states.

    A target's layers differ in scale and grow with depth. EAGLE-3.1 norms them. EAGLE-3 has no such
    norm, so here each is divided by its RMS, a constant that `exported` folds into `fc`. Without
    that, EAGLE-3 would train worse and the comparison would be unfair.
    """

    def __init__(
        self,
        config: DrafterConfig,
        target: Target,
        aux_rms: Sequence[float],
        s: DrafterRecipe,
        vocabulary: Tensor | None,
    ) -> None:
        torch.manual_seed(s.seed)
        self._settings = s
        self.drafter = ReferenceDrafter(config)
        _initialize(self.drafter, target, vocabulary)
        self.drafter.to(device_of(target))
        self.aux_factors = [1.0 if config.fc_norm else 1.0 / rms for rms in aux_rms]
        self.optimizer = Optimizer(
            self.drafter,
            adamw=s.learning_rate,
            muon=s.muon_learning_rate,
            schedule=_schedule(s),
        )

    def figures(self, teaching: Teaching) -> DraftLoss:
        """Return loss and figures of a batch."""
        s = self._settings
        return draft_loss(self.drafter, self.aux_factors, teaching, depths=s.depths, decay=s.decay)

    def learn(self, teaching: Teaching, step: int) -> DraftLoss:
        """Take one step on a batch."""
        figures = self.figures(teaching)
        self.optimizer.step(figures.loss, step)
        return figures

    def exported(self) -> ReferenceDrafter:
        """Return a copy that takes the captured states unscaled."""
        copy = ReferenceDrafter(self.drafter.config)
        copy.load_state_dict(self.drafter.state_dict())  # on the CPU, from where it is saved
        factors = torch.tensor(self.aux_factors).repeat_interleave(copy.config.aux_size)
        copy.fc.weight.data.mul_(factors)
        return copy.eval()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingText:
    """Conversations to learn from, and others to check on."""

    training: Sequence[TokenizedConversation]
    held_out: Sequence[TokenizedConversation]


def train_drafters(
    target: Target,
    text: TrainingText,
    models: Mapping[str, DrafterConfig],
    s: DrafterRecipe,
    folder: Path,
    log: Progress,
    *,
    vocabulary: Tensor | None = None,
) -> dict[str, ReferenceDrafter]:
    """Train the drafters, save them under `folder` regularly, and return them.

    All capture the same layers, and know the target's ids in `vocabulary` [V]; None: all.
    The training goes on from the checkpoint in `folder`, if there is one: the same text and recipe
    then give the same weights as without an interruption.
    """
    target.requires_grad_(False)
    (aux_layers,) = {config.aux_layers for config in models.values()}
    first = next(batches(text.training, s.tokens_per_step, s.seed))
    aux_rms = _aux_rms(target, first, aux_layers)
    trainees = {n: Trainee(one, target, aux_rms, s, vocabulary) for n, one in models.items()}
    kept = Checkpoint(
        folder / "checkpoint.pt",
        {name: one.drafter for name, one in trainees.items()}
        | {f"{name} optimizer": one.optimizer for name, one in trainees.items()},
    )
    teacher = TrainingTarget(target, aux_layers, vocabulary)
    start = kept.restore(device_of(target))
    drawn = itertools.islice(batches(text.training, s.tokens_per_step, s.seed), start, None)
    for step, batch in zip(range(start, s.steps), drawn, strict=False):
        teaching = teacher.teach(batch, remember=True)
        last = step + 1 == s.steps
        for name, trainee in trainees.items():
            figures = trainee.learn(teaching, step)
            if step % s.log_every == 0 or last:
                _report(log, name, step, s.steps, figures)
        if (step + 1) % s.check_every == 0 or last:
            check(teacher, text.held_out, trainees, s, step, log)
            for name, trainee in trainees.items():
                save_drafter(trainee.exported(), folder / name)
        kept.save(step + 1, s.steps)
    return {name: trainee.exported() for name, trainee in trainees.items()}


CHECK_BATCHES = 6


@torch.no_grad()
def check(
    teacher: TrainingTarget,
    held_out: Sequence[TokenizedConversation],
    trainees: Mapping[str, Trainee],
    s: DrafterRecipe,
    step: int,
    log: Progress,
) -> None:
    """Report the figures of each drafter on the same batches of held-out text."""
    for number, batch in enumerate(batches(held_out, s.tokens_per_step, s.seed)):
        if number == CHECK_BATCHES:
            return
        teaching = teacher.teach(batch)
        for name, trainee in trainees.items():
            _report(log, f"{name} held out {number}", step, s.steps, trainee.figures(teaching))


def _report(log: Progress, stage: str, step: int, steps: int, figures: DraftLoss) -> None:
    log.step(
        stage,
        step,
        steps,
        loss=figures.loss.item(),
        accepted=figures.accepted.item(),
        agreement=figures.agreement.tolist(),
        prenorm_rms=figures.prenorm_rms.tolist(),
    )


INIT_STD = 0.02


def _initialize(drafter: ReferenceDrafter, target: Target, vocabulary: Tensor | None) -> None:
    """Initialise with Normal(0, 0.02); head and final norm start as the target's."""
    for parameter in drafter.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, 0.0, INIT_STD)
    head = target.model.embed_tokens.weight
    if vocabulary is not None:
        head = head[vocabulary]
        drafter.d2t.copy_(vocabulary - torch.arange(len(vocabulary)))
    drafter.lm_head.weight.data.copy_(head)
    drafter.get_parameter("norm.weight").data.copy_(target.model.norm.weight)


@torch.no_grad()
def _aux_rms(target: Target, batch: Batch, aux_layers: Sequence[int]) -> list[float]:
    """Return the RMS of each captured layer over the counted positions."""
    device = device_of(target)
    aux, counted = target(batch.ids.to(device), aux_layers=aux_layers).aux, batch.counted.to(device)
    return [layer[counted].float().square().mean().sqrt().item() for layer in aux]


def _schedule(s: DrafterRecipe) -> Callable[[int], float]:
    """Return a schedule: warm-up, a plateau, and a straight fall to nothing at the end."""
    held = s.hold_share * s.steps

    def factor(step: int) -> float:
        warm = min(1.0, (step + 1) / s.warmup_steps)
        return warm * min(1.0, (s.steps - step) / (s.steps - held))

    return factor
