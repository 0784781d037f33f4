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
from driftscope.inspect.reference.drafter import ChainKeys, ReferenceDrafter
from driftscope.inspect.reference.layers import Target
from driftscope.inspect.trial.target import Passage, Teacher
from driftscope_lab.training.checkpoints import load_drafter, load_target, save_drafter
from driftscope_lab.trio import encode, load_prompts, trio_path

Config = dict[str, Any]
State = dict[str, Tensor]
TARGET = trio_path() / "target"
AUX = "eagle_aux_hidden_state_layer_ids"
FEWER = 512


def save_model(folder: Path, config: Config, state: State) -> Path:
    """Write `config.json` and, if there are weights, `model.safetensors` into `folder`, and return
    it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tensors = {name: tensor.contiguous() for name, tensor in state.items()}
    if tensors:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def changed(
    folder: Path,
    of: str | Path = "eagle31",
    *,
    config: Callable[[Config], object] | None = None,
    weights: Callable[[State], object] | None = None,
) -> Path:
    """Write a copy of a shipped model, or of another checkpoint, into `folder`, and change its
    config and weights in place."""
    source = trio_path() / of
    fields = json.loads((source / "config.json").read_text())
    state = load_file(source / "model.safetensors")
    if config:
        config(fields)
    if weights:
        weights(state)
    if source != folder:
        ignored = shutil.ignore_patterns("*.md", "model.safetensors")
        shutil.copytree(source, folder, dirs_exist_ok=True, ignore=ignored)
    return save_model(folder, fields, state)


def sharded(path: Path) -> Path:
    """Write the weights of a checkpoint as two shards with an index, and return it."""
    whole = path / "model.safetensors"
    state, places = load_file(whole), dict[str, str]()
    whole.unlink()
    for at in (0, 1):
        part = {name: state[name] for name in sorted(state)[at::2]}
        save_file(part, path / f"model-{at}.safetensors", metadata={"format": "pt"})
        places |= dict.fromkeys(part, f"model-{at}.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return path


Edit = Callable[[Config], None]
Planting = Callable[[State], None]
ATTENTION, MLP = "midlayer.self_attn", "midlayer.mlp"
Q, K, V, OUT = (f"{ATTENTION}.{part}_proj" for part in "qkvo")
GATE, UP, DOWN = (f"{MLP}.{part}_proj" for part in ("gate", "up", "down"))
NORMS = "midlayer.input_layernorm", "midlayer.hidden_norm"


def stored(name: str) -> State:
    """Return the weights of a shipped model."""
    return load_file(trio_path() / name / "model.safetensors")


def fields(**values: object) -> Edit:
    """Set fields of a config."""
    return lambda config: config.update(values)


def captured(*layers: int) -> Edit:
    """Name these captured layers, in both places that name them; without any, in none."""

    def change(config: Config) -> None:
        for place in (config, config["eagle_config"]):
            place.pop(AUX, None)
            place |= {AUX: list(layers)} if layers else {}

    return change


def added(name: str, tensor: Tensor) -> Planting:
    """Add or replace a tensor."""
    return lambda state: state.update({name: tensor})


def each(change: Callable[[Tensor], Tensor], *names: str) -> Planting:
    """Change the weights of these modules."""

    def changed(state: State) -> None:
        for name in (f"{name}.weight" for name in names):
            state[name] = change(state[name]).to(state[name].dtype)

    return changed


def of_dims(dims: int, change: Callable[[Tensor], Tensor]) -> Planting:
    """Change all norms (1) or matrices (2), in float32."""

    def changed(state: State) -> None:
        for name, tensor in state.items():
            if tensor.dim() == dims and tensor.is_floating_point():
                state[name] = change(tensor.float()).to(tensor.dtype)

    return changed


def heads(order: Sequence[int]) -> Callable[[Tensor], Tensor]:
    """Put the heads of a projection's rows in another order."""
    return lambda tensor: tensor.unflatten(0, (len(order), -1))[list(order)].flatten(0, 1)


