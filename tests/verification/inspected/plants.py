"""Drafters that were changed in one way each: mistakes that were published, those of a review from
outside, and more of the same kinds.

A mistake counts as found if `inspect` has an error or a warning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from support.checkpoints import (
    DOWN,
    GATE,
    NORMS,
    OUT,
    UP,
    Config,
    Edit,
    K,
    Planting,
    Q,
    State,
    V,
    added,
    as_speculators,
    captured,
    each,
    exchanged,
    fields,
    halves,
    heads,
    interleaved,
    of_dims,
    own_vocabulary,
    own_vocabulary_config,
    speculators_names,
    stored,
    transposed,
    vocabulary_of,
    without,
)
from torch import Tensor

EAGLE3, EAGLE31 = "eagle3", "eagle31"


@dataclass(frozen=True, slots=True)
class Plant:
    """A change of a shipped drafter, or of its target."""

    name: str
    causes: tuple[str, ...] = ()
    """Results that name the cause; without any, it cannot be named from the files."""
    of: str = EAGLE31
    config: Callable[[Config], object] | None = None
    weights: Callable[[State], object] | None = None
    target: Callable[[State], object] | None = None
    """Change of the target's weights: the drafter was trained on the unchanged one."""
    templates: tuple[str | None, str | None] = (None, None)
    """Chat templates of the target and of the drafter, by name of the trio's conditions."""


def random() -> torch.Generator:
    """Return the generator of a plant."""
    return torch.Generator().manual_seed(9)


def _row(name: str, change: Callable[[Tensor], Tensor]) -> Planting:
    return each(lambda tensor: torch.cat([tensor[:17], change(tensor[17:18]), tensor[18:]]), name)


def _noise(share: float) -> Planting:
    """Add noise of a share of its size to each matrix."""

    def change(state: State) -> None:
        source = random()

        def shaken(wide: Tensor) -> Tensor:
            size = wide.square().mean().sqrt()
            return wide + share * size * torch.randn(wide.shape, generator=source)

        of_dims(2, shaken)(state)

    return change


def _half_way(share: float) -> Planting:
    """Mix the layer's matrices with random ones of the size that training starts from."""

    def change(state: State) -> None:
        source = random()
        names = [name for name, tensor in state.items() if tensor.dim() == 2]
        for name in (name.removesuffix(".weight") for name in names if "lm_head" not in name):
            start = torch.randn(state[f"{name}.weight"].shape, generator=source) * 0.02
            each(lambda tensor, start=start: torch.lerp(tensor.float(), start, share), name)(state)

    return change


def _mixed(share: float, *names: str) -> Planting:
    """Mix tensors with those of the other shipped drafter."""

    def change(state: State) -> None:
        other = stored(EAGLE3 if "fc_norm.0.weight" in state else EAGLE31)
        for name in (f"{name}.weight" for name in names):
            state[name] = torch.lerp(state[name], other[name], share)

    return change


def _targets(name: str, source: str) -> Planting:
    """Take a tensor of the target."""
    return lambda state: state.update({f"{name}.weight": stored("target")[f"{source}.weight"]})


def _by_frequency(state: State) -> None:
    """Order the head as if by frequency, with a d2t by id."""
    order = torch.randperm(1024, generator=random())[:512]
    head = state["lm_head.weight"][order]
    vocabulary_of(order.sort().values)(state)
    state["lm_head.weight"] = head


def _table(made: Callable[[Tensor], Tensor], *, mask: bool) -> Planting:
    def change(state: State) -> None:
        own_vocabulary(state)
        state["d2t"] = made(state["d2t"])
        if not mask:
            del state["t2d"]

    return change


_other_embedding = added("embed_tokens.weight", torch.randn(1024, 256, generator=random()))


def _other_target(state: State) -> None:
    """Make the drafter one of a target whose states are permuted, but not its tokens."""
    order = torch.randperm(256, generator=random())
    each(lambda fc: torch.cat([block[:, order] for block in fc.chunk(3, -1)], -1), "fc")(state)
    _other_embedding(state)


def _speculators(lost: str) -> Edit:
    def change(fields: Config) -> None:
        as_speculators(fields)
        del fields[lost]

    return change


