"""Checkpoints made for tests: changed copies of shipped drafters, other kinds, LoRA adapters."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from driftscope.inspect.reference.config import FINAL_STATE, DrafterConfig, LatentConfig
from driftscope.inspect.reference.drafter import (
    ChainKeys,
    ReferenceDrafter,
    load_drafter,
    load_target,
    save_drafter,
)
from driftscope.inspect.reference.layers import Target
from driftscope.inspect.trial.target import Passage, Teacher
from driftscope_lab.trio import encode, load_prompts, trio_path

Config = dict[str, Any]
State = dict[str, Tensor]
TARGET = trio_path() / "target"
AUX = "eagle_aux_hidden_state_layer_ids"
FEWER = 512


def changed(
    folder: Path,
    of: str = "eagle31",
    *,
    config: Callable[[Config], object] | None = None,
    weights: Callable[[State], object] | None = None,
) -> Path:
    """Write a copy of a shipped model into `folder`, and change its config and weights in place."""
    source = trio_path() / of
    fields = json.loads((source / "config.json").read_text())
    state = load_file(source / "model.safetensors")
    if config:
        config(fields)
    if weights:
        weights(state)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields, indent=1))
    state = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


Edit = Callable[[Config], None]
Planting = Callable[[State], None]


def fields(**values: object) -> Edit:
    """Set fields of a config."""
    return lambda config: config.update(values)


def shifted_layers(by: int) -> Edit:
    """Shift every captured layer by this many layers, in both places that name it."""

    def change(config: Config) -> None:
        config[AUX] = config["eagle_config"][AUX] = [layer + by for layer in config[AUX]]

    return change


def exchanged(first: str, second: str) -> Planting:
    """Exchange two tensors."""

    def change(state: State) -> None:
        one, other = f"{first}.weight", f"{second}.weight"
        state[one], state[other] = state[other], state[one]

    return change


def without(prefix: str) -> Planting:
    """Leave out the tensors whose names begin with this."""

    def change(state: State) -> None:
        for name in [name for name in state if name.startswith(prefix)]:
            del state[name]

    return change


def reversed_states(state: State) -> None:
    """Put the columns of fc, by captured state, in the reverse order."""
    state["fc.weight"] = torch.cat(state["fc.weight"].chunk(3, -1)[::-1], -1)


NORMS = "midlayer.input_layernorm", "midlayer.hidden_norm"


def own_vocabulary(state: State) -> None:
    """Give a drafter a vocabulary of its own: each second token."""
    kept = torch.arange(0, 2 * FEWER, 2)
    state["lm_head.weight"] = state["lm_head.weight"][kept]
    state["d2t"] = kept - torch.arange(FEWER)
    state["t2d"] = torch.zeros(2 * FEWER, dtype=torch.bool).index_fill(0, kept, True)


def own_vocabulary_config(fields: Config) -> None:
    """Name the vocabulary of `own_vocabulary`."""
    fields["draft_vocab_size"] = FEWER


def as_speculators(fields: Config) -> None:
    """Turn a config into the format of the speculators library."""
    layer = {key: fields.pop(key) for key in list(fields) if key not in _SPECULATORS_KEYS}
    layer["model_type"] = "llama"
    fields.update(
        architectures=["Eagle3Speculator"],
        speculators_model_type="eagle3",
        transformer_layer_config=layer,
        norm_before_residual=False,
    )
    fields.pop("eagle_config", None)


_SPECULATORS_KEYS = (AUX, "draft_vocab_size", "fc_norm", "norm_output", "norm_before_fc")


def speculators_names(state: State) -> None:
    """Rename the first layer as the speculators library does."""
    for name in [name for name in state if name.startswith("midlayer.")]:
        state[name.replace("midlayer.", "layers.0.")] = state.pop(name)


def planted(source: Path, folder: Path, plant: Callable[[State], None]) -> Path:
    """Return a copy of a checkpoint in `folder` with changed weights."""
    path = shutil.copytree(source, folder / "planted")
    state = load_file(path / "model.safetensors")
    plant(state)
    save_file(
        {name: tensor.contiguous() for name, tensor in state.items()}, path / "model.safetensors"
    )
    return path


PROMPTS = 8
STEPS, LEARNING_RATE = 160, 2e-3
PENALTY = 1e-2
"""Weight of the squared parameters, against that of a mean square of the data of 1."""


def prompt_texts() -> list[str]:
    """Return the prompts for whose answers the drafter is made."""
    return [prompt.in_distribution for prompt in load_prompts()[:PROMPTS]]


def eagle1_config(target: Target) -> DrafterConfig:
    """Return the config of a drafter of one layer."""
    layer = replace(target.config, num_hidden_layers=1)
    return DrafterConfig(
        layer=layer, aux_layers=(FINAL_STATE,), names_aux_layers=False, eagle1=True
    )


def eagle1_drafter(folder: Path) -> Path:
    """Write an EAGLE-1 drafter for the shipped target into `folder`, as the EAGLE repository does:
    without a head.

    `fc` is fitted by least squares: from the embedding of the next token and the target's final
    state to the final state after it. All weights are then trained shortly, at the first depth
    only.
    """
    torch.manual_seed(0)
    path = trio_path() / "target"
    target, teacher = load_target(path), Teacher(path)
    prompts = {str(at): encode(text) for at, text in enumerate(prompt_texts())}
    passages = [*teacher.passages(prompts, {FINAL_STATE})]
    drafter = ReferenceDrafter(eagle1_config(target))
    with torch.no_grad():
        drafter.fc.weight.copy_(_fitted(target, passages))
        drafter.lm_head.weight.copy_(teacher.head)
    fit(drafter, target, passages)
    save_drafter(drafter, folder, torch.float32)
    return folder


def _inputs(target: Target, passage: Passage, layer: int = FINAL_STATE) -> tuple[Tensor, Tensor]:
    """Return the embeddings of the next tokens and the states, [1, slots, H] each."""
    with torch.no_grad():
        return target.embed(passage.ids[None, 1:].clone()), passage.states[layer].clone()


@torch.no_grad()
def _fitted(target: Target, passages: Sequence[Passage]) -> Tensor:
    """Return the weight of `fc`, [H, 2H], of a drafter that has no layer."""
    inputs, outputs = list[Tensor](), list[Tensor]()
    for passage in passages:
        embedded, states = _inputs(target, passage)
        inputs.append(torch.cat([embedded, states], -1)[0, :-1])
        outputs.append(states[0, 1:])
    x, y = torch.cat(inputs).double(), torch.cat(outputs).double()
    size = PENALTY * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    return torch.linalg.solve(x.T @ x + size, x.T @ y).T.float()


def fit(drafter: ReferenceDrafter, target: Target, passages: Sequence[Passage]) -> None:
    """Train the first depth, but for the output head, on the tokens that follow."""
    drafter.lm_head.requires_grad_(requires_grad=False)
    learned = [parameter for parameter in drafter.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=LEARNING_RATE)
    for at in range(STEPS):
        passage = passages[at % len(passages)]
        embedded, states = _inputs(target, passage, drafter.config.aux_layers[0])
        anchors = torch.arange(states.shape[1] - 1)
        step = drafter.step(
            embedding=embedded[:, anchors],
            hidden=states[:, anchors],
            depth=1,
            anchors=anchors,
            context=drafter.context(embedded, states),
            chain_keys=ChainKeys(),
        )
        loss = functional.cross_entropy(
            drafter.lm_head(step.postnorm)[0], passage.ids[anchors + 2].clone()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


WIDE, HEADS, HEAD, TURNED = 512, 8, 32, 32
SIZES = LatentConfig(
    q_lora_rank=WIDE,
    kv_lora_rank=WIDE,
    qk_nope_head_dim=HEAD,
    qk_rope_head_dim=TURNED,
    v_head_dim=HEAD,
)


def latent_config(base: DrafterConfig) -> DrafterConfig:
    """Return the config with latent attention."""
    layer = replace(base.layer, head_dim=SIZES.qk_rope_head_dim)
    return replace(base, layer=layer, latent=SIZES)


@torch.no_grad()
def latent_drafter(folder: Path) -> Path:
    """Write the shipped drafter with its attention rewritten as latent attention.

    Ranks as wide as the input make both down-projections the identity, and heads that share keys
    get copies. Positions are lost but for a small random part, so that it accepts less than the
    original.
    """
    torch.manual_seed(0)
    base = load_drafter(trio_path() / "eagle31")
    drafter = ReferenceDrafter(latent_config(base.config))
    kept = {name: tensor for name, tensor in base.state_dict().items() if ".self_attn." not in name}
    drafter.load_state_dict(kept, strict=False)
    _write_attention(drafter.midlayer.self_attn, base.midlayer.self_attn)
    save_drafter(drafter, folder)
    return folder


def _write_attention(new: torch.nn.Module, old: torch.nn.Module) -> None:
    queries, keys, values = (
        projection.weight.view(-1, HEAD, WIDE)
        for projection in (old.q_proj, old.k_proj, old.v_proj)
    )
    shared = [heads.repeat_interleave(HEADS // len(heads), 0) for heads in (keys, values)]
    new.q_b_proj.weight.view(HEADS, HEAD + TURNED, WIDE)[:, :HEAD] = queries
    # Products are divided by the root of a head's size, which is larger than before.
    new.q_b_proj.weight *= ((HEAD + TURNED) / HEAD) ** 0.5
    new.kv_b_proj.weight.copy_(torch.cat(shared, 1).flatten(0, 1))
    new.q_a_proj.weight.copy_(torch.eye(WIDE))
    new.kv_a_proj_with_mqa.weight[:WIDE] = torch.eye(WIDE)
    new.o_proj.weight.copy_(old.o_proj.weight)


def mtp_config(target: Target, *, normed: bool) -> DrafterConfig:
    """Return the config of a head of one layer that reads the target's state after the final norm,
    as in SGLang, if `normed`, or before it, as in vLLM."""
    return replace(
        eagle1_config(target),
        aux_layers=(FINAL_STATE if normed else target.config.num_hidden_layers,),
        eagle1=False,
        mtp=True,
        norm_output=True,
        attention_bias=True,
    )


def mtp_checkpoint(folder: Path, *, normed: bool, trained: bool = True) -> Path:
    """Write the shipped target with a head into `folder`, as a checkpoint of MiMo; see
    `mtp_config`.

    MiMo's layers are Llama's with biases on queries, keys and values. Those of the target are zero
    here, so that the shipped target is a MiMo target as it is, and its float64 reference holds.
    """
    torch.manual_seed(0)
    path = trio_path() / "target"
    target, teacher = load_target(path), Teacher(path)
    head = ReferenceDrafter(mtp_config(target, normed=normed))
    _start(head, target)
    if trained:
        prompts = {str(at): encode(text) for at, text in enumerate(prompt_texts())}
        fit(head, target, [*teacher.passages(prompts, set(head.config.aux_layers))])
    weights = load_file(path / "model.safetensors")
    weights = {name: weight.float() for name, weight in weights.items()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    own = {f"model.mtp_layers.0.{mimo_name(n)}": x for n, x in _own(head).items()}
    biases = {
        name.replace("weight", "bias"): torch.zeros(len(weight))
        for name, weight in weights.items()
        if name.split(".")[-2] in ("q_proj", "k_proj", "v_proj")
    }
    weights |= biases | own
    folder.mkdir(parents=True)
    save_file({n: x.contiguous() for n, x in weights.items()}, folder / "model.safetensors")
    fields = json.loads((path / "config.json").read_text()) | {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "attention_bias": True,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


@functools.cache
def load_mtp(
    folder: Path, dtype: torch.dtype = torch.float64, *, normed: bool
) -> tuple[Target, ReferenceDrafter]:
    """Return the shipped target and the head of a checkpoint that `mtp_checkpoint` has written."""
    target = load_target(trio_path() / "target", dtype)
    head = ReferenceDrafter(mtp_config(target, normed=normed))
    stored = load_file(folder / "model.safetensors")
    own = {name: stored[f"model.mtp_layers.0.{mimo_name(name)}"] for name in _own(head)}
    head.load_state_dict({**own, "lm_head.weight": stored["lm_head.weight"]})
    return target, head.to(dtype).eval()


def _start(head: ReferenceDrafter, target: Target) -> None:
    """Give the head the target's final norm and output."""
    with torch.no_grad():
        head.norm.weight.copy_(target.model.norm.weight)  # type: ignore[union-attr,arg-type]
        head.lm_head.weight.copy_(target.model.embed_tokens.weight)


