"""Drafters that were changed in one way each: mistakes that were published, those of a review from
outside, and more of the same kinds.

A mistake counts as found if `inspect` has an error or a warning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from safetensors.torch import load_file
from support.checkpoints import (
    AUX,
    NORMS,
    Config,
    State,
    as_speculators,
    exchanged,
    fields,
    own_vocabulary,
    own_vocabulary_config,
    reversed_states,
    shifted_layers,
    speculators_names,
    without,
)
from torch import Tensor

from driftscope_lab.trio import trio_path

EAGLE3, EAGLE31 = "eagle3", "eagle31"
HEAD_SIZE, HEADS, KV_HEADS, LAYER = 32, 8, 4, "midlayer."
ATTENTION, MLP = f"{LAYER}self_attn.", f"{LAYER}mlp."
_SEED = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A change of a shipped drafter, or of its target."""

    name: str
    of: str = EAGLE31
    config: Callable[[Config], object] | None = None
    weights: Callable[[State], object] | None = None
    target: Callable[[State], object] | None = None
    """Change of the target's weights: the drafter was trained on the unchanged one."""
    templates: tuple[str | None, str | None] = (None, None)
    """Chat templates of the target and of the drafter, by name of the trio's conditions."""
    before: str = ""
    """The answer that a review got on 26 November 2026."""
    causes: tuple[str, ...] = field(default=())
    """Results that name the cause; without any, it cannot be named from the files."""


def random() -> torch.Generator:
    """Return the generator of a plant."""
    return torch.Generator().manual_seed(_SEED)


def each(change: Callable[[Tensor], Tensor], *names: str) -> Callable[[State], None]:
    """Change the tensors of these names."""

    def changed(state: State) -> None:
        for name in names:
            state[f"{name}.weight"] = change(state[f"{name}.weight"]).to(torch.bfloat16)

    return changed


def row(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[State], None]:
    """Change a row of a tensor."""

    def changed(state: State) -> None:
        tensor = state[f"{name}.weight"] = state[f"{name}.weight"].clone()
        tensor[17] = change(tensor[17])

    return changed