def _e4m3_without_scale(tensor: Tensor) -> Tensor:
    wide = tensor.float()
    return (wide * (448 / wide.abs().max())).to(torch.float8_e4m3fn).float()


_minus_one = of_dims(1, lambda tensor: tensor - 1)
_ORDER, _INPUT_NORMS = ("repaired_by.order_of_heads",), ("repaired_by.input_and_hidden_norm",)
_ROLLED, _SHIFTED = (3, 0, 1, 2), (7, 0, 1, 2, 3, 4, 5, 6)
_POST = "midlayer.post_attention_layernorm"

PUBLISHED = (
    Plant(
        "norm_output on (SpecForge#879)",
        ("repaired_by.norm_output",),
        of=EAGLE3,
        config=fields(norm_output=True),
    ),
    Plant(
        "norm_output lost in the speculators format (vllm#46488)",
        ("repaired_by.norm_output",),
        config=_speculators("norm_output"),
        weights=speculators_names,
    ),
    Plant(
        "norm_before_fc for fc_norm (speculators#610, #670)",
        ("fc_norm_and_norm_before_fc_swapped",),
        config=fields(fc_norm=False, norm_before_fc=True),
    ),
    Plant(
        "captured layers one too low (sglang#32334)",
        ("repaired_by.captured_layers_2_3_5",),
        config=captured(1, 2, 4),
    ),
    Plant(
        "captured layers one too high",
        ("repaired_by.captured_layers_2_3_5",),
        of=EAGLE3,
        config=captured(3, 4, 6),
    ),
    Plant("captured layers not named", ("captured_layers_collapse",), config=captured()),
    Plant(
        "norm_before_residual on",
        ("repaired_by.norm_before_residual",),
        of=EAGLE3,
        config=fields(norm_before_residual=True),
    ),
    Plant(
        "norm_before_residual left out in the speculators format",
        ("repaired_by.norm_before_residual",),
        of=EAGLE3,
        config=_speculators("norm_before_residual"),
        weights=speculators_names,
    ),
    Plant("fc_norm off", ("fc_norm_unused", "repaired_by.fc_norm"), config=fields(fc_norm=False)),
    Plant(
        "fc_norm lost, flag and weights",
        ("repaired_by.fc_norm_of_ones",),
        config=fields(fc_norm=False),
        weights=without("fc_norm."),
    ),
    Plant(
        "columns of fc reversed",
        ("repaired_by.states_order_3_2_1",),
        of=EAGLE3,
        weights=each(partial(halves, parts=3), "fc"),
    ),
    Plant(  # The order of the norms changes nothing that can be measured.
        "columns of fc reversed",
        ("repaired_by.fc_order_3_2_1", "repaired_by.states_order_3_2_1"),
        weights=each(partial(halves, parts=3), "fc"),
    ),
    Plant(
        "fc_norm reversed",
        ("repaired_by.fc_norm_order_3_2_1",),
        weights=exchanged("fc_norm.0", "fc_norm.2"),
    ),
    *(
        Plant("input and hidden norm exchanged", _INPUT_NORMS, of, weights=exchanged(*NORMS))
        for of in (EAGLE3, EAGLE31)
    ),
    Plant(
        "d2t holds ids",
        ("d2t_absolute",),
        config=own_vocabulary_config,
        weights=_table(lambda table: table + torch.arange(len(table)), mask=False),
    ),
    Plant(
        "d2t all zero",
        ("d2t_zero",),
        of=EAGLE3,
        config=own_vocabulary_config,
        weights=_table(torch.zeros_like, mask=True),
    ),
    Plant(
        "d2t one too high",
        ("d2t_range", "repaired_by.d2t_minus_one"),
        config=own_vocabulary_config,
        weights=_table(lambda table: table + 1, mask=False),
    ),
    Plant(
        "an embedding of its own",
        ("embedding_not_targets", "repaired_by.targets_embedding"),
        weights=_other_embedding,
    ),
    Plant(
        "head permuted",
        ("repaired_by.targets_head",),
        of=EAGLE3,
        weights=each(lambda t: t[torch.randperm(1024, generator=random())], "lm_head"),
    ),
    Plant(
        "rope_theta not the target's",
        ("rope_theta_differs", "repaired_by.rope_theta"),
        config=fields(rope_theta=1e6),
    ),
    Plant(
        "queries and keys interleaved",
        ("repaired_by.rope_layout",),
        of=EAGLE3,
        weights=each(interleaved, Q, K),
    ),
    Plant(
        "halves of attention's input exchanged",
        ("repaired_by.attention_halves",),
        weights=each(halves, Q, K, V),
    ),
    Plant(
        "drafter of another target",
        ("another_target", "embedding_not_targets"),
        weights=_other_target,
    ),
)
"""Mistakes that were published, and more like them."""