def _own(head: ReferenceDrafter) -> dict[str, Tensor]:
    """Return the tensors that are not the target's."""
    return {
        name: tensor.detach()
        for name, tensor in head.state_dict().items()
        if not name.startswith("lm_head.")
    }


def mimo_name(name: str) -> str:
    """Return the name in a checkpoint of MiMo of a tensor of the reference drafter."""
    for ours, theirs in (("fc.", "input_proj."), ("midlayer.", ""), ("norm.", "final_layernorm.")):
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


RANK = 4
MODULES = ("q_proj", "v_proj")
SIZE = 0.1
"""Standard deviation of the weights: large enough for other answers."""


def write_adapter(folder: Path, model: Path) -> Path:
    """Write an adapter of the attention of `model` into `folder`."""
    random = torch.Generator().manual_seed(0)
    state = {}
    for name, weight in load_file(model / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.endswith(MODULES):
            rows, columns = weight.shape
            for part, shape in (("lora_A", (RANK, columns)), ("lora_B", (rows, RANK))):
                state[f"base_model.model.{module}.{part}.weight"] = SIZE * torch.randn(
                    shape, generator=random
                )
    folder.mkdir(parents=True)
    save_file(state, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": MODULES,
        "bias": "none",
        "base_model_name_or_path": str(model),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