def interleaved(tensor: Tensor) -> Tensor:
    """Lay the heads of a projection's rows, or of its bias, out for interleaved positions."""
    split = tensor.unflatten(0, (-1, 2, HEAD // 2))
    return split.transpose(1, 2).flatten(0, 2)


def transposed(tensor: Tensor) -> Tensor:
    """Return the transposed matrix."""
    return tensor.T.contiguous()


def halves(tensor: Tensor, parts: int = 2) -> Tensor:
    """Put the parts of a matrix's input in the reverse order."""
    return torch.cat(tensor.chunk(parts, -1)[::-1], -1)


def exchanged(first: str, second: str) -> Planting:
    """Exchange the weights of two modules."""

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


def vocabulary_of(ids: Tensor) -> Planting:
    """Give a drafter a vocabulary of its own: these ids of the target's."""

    def change(state: State) -> None:
        state["lm_head.weight"] = state["lm_head.weight"][ids]
        state["d2t"] = ids - torch.arange(len(ids))
        state["t2d"] = torch.zeros(2 * FEWER, dtype=torch.bool).index_fill(0, ids, True)

    return change


own_vocabulary = vocabulary_of(torch.arange(0, 2 * FEWER, 2))
own_vocabulary_config = fields(draft_vocab_size=FEWER)


def as_speculators(fields: Config) -> None:
    """Turn a config into the format of the speculators library."""
    kept = (AUX, "draft_vocab_size", "fc_norm", "norm_output", "norm_before_fc")
    layer = {key: fields.pop(key) for key in list(fields) if key not in kept}
    layer.pop("eagle_config")
    fields.update(
        architectures=["Eagle3Speculator"],
        speculators_model_type="eagle3",
        transformer_layer_config={**layer, "model_type": "llama"},
        norm_before_residual=False,
    )


def speculators_names(state: State) -> None:
    """Rename the first layer as the speculators library does."""
    for name in [name for name in state if name.startswith("midlayer.")]:
        state[name.replace("midlayer.", "layers.0.")] = state.pop(name)


PROMPTS = 8
STEPS, LEARNING_RATE = 160, 2e-3
PENALTY = 1e-2
"""Weight of the squared parameters, against that of a mean square of the data of 1."""


def prompt_ids() -> dict[str, list[int]]:
    """Return the prompts for whose answers a drafter is made."""
    prompts = load_prompts()[:PROMPTS]
    return {str(at): encode(prompt.in_distribution) for at, prompt in enumerate(prompts)}


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
    target, teacher = load_target(TARGET), Teacher(TARGET)
    passages = [*teacher.passages(prompt_ids(), {FINAL_STATE})]
    drafter = ReferenceDrafter(eagle1_config(target))
    with torch.no_grad():
        drafter.fc.weight.copy_(_fitted(target, passages))
        drafter.lm_head.weight.copy_(teacher.head)
    _fit(drafter, target, passages)
    save_drafter(drafter, folder, torch.float32)
    return folder


def _inputs(target: Target, passage: Passage, layer: int = FINAL_STATE) -> tuple[Tensor, Tensor]:
    """Return the embeddings of the next tokens and the states, [1, slots, H] each."""
    with torch.no_grad():
        return target.embed(passage.ids[None, 1:].clone()), passage.states[layer].clone()


@torch.no_grad()
def _fitted(target: Target, passages: Sequence[Passage]) -> Tensor:
    """Return the weight of `fc`, [H, 2H], of a drafter that has no layer."""
    pairs = [torch.cat(_inputs(target, passage), -1)[0] for passage in passages]
    x = torch.cat([pair[:-1] for pair in pairs]).double()
    y = torch.cat([pair[1:].chunk(2, -1)[1] for pair in pairs]).double()
    size = PENALTY * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    return torch.linalg.solve(x.T @ x + size, x.T @ y).T.float()


def _fit(drafter: ReferenceDrafter, target: Target, passages: Sequence[Passage]) -> None:
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
        logits, following = drafter.lm_head(step.postnorm)[0], passage.ids[anchors + 2].clone()
        optimizer.zero_grad()
        functional.cross_entropy(logits, following).backward()
        optimizer.step()


WIDE, HEADS, HEAD, TURNED = 512, 8, 32, 32
SIZES = LatentConfig(
    q_lora_rank=WIDE,
    kv_lora_rank=WIDE,
    qk_nope_head_dim=HEAD,
    qk_rope_head_dim=TURNED,
    v_head_dim=HEAD,
)


@torch.no_grad()
def latent_drafter(folder: Path) -> Path:
    """Write the shipped drafter with its attention rewritten as latent attention.

    Ranks as wide as the input make both down-projections the identity, and heads that share keys
    get copies. Positions are lost but for a small random part, so that it accepts less than the
    original.
    """
    torch.manual_seed(0)
    base = load_drafter(trio_path() / "eagle31")
    layer = replace(base.config.layer, head_dim=TURNED)
    drafter = ReferenceDrafter(replace(base.config, layer=layer, latent=SIZES))
    kept = {name: tensor for name, tensor in base.state_dict().items() if ".self_attn." not in name}
    drafter.load_state_dict(kept, strict=False)
    new, old = drafter.midlayer.self_attn, base.midlayer.self_attn
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
    save_drafter(drafter, folder)
    return folder


def _mtp_head(target: Target, *, normed: bool) -> ReferenceDrafter:
    """Return a head of one layer that reads the target's state after the final norm, as in SGLang,
    if `normed`, or before it, as in vLLM."""
    config = replace(
        eagle1_config(target),
        aux_layers=(FINAL_STATE if normed else target.config.num_hidden_layers,),
        eagle1=False,
        mtp=True,
        norm_output=True,
        attention_bias=True,
    )
    return ReferenceDrafter(config)


def mtp_checkpoint(folder: Path, *, normed: bool, trained: bool = True) -> Path:
    """Write the shipped target with a head into `folder`, as a checkpoint of MiMo.

    MiMo's layers are Llama's with biases on queries, keys and values. Those of the target are zero
    here, so that the shipped target is a MiMo target as it is, and its float64 reference holds.
    """
    torch.manual_seed(0)
    target, teacher = load_target(TARGET), Teacher(TARGET)
    head = _mtp_head(target, normed=normed)
    with torch.no_grad():
        head.norm.weight.copy_(target.model.norm.weight)  # type: ignore[union-attr,arg-type]
        head.lm_head.weight.copy_(target.model.embed_tokens.weight)
    if trained:
        _fit(head, target, [*teacher.passages(prompt_ids(), set(head.config.aux_layers))])

    def weights(state: State) -> None:
        for name, weight in [*state.items()]:
            state[name] = weight.float()
            if name.split(".")[-2] in ("q_proj", "k_proj", "v_proj"):
                state[name.replace("weight", "bias")] = torch.zeros(len(weight))
        state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
        own = head.state_dict()
        state |= {mimo: own[name].clone() for name, mimo in _mimo_names(head).items()}

    config = fields(
        architectures=["MiMoForCausalLM"],
        model_type="qwen2",
        attention_bias=True,
        num_nextn_predict_layers=1,
        tie_word_embeddings=False,
    )
    return changed(folder, TARGET, config=config, weights=weights)


@functools.cache
def load_mtp(
    folder: Path, dtype: torch.dtype = torch.float64, *, normed: bool
) -> tuple[Target, ReferenceDrafter]:
    """Return the shipped target and the head of a checkpoint that `mtp_checkpoint` has written."""
    target = load_target(TARGET, dtype)
    head = _mtp_head(target, normed=normed)
    stored = load_file(folder / "model.safetensors")
    own = {name: stored[mimo] for name, mimo in _mimo_names(head).items()}
    head.load_state_dict({**own, "lm_head.weight": stored["lm_head.weight"]})
    return target, head.to(dtype).eval()


def _mimo_names(head: ReferenceDrafter) -> dict[str, str]:
    """Return the name in a checkpoint of MiMo of each tensor that is not the target's."""
    names = {}
    for name in head.state_dict():
        part, _, rest = name.partition(".")
        place = {"fc": "input_proj.", "midlayer": "", "norm": "final_layernorm."}
        if part != "lm_head":
            names[name] = f"model.mtp_layers.0.{place.get(part, f'{part}.')}{rest}"
    return names


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
                values = torch.randn(shape, generator=random)
                state[f"base_model.model.{module}.{part}.weight"] = SIZE * values
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