REVIEWED = (
    Plant("8 kv heads in the config", config=fields(num_key_value_heads=8)),
    Plant("head_dim 64", config=fields(head_dim=64)),
    Plant("two layers in the config", config=fields(num_hidden_layers=2)),
    Plant("fc transposed", weights=each(transposed, "fc")),
    Plant("target_hidden_size 128", config=fields(target_hidden_size=128)),
    Plant(
        "head padded to 1088",
        weights=each(lambda t: torch.cat([t, torch.zeros(64, 256)]), "lm_head"),
    ),
    Plant(
        "half of the head zero",
        weights=each(lambda t: torch.cat([t[:512], torch.zeros(512, 256)]), "lm_head"),
    ),
    Plant("64 positions", config=fields(max_position_embeddings=64)),
    Plant("scaled positions", config=fields(rope_scaling={"rope_type": "linear", "factor": 4.0})),
    Plant(
        "fp8 left in the config",
        ("weights_not_quantized",),
        config=fields(quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"}),
    ),
    Plant("sliding window 16", ("own_window",), config=fields(sliding_window=16)),
    Plant(
        "head rolled by 6",
        ("repaired_by.targets_head",),
        weights=each(lambda t: t.roll(6, 0), "lm_head"),
    ),
    Plant(
        "head by frequency, d2t by id",
        ("repaired_by.targets_head",),
        config=fields(draft_vocab_size=512),
        weights=_by_frequency,
    ),
    Plant(
        "EAGLE-3 with the flags of 3.1",
        ("fc_norm_missing", "repaired_by.norm_output"),
        of=EAGLE3,
        config=fields(fc_norm=True, norm_output=True),
    ),
    Plant("o_proj transposed", ("repaired_by.o_proj_transposed",), weights=each(transposed, OUT)),
    Plant("kv heads in another order", _ORDER, weights=each(heads(_ROLLED), K, V)),
    Plant("norms stored as w - 1", ("repaired_by.norms_plus_one",), weights=_minus_one),
    Plant("a value row times 1e4", weights=_row(V, lambda one: one * 1e4)),
    Plant("a row of down_proj 3e38", weights=_row(DOWN, lambda one: torch.full_like(one, 3e38))),
    Plant(
        "4 heads of 64 for 8 of 32",
        ("repaired_by.heads_8_of_32",),
        config=fields(num_attention_heads=4, num_key_value_heads=2, head_dim=64),
    ),
    Plant(
        "rms_norm_eps 1.0",
        ("repaired_by.rms_norm_eps", "eps_differs"),
        config=fields(rms_norm_eps=1.0),
    ),
    Plant("target's noise 30 %", target=_noise(0.3)),
    Plant(
        "another chat template", ("accepts_more_with.tokens_for_turns",), templates=("other", None)
    ),
    Plant("another chat template, its own kept", templates=("other", "own")),
    Plant("q_proj of the other drafter", weights=_mixed(1.0, Q)),
    Plant("gate and up exchanged", ("repaired_by.gate_and_up",), weights=exchanged(GATE, UP)),
    Plant(
        "half-way to the start weights",
        ("repaired_by.matrices_half_as_large",),
        weights=_half_way(0.5),
    ),
    Plant("target's noise 15 %", target=_noise(0.15)),
    Plant(
        "head of the target",
        ("head_is_targets",),
        weights=_targets("lm_head", "model.embed_tokens"),
    ),
    Plant(
        "rms_norm_eps 1e-2",
        ("repaired_by.rms_norm_eps", "eps_differs"),
        config=fields(rms_norm_eps=1e-2),
    ),
    Plant("hidden_act gelu", ("activation_refused",), config=fields(hidden_act="gelu")),
    Plant(
        "partial_rotary_factor 0.5",
        ("partial_rotary_differs", "repaired_by.partial_rotary_factor"),
        config=fields(partial_rotary_factor=0.5),
    ),
    Plant("attention_bias without biases", ("missing_tensor",), config=fields(attention_bias=True)),
    Plant("tie_word_embeddings", ("field_of_sglang",), config=fields(tie_word_embeddings=True)),
    Plant("final norm of the target", ("norm_is_targets",), weights=_targets("norm", "model.norm")),
    Plant("hidden_norm of ones", ("norms_of_ones",), weights=each(torch.ones_like, NORMS[1])),
    Plant("mlp_bias without biases", ("missing_tensor",), config=fields(mlp_bias=True)),
)
"""The mistakes of the review."""

FURTHER = (
    Plant("query heads in another order", _ORDER, weights=each(heads(_SHIFTED), Q)),
    Plant(
        "columns of o_proj in another order",
        weights=each(lambda t: heads(_SHIFTED)(t.T).T.contiguous(), OUT),
    ),
    Plant("value heads in another order", _ORDER, weights=each(heads(_ROLLED), V)),
    Plant("key heads in another order", _ORDER, weights=each(heads((1, 0, 3, 2)), K)),
    Plant("only keys interleaved", ("repaired_by.rope_layout_of_k",), weights=each(interleaved, K)),
    Plant("keys and values exchanged", ("repaired_by.k_and_v",), weights=exchanged(K, V)),
    Plant(
        "a quarter of the head one off",
        ("head_of_other_tokens",),
        weights=each(lambda t: torch.cat([t[:256], t[256:512].roll(1, 0), t[512:]]), "lm_head"),
    ),
    Plant(
        "bits of bfloat16 as float16",
        ("odd_numbers",),
        weights=each(lambda t: t.bfloat16().view(torch.int16).view(torch.float16), DOWN),
    ),
    Plant(
        "final norm stored as w - 1",
        ("repaired_by.norms_plus_one",),
        weights=each(lambda t: t - 1, "norm"),
    ),
    Plant(
        "one norm of fc_norm for all",
        ("weights_repeated",),
        weights=lambda state: state.update(
            {f"fc_norm.{n}.weight": state["fc_norm.0.weight"].clone() for n in (1, 2)}
        ),
    ),
    Plant("half of the queries twice", weights=each(lambda t: t[:128].repeat(2, 1), Q)),
    Plant("down_proj times 16", weights=each(lambda t: t * 16, DOWN)),
    Plant("q_proj times 8", weights=each(lambda t: t * 8, Q)),
    Plant("fc divided by 10", of=EAGLE3, weights=each(lambda t: t / 10, "fc")),
    Plant(
        "fp8 without scales",
        ("scale_lost",),
        weights=each(_e4m3_without_scale, Q, K, V, OUT, GATE, UP, DOWN),
    ),
    Plant("head off by one", weights=each(lambda t: t.roll(1, 0), "lm_head")),
    Plant("post-attention norm and final norm exchanged", weights=exchanged("norm", _POST)),
    Plant("input norm and post-attention norm exchanged", weights=exchanged(NORMS[0], _POST)),
    Plant("target's noise 60 %", of=EAGLE3, target=_noise(0.6)),
    Plant("80 % of the way to the start weights", of=EAGLE3, weights=_half_way(0.8)),
    Plant("gate_proj zero", weights=each(torch.zeros_like, GATE)),
    Plant("down_proj zero", weights=each(torch.zeros_like, DOWN)),
    Plant("logit_scale 0.0625", config=fields(logit_scale=0.0625)),
    Plant("is_causal false", config=fields(is_causal=False)),
    Plant(
        "layer_types of a window",
        config=fields(layer_types=["sliding_attention"], sliding_window=16),
    ),
    Plant("attention's inputs: mean of both drafters", weights=_mixed(0.5, Q, K, V)),
)
"""More mistakes of the same kinds."""
