"""A drafter as the trial runs it, its drafts from positions of the target's answers, and sums along
the chains. A repair changes one thing of its config or weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from driftscope.boundary.files import first_line
from driftscope.boundary.text import dumps
from driftscope.errors import CheckpointError
from driftscope.inspect.checkpoints import DrafterFiles, find_heads
from driftscope.inspect.checks.layer_fields import NEUTRAL
from driftscope.inspect.checks.tensors import D2T, EMBEDDING, FC_BIAS, HEAD
from driftscope.inspect.drafter_classes import MIMO, Family
from driftscope.inspect.files import StoredTensor
from driftscope.inspect.reference.config import (
    DEFAULT_N_SINK,
    DrafterConfig,
    reference_name_of_mimo,
)
from driftscope.inspect.reference.drafter import (
    ChainChange,
    ChainStep,
    Context,
    ReferenceDrafter,
    StepOutput,
    chain_steps,
    class_masses,
    distance_masses,
    reference_name,
    rms,
)
from driftscope.inspect.reference.layers import Embeds, Rotary
from driftscope.inspect.trial.inside import InsideSums
from driftscope.inspect.trial.result import DrafterChange, Overflow
from driftscope.inspect.trial.target import Passage

POSITIONS = 2048
"""Positions that a trial can use: more than the longest prompt, its answer and a chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Config and weights of a drafter. Names of `state` are those of the reference drafter."""

    config: DrafterConfig
    state: Mapping[str, Tensor]
    scaling: Mapping[str, Any] | None = None
    """Fields from which transformers computes scaled rotary positions; None for plain ones."""

    def with_config(self, **changes: Any) -> Variant:
        """Return a variant whose config differs in these fields."""
        return replace(self, config=replace(self.config, **changes))

    def with_shared_head(self, head: Tensor) -> Variant:
        """Return a variant that has the target's head, [vocabulary, H], unless it has its own. A
        drafter with another vocabulary cannot share it."""
        if HEAD in self.state or self.config.draft_vocab_size:
            return self
        return replace(self, state={**self.state, HEAD: head})

    def check(self) -> None:
        """Raise CheckpointError if weights and config do not fit. No number is computed."""
        size = self.config.layer.vocab_size, self.config.layer.hidden_size
        self.with_shared_head(torch.empty(size, device="meta")).build("meta")

    def build(self, device: str) -> ReferenceDrafter:
        """Return the reference drafter. Raises CheckpointError if weights and config do not fit."""
        drafter = _without_weights(self.config)
        drafter.rotary = self._rotary()
        needed = drafter.state_dict().keys()
        state = {name: self.state[name].to(device) for name in needed if name in self.state}
        try:
            drafter.load_state_dict(state, assign=True)
        except RuntimeError as error:
            lines = " ".join(str(error).split())
            raise CheckpointError(f"the drafter cannot be run: {lines}") from error
        return drafter.requires_grad_(requires_grad=False).eval()

    def _rotary(self) -> Rotary:
        # The table of a drafter for long contexts would take more memory than its weights.
        layer = replace(self.config.layer, max_position_embeddings=POSITIONS)
        if self.scaling is None:
            return Rotary(layer)
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        try:
            rotary = LlamaRotaryEmbedding(LlamaConfig(**self.scaling))
        except Exception as error:  # transformers refuses a scaling in any way
            words = first_line(error)
            raise CheckpointError(f"transformers cannot scale its positions ({words})") from error
        return Rotary(layer, rotary.inv_freq, float(rotary.attention_scaling))


def as_served(files: DrafterFiles, target_layers: int) -> Variant:
    """Return the drafter as an engine would run it.

    Raises CheckpointError for one that the reference drafter cannot run.
    """
    unfit = _unfit(files)
    if unfit is not None:
        raise CheckpointError(f"{files.folder}: is not run: {unfit}")
    for name in ("num_key_value_heads", "head_dim"):
        files.size(name, 1)
    try:
        config = _config(files, target_layers)
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{files.folder / 'config.json'}: is not run: {error}") from error
    if config.latent:  # vLLM's model of latent attention does not read the flag
        config = replace(config, norm_before_fc=False)
    # vLLM sorts the captured layers and drops repeated ones.
    config = replace(config, aux_layers=tuple(sorted(set(config.aux_layers))))
    if EMBEDDING in files.tensors:
        config = replace(config, target_hidden_size=files.target_hidden_size)
    state = {name: _tensor(tensor) for name, tensor in _stored(files).items()}
    if D2T in state:
        state[D2T] = state[D2T].long()  # as vLLM does
    if config.eagle1:  # engines give it the target's head
        config = replace(config, fc_bias=FC_BIAS in state)
        state.pop(HEAD, None)
    # Add what an engine makes up for weights that are missing: norms of ones, a table of
    # zeros.
    variant = Variant(config=config, state=state, scaling=_scaling(files, config))
    needed = _without_weights(variant.config).state_dict()
    defaults = {
        name: torch.ones(tensor.shape) if "norm" in name else torch.zeros(tensor.shape).long()
        for name, tensor in needed.items()
        if name not in variant.state and ("norm" in name or name == D2T)
    }
    return replace(variant, state={**variant.state, **defaults})


def _config(files: DrafterFiles, target_layers: int) -> DrafterConfig:
    fields = dict(files.fields)
    if files.format.family is Family.EAGLE1:
        return DrafterConfig.eagle1_from_hf(fields)
    if files.format.family is Family.MTP:
        biased = any(name.endswith("q_proj.bias") for name in files.tensors)
        return DrafterConfig.mtp_from_hf(fields, attention_bias=biased)
    return DrafterConfig.from_hf(fields, target_layers)


def _stored(files: DrafterFiles) -> dict[str, StoredTensor]:
    """Return the tensors by their names in the reference drafter."""
    if files.format.family is not Family.MTP:
        return {reference_name(name): tensor for name, tensor in files.tensors.items()}
    heads = find_heads(files.raw, files.tensors)
    if heads is None:
        return {}
    head = heads.of(min(heads.heads))
    return {reference_name_of_mimo(rest): files.tensors[name] for rest, name in head.items()}


def _unfit(files: DrafterFiles) -> str | None:
    fields = files.fields
    row = files.format.row
    if row is None or row.family in (Family.BLOCKS, Family.HEADS) or row.parallel:
        return f"no reference implementation of {files.format.name}"
    if files.format.family is Family.MTP:
        heads = find_heads(files.raw, files.tensors)
        if heads is None or not heads.heads:
            return "it has no MTP heads"
        if files.format.architecture != MIMO:
            return f"no reference implementation of the MTP heads of {files.format.architecture}"
        if len(heads.heads) > 1:
            return f"it has {len(heads.heads)} MTP heads, and the reference implementation runs one"
        return "its weights are quantised" if files.quantized else None
    if files.format.family is Family.MLA and (reason := _unfit_latent(fields)):
        return reason
    if files.quantized:
        return "its weights are quantised"
    if row.family is not Family.EAGLE1 and not files.reads_captured:
        return "no reference implementation of EAGLE-3 without captured layers"
    if FC_BIAS in files.tensors and not files.for_sglang:
        return "fc has a bias, which vLLM has no place for"
    if files.format.family is Family.MLA and fields.get("attention_bias"):
        return "the reference implementation of latent attention has no biases"
    act = fields.get("hidden_act")
    if act is not None and act not in NEUTRAL["hidden_act"].values:
        return f"vLLM refuses its activation ({act})"
    return None


def _unfit_latent(fields: Mapping[str, Any]) -> str | None:
    if not fields.get("q_lora_rank"):
        return "its queries have no rank (q_lora_rank), without which vLLM cannot load it"
    if _rope_kind(fields) not in ("default", "yarn"):
        return f"no reference implementation of rotary positions of type {_rope_kind(fields)}"
    return None


def _without_weights(config: DrafterConfig) -> ReferenceDrafter:
    """Return the drafter on no device. Raises CheckpointError for sizes that no layer can have."""
    try:
        with torch.device("meta"):
            return ReferenceDrafter(config)
    except (TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        raise CheckpointError(
            "the drafter cannot be run: its config has a size that no layer can have "
            f"({first_line(error)})"
        ) from error


def _tensor(stored: StoredTensor) -> Tensor:
    values = torch.from_numpy(stored.array().copy())
    return values.float() if values.is_floating_point() else values


def _rope_kind(fields: Mapping[str, Any]) -> str:
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    return str(rope.get("rope_type", rope.get("type", "default")))


def _scaling(files: DrafterFiles, config: DrafterConfig) -> dict[str, Any] | None:
    # A text's three coordinates of mrope are one position.
    if _rope_kind(files.fields) in ("default", "mrope"):
        return None
    names = ("rope_parameters", "rope_scaling", "rope_theta", "max_position_embeddings")
    found = {name: files.fields[name] for name in names if files.fields.get(name)}
    size = config.layer.head_dim
    return {**found, "num_attention_heads": 1, "hidden_size": size, "head_dim": size}


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(DrafterChange):
    """A change of a drafter that may fix it, with the drafter after it, ready to run."""

    variant: Variant

    def plain(self) -> DrafterChange:
        """Return the change without the drafter, as results keep it."""
        return DrafterChange(
            **{field.name: getattr(self, field.name) for field in fields(DrafterChange)}
        )


def repaired(
    base: Variant,
    name: str,
    mistake: str,
    *,
    change: str = "",
    fields: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
) -> Repair:
    """Return the repair `name`, which gives `fields` of config.json these values, and those of
    `config`, by default the same, to the drafter; and replaces tensors. By default `change` names
    the fields."""
    written = fields or {}
    return Repair(
        id=name,
        change=change or ", ".join(f'"{field}": {dumps(to)}' for field, to in written.items()),
        mistake=mistake,
        variant=replace(
            base,
            config=replace(base.config, **(written if config is None else config)),
            state={**base.state, **(tensors or {})},
        ),
        fields=written,
        weights=tensors is not None,
    )


FIGURES = (
    "prenorm_rms",
    "fed_rms",
    "top1",
    "sink_mass",
    "prompt_mass",
    "generated_mass",
    "self_mass",
)
"""Figures by depth that are measured on the drafter as it is, in the order of `Drafted.figures`."""


class ChainSums:
    """Sums over the chains of one prompt, a depth at a time."""

    def __init__(self, anchors: Tensor, k: int) -> None:
        """`anchors` [A] are the positions from which K tokens are drafted."""
        self._anchors, self._k = anchors, k
        self._accepted = torch.ones(len(anchors), device=anchors.device)
        self._bins = list[Tensor]()
        names = ("sink", "own", "fed", "reached", "sure", "right")
        self._columns: dict[str, list[float]] = {name: [] for name in names}

    def add(self, step: StepOutput, figures: Mapping[str, Tensor], matches: Tensor) -> None:
        """Add the next depth: its `figures` [A] by name, and which tokens are the target's, [A]."""
        depth = len(self._bins) + 1
        away = [
            distance_masses(one[0], self._anchors, depth, DEFAULT_N_SINK, self._k)
            for one in step.attention
        ]
        self._bins.append(torch.stack(away).mean(0).sum(0))
        for name, value in (
            ("sink", figures["sink_mass"]),
            ("own", figures["self_mass"]),
            ("fed", figures["fed_rms"]),
            ("reached", self._accepted),
            ("sure", figures["top1"] * self._accepted),
            ("right", matches * self._accepted),
        ):
            self._columns[name].append(float(value.sum()))
        self._accepted = self._accepted * matches

    def sums(self) -> InsideSums:
        """Return the sums over all depths."""
        visible = (self._anchors + 1).clamp(max=DEFAULT_N_SINK) / (self._anchors + 1)
        return InsideSums(
            chains=len(self._anchors),
            bins=torch.stack(self._bins).double().cpu().numpy(),
            even=float(visible.sum()),
            **self._columns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """Drafts of one passage from A positions."""

    accepted: Tensor
    """Leading drafted tokens that are the target's, [A]."""
    probability: Tensor
    """Sum over the depths that a draft reaches of the probability that the drafter gives to the
    target's token there, [A]. It follows from the same chains as `accepted` and varies less: a
    draft that is nearly right counts nearly 1."""
    first: Tensor
    """Log-probability that the drafter gives to the target's token at depth 1, [A]: what training
    maximises. It tells apart drafters that accept the same."""
    figures: Tensor | None
    """Mean over the positions, [K, figures]; None if not measured."""
    inside: InsideSums | None = None
    """Sums over the positions; None if not measured."""

    def rounds(self) -> list[int]:
        """Return the accepted tokens of each round that an engine would make: the first starts at
        the end of the prompt, and each other one after what the one before produced."""
        accepted, at, lengths = self.accepted.tolist(), 0, list[int]()
        while at < len(accepted):
            lengths.append(accepted[at])
            at += accepted[at] + 1
        return lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A passage as the drafter knows it before any chain."""

    drafter: ReferenceDrafter
    target: Embeds
    passage: Passage
    fused: Tensor
    """State of `fc` at each slot, [1, S - 1, H]."""
    context: Context

    @classmethod
    @torch.inference_mode()
    def run_over(cls, drafter: ReferenceDrafter, target: Embeds, passage: Passage) -> Prefix:
        """Run the drafter over the whole passage."""
        fused = drafter.fuse([passage.states[layer] for layer in drafter.config.aux_layers])
        context = drafter.context(drafter.embed(passage.ids[None, 1:], target), fused)
        return cls(drafter=drafter, target=target, passage=passage, fused=fused, context=context)

    def steps(
        self, anchors: Tensor, k: int, change: ChainChange | None = None
    ) -> Iterator[tuple[ChainStep, Tensor]]:
        """Draft K tokens greedily from the slots `anchors` [A], given the true tokens before each;
        yield each depth with the target's tokens there, [A]."""
        ids = self.passage.ids
        for step in chain_steps(
            self.target,
            self.drafter,
            hidden=self.fused[:, anchors],
            token_ids=ids[anchors + 1],
            anchors=anchors,
            context=self.context,
            k=k,
            change=change,
        ):
            yield step, ids[anchors + 1 + step.depth]

    def figures(self, step: ChainStep) -> dict[str, Tensor]:
        """Return FIGURES of one depth at each position, [A], by name."""
        slots, prompt = self.context.slots, self.passage.prompt_tokens
        output = step.output
        masses = [class_masses(one[0], slots, prompt, DEFAULT_N_SINK) for one in output.attention]
        columns: Sequence[Tensor] = (
            rms(output.prenorm[0]),
            rms(output.fed[0]),
            step.logits.float().softmax(-1).amax(-1),
            *torch.stack(masses).mean(0).unbind(-1),
        )
        return dict(zip(FIGURES, columns, strict=True))


_LEAST_PROBABILITY = 1e-9
"""Probability that counts for tokens that cannot be drafted."""


class Watch:
    """Finds the first number of a drafter that a type cannot hold, while it runs."""

    def __init__(self, drafter: ReferenceDrafter, dtype: torch.dtype) -> None:
        """`dtype` is the type in which an engine serves it."""
        self.dtype, self.depth = dtype, 0
        self.found: Overflow | None = None
        self._largest = torch.finfo(dtype).max
        named = [(name, module) for name, module in drafter.named_modules() if name]
        self._hooks = [
            module.register_forward_hook(partial(self._look, name))
            for name, module in named
            if any(True for _ in module.parameters(recurse=False))
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _look(self, name: str, _module: Any, inputs: Any, output: Tensor) -> None:
        if self.found is None and not float(output.abs().amax()) <= self._largest:
            entered = float(inputs[0].abs().amax()) <= self._largest
            tensor = f"{name}.weight" if entered else f"what {name} reads"
            dtype = str(self.dtype).removeprefix("torch.")
            self.found = Overflow(depth=self.depth, tensor=tensor, dtype=dtype)


@torch.inference_mode()
def draft(
    drafter: ReferenceDrafter,
    target: Embeds,
    passage: Passage,
    k: int,
    *,
    measured: bool = False,
    watch: Watch | None = None,
) -> Drafted:
    """Draft K tokens greedily from each position of the answer, given the true tokens before it."""
    if watch is not None:
        watch.depth = 0
    anchors, prefix = passage.anchors(k), Prefix.run_over(drafter, target, passage)
    if watch is not None:
        watch.depth = 1
    matches, probabilities, figures = list[Tensor](), list[Tensor](), list[Tensor]()
    inside = ChainSums(anchors, k)
    for step, right in prefix.steps(anchors, k):
        if watch is not None:
            watch.depth = step.depth + 1
        matches.append(step.token_ids == right)
        probabilities.append(_probability(drafter, step.logits, right))
        if measured:
            columns = prefix.figures(step)
            figures.append(torch.stack([column.mean() for column in columns.values()]))
            inside.add(step.output, columns, matches[-1])
    accepted = torch.stack(matches, 1).int().cumprod(1)
    reached = torch.cat([torch.ones_like(accepted[:, :1]), accepted[:, :-1]], 1)
    return Drafted(
        accepted=accepted.sum(1),
        probability=(reached * torch.stack(probabilities, 1)).sum(1),
        first=probabilities[0].clamp(min=_LEAST_PROBABILITY).log(),
        figures=torch.stack(figures) if measured else None,
        inside=inside.sums() if measured else None,
    )


def _probability(drafter: ReferenceDrafter, logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the probability of the target's tokens [A], 0 for those that cannot be drafted."""
    probabilities = logits.float().softmax(-1)
    drafted = drafter.target_ids(torch.arange(logits.shape[-1], device=logits.device))
    return (probabilities * (drafted == tokens[:, None])).sum(-1)