def heads(order: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Put the heads of a projection's rows in another order."""
    return lambda tensor: tensor.unflatten(0, (len(order), -1))[list(order)].flatten(0, 1)


def columns(order: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Put the heads of a projection's columns in another order."""
    return lambda tensor: heads(order)(tensor.T).T.contiguous()


def noise(share: float) -> Callable[[State], None]:
    """Add noise of a share of its size to each matrix."""

    def changed(state: State) -> None:
        source = random()
        for name, tensor in state.items():
            wide = tensor.float()
            size = wide.square().mean().sqrt()
            if wide.dim() == 2:
                wide = wide + share * size * torch.randn(wide.shape, generator=source)
            state[name] = wide.to(tensor.dtype)

    return changed


def half_way(share: float) -> Callable[[State], None]:
    """Mix the layer's matrices with random ones of the size that training starts from."""

    def changed(state: State) -> None:
        source = random()
        for name, tensor in state.items():
            if tensor.dim() == 2 and name != "lm_head.weight":
                start = torch.randn(tensor.shape, generator=source) * 0.02
                state[name] = ((1 - share) * tensor.float() + share * start).to(tensor.dtype)

    return changed


def stored(name: str) -> State:
    """Return the weights of a shipped model."""
    return load_file(trio_path() / name / "model.safetensors")


def of_other(*names: str) -> Callable[[State], None]:
    """Take tensors of the other shipped drafter."""

    def changed(state: State) -> None:
        other = stored(EAGLE3 if "fc_norm.0.weight" in state else EAGLE31)
        state.update({f"{name}.weight": other[f"{name}.weight"] for name in names})

    return changed


def targets(name: str, source: str) -> Callable[[State], None]:
    """Take a tensor of the target."""

    def changed(state: State) -> None:
        state[f"{name}.weight"] = stored("target")[f"{source}.weight"].clone()

    return changed


def _by_frequency(state: State) -> None:
    """Order the head as if by frequency, with a d2t by id."""
    order = torch.randperm(1024, generator=random())[:512]
    state["lm_head.weight"] = state["lm_head.weight"][order]
    state["d2t"] = order.sort().values - torch.arange(512)
    state["t2d"] = torch.zeros(1024, dtype=torch.bool).index_fill(0, order, True)


def _unnamed_layers(fields: Config) -> None:
    del fields[AUX], fields["eagle_config"][AUX]


def _table(made: Callable[[Tensor], Tensor], *, mask: bool) -> Callable[[State], None]:
    def change(state: State) -> None:
        own_vocabulary(state)
        state["d2t"] = made(state["d2t"])
        if not mask:
            del state["t2d"]

    return change


def _other_embedding(state: State) -> None:
    state["embed_tokens.weight"] = torch.randn(1024, 256, generator=random())


def _halves(state: State) -> None:
    for part in "qkv":
        name = f"midlayer.self_attn.{part}_proj.weight"
        state[name] = torch.cat(state[name].chunk(2, -1)[::-1], -1)


def _other_target(state: State) -> None:
    """Make the drafter one of a target whose states are permuted, but not its tokens."""
    order = torch.randperm(256, generator=random())
    blocks = state["fc.weight"].chunk(3, -1)
    state["fc.weight"] = torch.cat([block[:, order] for block in blocks], -1)
    state["embed_tokens.weight"] = torch.randn(1024, 256, generator=random())


def _speculators(**lost: None) -> Callable[[Config], None]:
    def change(fields: Config) -> None:
        as_speculators(fields)
        for name in lost:
            fields.pop(name)

    return change


def _interleaved(tensor: Tensor) -> Tensor:
    split = tensor.reshape(-1, 2, HEAD_SIZE // 2, tensor.shape[-1])
    return split.transpose(1, 2).reshape(tensor.shape)


def _e4m3_without_scale(tensor: Tensor) -> Tensor:
    wide = tensor.float()
    return (wide * (448 / wide.abs().max())).to(torch.float8_e4m3fn).float()


def _mean_of_both(state: State) -> None:
    other = stored(EAGLE3)
    for name in (f"{Q}.weight", f"{K}.weight", f"{V}.weight"):
        state[name] = (state[name] + other[name]) / 2


def _minus_one(state: State) -> None:
    for name, tensor in state.items():
        if tensor.dim() == 1 and tensor.is_floating_point():
            state[name] = (tensor.float() - 1).to(tensor.dtype)


Q, K, V, OUT = (f"{ATTENTION}{part}_proj" for part in "qkvo")
GATE, UP, DOWN = (f"{MLP}{part}_proj" for part in ("gate", "up", "down"))
_ORDER = ("repaired_by.order_of_heads",)
_ROLLED, _SHIFTED = (3, 0, 1, 2), (7, 0, 1, 2, 3, 4, 5, 6)

NAMED = "the mistake, named"
ANOTHER = "use a drafter that was trained on this target [likely]"
SOUND = "No mistake found"
NOT_RUN = "a note that it was not run, exit 0"

PUBLISHED = (
    Plant(
        name="norm_output on (SpecForge#879)",
        of=EAGLE3,
        causes=("repaired_by.norm_output",),
        config=fields(norm_output=True),
    ),
    Plant(
        name="norm_output lost in the speculators format (vllm#46488)",
        of=EAGLE31,
        causes=("repaired_by.norm_output",),
        config=_speculators(norm_output=None),
        weights=speculators_names,
    ),
    Plant(
        name="norm_before_fc for fc_norm (speculators#610, #670)",
        of=EAGLE31,
        causes=("fc_norm_and_norm_before_fc_swapped",),
        config=fields(fc_norm=False, norm_before_fc=True),
    ),
    Plant(
        name="captured layers one too low (sglang#32334)",
        of=EAGLE31,
        causes=("repaired_by.captured_layers_2_3_5",),
        config=shifted_layers(-1),
    ),
    Plant(
        name="captured layers one too high",
        of=EAGLE3,
        causes=("repaired_by.captured_layers_2_3_5",),
        config=shifted_layers(1),
    ),
    Plant(
        name="captured layers not named",
        of=EAGLE31,
        causes=("captured_layers_collapse",),
        config=_unnamed_layers,
    ),
    Plant(
        name="norm_before_residual on",
        of=EAGLE3,
        causes=("repaired_by.norm_before_residual",),
        config=fields(norm_before_residual=True),
    ),
    Plant(
        name="norm_before_residual left out in the speculators format",
        of=EAGLE3,
        causes=("repaired_by.norm_before_residual",),
        config=_speculators(norm_before_residual=None),
        weights=speculators_names,
    ),
    Plant(
        name="fc_norm off",
        of=EAGLE31,
        causes=("fc_norm_unused", "repaired_by.fc_norm"),
        config=fields(fc_norm=False),
    ),
    Plant(
        name="fc_norm lost, flag and weights",
        of=EAGLE31,
        causes=("repaired_by.fc_norm_of_ones",),
        config=fields(fc_norm=False),
        weights=without("fc_norm."),
    ),
    Plant(
        name="columns of fc reversed",
        of=EAGLE3,
        causes=("repaired_by.states_order_3_2_1",),
        weights=reversed_states,
    ),
    Plant(
        name="columns of fc reversed",
        of=EAGLE31,
        # The order of the norms changes nothing that can be measured.
        causes=("repaired_by.fc_order_3_2_1", "repaired_by.states_order_3_2_1"),
        weights=reversed_states,
    ),
    Plant(
        name="fc_norm reversed",
        of=EAGLE31,
        causes=("repaired_by.fc_norm_order_3_2_1",),
        weights=exchanged("fc_norm.0", "fc_norm.2"),
    ),
    Plant(
        name="input and hidden norm exchanged",
        of=EAGLE3,
        causes=("repaired_by.input_and_hidden_norm",),
        weights=exchanged(*NORMS),
    ),
    Plant(
        name="input and hidden norm exchanged",
        of=EAGLE31,
        causes=("repaired_by.input_and_hidden_norm",),
        weights=exchanged(*NORMS),
    ),
    Plant(
        name="d2t holds ids",
        of=EAGLE31,
        causes=("d2t_absolute",),
        config=own_vocabulary_config,
        weights=_table(lambda table: table + torch.arange(len(table)), mask=False),
    ),
    Plant(
        name="d2t all zero",
        of=EAGLE3,
        causes=("d2t_zero",),
        config=own_vocabulary_config,
        weights=_table(torch.zeros_like, mask=True),
    ),
    Plant(
        name="d2t one too high",
        of=EAGLE31,
        causes=("d2t_range", "repaired_by.d2t_minus_one"),
        config=own_vocabulary_config,
        weights=_table(lambda table: table + 1, mask=False),
    ),
    Plant(
        name="an embedding of its own",
        of=EAGLE31,
        causes=("embedding_not_targets", "repaired_by.targets_embedding"),
        weights=_other_embedding,
    ),
    Plant(
        name="head permuted",
        of=EAGLE3,
        causes=("repaired_by.targets_head",),
        weights=each(lambda t: t[torch.randperm(1024, generator=random())], "lm_head"),
    ),
    Plant(
        name="rope_theta not the target's",
        of=EAGLE31,
        causes=("rope_theta_differs", "repaired_by.rope_theta"),
        config=fields(rope_theta=1e6),
    ),
    Plant(
        name="queries and keys interleaved",
        of=EAGLE3,
        causes=("repaired_by.rope_layout",),
        weights=each(_interleaved, Q, K),
    ),
    Plant(
        name="halves of attention's input exchanged",
        of=EAGLE31,
        causes=("repaired_by.attention_halves",),
        weights=_halves,
    ),
    Plant(
        name="drafter of another target",
        of=EAGLE31,
        causes=("another_target", "embedding_not_targets"),
        weights=_other_target,
    ),
)
"""Mistakes that were published, and more like them."""

REVIEWED = (
    Plant(name="8 kv heads in the config", before=NAMED, config=fields(num_key_value_heads=8)),
    Plant(name="head_dim 64", before=NAMED, config=fields(head_dim=64)),
    Plant(name="two layers in the config", before=NAMED, config=fields(num_hidden_layers=2)),
    Plant(name="fc transposed", before=NAMED, weights=each(lambda t: t.T.contiguous(), "fc")),
    Plant(name="target_hidden_size 128", before=NAMED, config=fields(target_hidden_size=128)),
    Plant(
        name="head padded to 1088",
        before=NAMED,
        weights=each(lambda t: torch.cat([t, torch.zeros(64, 256)]), "lm_head"),
    ),
    Plant(
        name="half of the head zero",
        before=NAMED,
        weights=each(lambda t: torch.cat([t[:512], torch.zeros(512, 256)]), "lm_head"),
    ),
    Plant(name="64 positions", before=NAMED, config=fields(max_position_embeddings=64)),
    Plant(
        name="scaled positions",
        before=NAMED,
        config=fields(rope_scaling={"rope_type": "linear", "factor": 4.0}),
    ),
    Plant(
        name="fp8 left in the config",
        before=NAMED,
        config=fields(quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"}),
        causes=("weights_not_quantized",),
    ),
    Plant(
        name="sliding window 16",
        before=NAMED,
        config=fields(sliding_window=16),
        causes=("own_window",),
    ),
    Plant(
        name="head rolled by 6",
        before=NAMED,
        weights=each(lambda t: t.roll(6, 0), "lm_head"),
        causes=("repaired_by.targets_head",),
    ),
    Plant(
        name="head by frequency, d2t by id",
        before=NAMED,
        config=fields(draft_vocab_size=512),
        weights=_by_frequency,
        causes=("repaired_by.targets_head",),
    ),
    Plant(
        name="EAGLE-3 with the flags of 3.1",
        before=NAMED,
        of=EAGLE3,
        config=fields(fc_norm=True, norm_output=True),
        causes=("fc_norm_missing", "repaired_by.norm_output"),
    ),
    Plant(
        name="o_proj transposed",
        before=ANOTHER,
        weights=each(lambda t: t.T.contiguous(), OUT),
        causes=("repaired_by.o_proj_transposed",),
    ),
    Plant(
        name="kv heads in another order",
        before=ANOTHER,
        weights=each(heads(_ROLLED), K, V),
        causes=_ORDER,
    ),
    Plant(
        name="norms stored as w - 1",
        before=ANOTHER,
        weights=_minus_one,
        causes=("repaired_by.norms_plus_one",),
    ),
    Plant(name="a value row times 1e4", before=ANOTHER, weights=row(V, lambda one: one * 1e4)),
    Plant(
        name="a row of down_proj 3e38",
        before=SOUND,
        weights=row(DOWN, lambda one: torch.full_like(one, 3e38)),
    ),
    Plant(
        name="4 heads of 64 for 8 of 32",
        before=SOUND,
        config=fields(num_attention_heads=4, num_key_value_heads=2, head_dim=64),
        causes=("repaired_by.heads_8_of_32",),
    ),
    Plant(
        name="rms_norm_eps 1.0",
        before=SOUND,
        config=fields(rms_norm_eps=1.0),
        causes=("repaired_by.rms_norm_eps", "eps_differs"),
    ),
    Plant(name="target's noise 30 %", before=SOUND, target=noise(0.3)),
    Plant(
        name="another chat template",
        before=SOUND,
        templates=("other", None),
        causes=("accepts_more_with.tokens_for_turns",),
    ),
    Plant(name="another chat template, its own kept", before=NAMED, templates=("other", "own")),
    Plant(name="q_proj of the other drafter", before=SOUND, weights=of_other(Q)),
    Plant(
        name="gate and up exchanged",
        before=SOUND,
        weights=exchanged(GATE, UP),
        causes=("repaired_by.gate_and_up",),
    ),
    Plant(
        name="half-way to the start weights",
        before=SOUND,
        weights=half_way(0.5),
        causes=("repaired_by.matrices_half_as_large",),
    ),
    Plant(name="target's noise 15 %", before=SOUND, target=noise(0.15)),
    Plant(
        name="head of the target",
        before=SOUND,
        weights=targets("lm_head", "model.embed_tokens"),
        causes=("head_is_targets",),
    ),
    Plant(
        name="rms_norm_eps 1e-2",
        before=SOUND,
        config=fields(rms_norm_eps=1e-2),
        causes=("repaired_by.rms_norm_eps", "eps_differs"),
    ),
    Plant(
        name="hidden_act gelu",
        before=SOUND,
        config=fields(hidden_act="gelu"),
        causes=("activation_refused",),
    ),
    Plant(
        name="partial_rotary_factor 0.5",
        before=SOUND,
        config=fields(partial_rotary_factor=0.5),
        causes=("partial_rotary_differs", "repaired_by.partial_rotary_factor"),
    ),
    Plant(
        name="attention_bias without biases",
        before=NOT_RUN,
        config=fields(attention_bias=True),
        causes=("missing_tensor",),
    ),
    Plant(
        name="tie_word_embeddings",
        before=SOUND,
        config=fields(tie_word_embeddings=True),
        causes=("field_of_sglang",),
    ),
    Plant(
        name="final norm of the target",
        before=SOUND,
        weights=targets("norm", "model.norm"),
        causes=("norm_is_targets",),
    ),
    Plant(
        name="hidden_norm of ones",
        before=SOUND,
        weights=each(torch.ones_like, f"{LAYER}hidden_norm"),
        causes=("norms_of_ones",),
    ),
    Plant(
        name="mlp_bias without biases",
        before=NOT_RUN,
        config=fields(mlp_bias=True),
        causes=("missing_tensor",),
    ),
)
"""The mistakes of the review."""

FURTHER = (
    Plant(name="query heads in another order", weights=each(heads(_SHIFTED), Q), causes=_ORDER),
    Plant(name="columns of o_proj in another order", weights=each(columns(_SHIFTED), OUT)),
    Plant(name="value heads in another order", weights=each(heads(_ROLLED), V), causes=_ORDER),
    Plant(name="key heads in another order", weights=each(heads((1, 0, 3, 2)), K), causes=_ORDER),
    Plant(name="only keys interleaved", weights=each(_interleaved, K)),
    Plant(
        name="queries and keys interleaved",
        weights=each(_interleaved, Q, K),
        causes=("repaired_by.rope_layout",),
    ),
    Plant(name="half of the queries twice", weights=each(lambda t: t[:128].repeat(2, 1), Q)),
    Plant(name="down_proj times 16", weights=each(lambda t: t * 16, DOWN)),
    Plant(name="q_proj times 8", weights=each(lambda t: t * 8, Q)),
    Plant(name="fc divided by 10", of=EAGLE3, weights=each(lambda t: t / 10, "fc")),
    Plant(
        name="fp8 without scales",
        weights=each(_e4m3_without_scale, Q, K, V, OUT, GATE, UP, DOWN),
        causes=("scale_lost",),
    ),
    Plant(
        name="fp8 without scale of down_proj",
        weights=each(_e4m3_without_scale, DOWN),
        causes=("scale_lost",),
    ),
    Plant(name="head off by one", weights=each(lambda t: t.roll(1, 0), "lm_head")),
    Plant(
        name="post-attention norm and final norm exchanged",
        weights=exchanged("norm", f"{LAYER}post_attention_layernorm"),
    ),
    Plant(
        name="input norm and post-attention norm exchanged",
        weights=exchanged(NORMS[0], f"{LAYER}post_attention_layernorm"),
    ),
    Plant(
        name="norms stored as w - 1",
        of=EAGLE3,
        weights=_minus_one,
        causes=("repaired_by.norms_plus_one",),
    ),
    Plant(
        name="o_proj transposed",
        of=EAGLE3,
        weights=each(lambda t: t.T.contiguous(), OUT),
        causes=("repaired_by.o_proj_transposed",),
    ),
    Plant(name="target's noise 60 %", of=EAGLE3, target=noise(0.6)),
    Plant(name="80 % of the way to the start weights", of=EAGLE3, weights=half_way(0.8)),
    Plant(name="gate_proj zero", weights=each(torch.zeros_like, GATE)),
    Plant(name="down_proj zero", weights=each(torch.zeros_like, DOWN)),
    Plant(name="logit_scale 0.0625", config=fields(logit_scale=0.0625)),
    Plant(name="is_causal false", config=fields(is_causal=False)),
    Plant(
        name="layer_types of a window",
        config=fields(layer_types=["sliding_attention"], sliding_window=16),
    ),
    Plant(name="attention's inputs: mean of both drafters", weights=_mean_of_both),
)
"""More mistakes of the same kinds."""
