"""A kind of drafter: a tiny one with seeded random weights, and the options of vLLM for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from support.checkpoints import TARGET

ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 8,
    "enforce_eager": True,
    "enable_prefix_caching": False,
    "disable_log_stats": False,
    "skip_tokenizer_init": True,
}
"""Options that all kinds share."""
PROMPT_LENGTHS = (6, 10, 15, 21)
FIRST_PLAIN_ID = 6
"""First id after the shipped target's special tokens."""
MAX_TOKENS = 24


def prompts() -> list[list[int]]:
    """Return prompts of random ids that every target of the zoo knows."""
    random = Random(0)
    return [
        [0, *(random.randrange(FIRST_PLAIN_ID, VOCABULARY) for _ in range(length - 1))]
        for length in PROMPT_LENGTHS
    ]


@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """Layout of a kind's forward, from vLLM's source."""

    hidden: bool = True
    outputs: tuple[tuple[str, ...], ...] = (("postnorm_rms",), ("fed_rms",))
    """Names for which each element of the result stands."""
    norm: str | None = "model.norm"
    window: int | None = None
    bias: bool = False
    block: bool = False
    first: int = 0
    """Number of rows from the one of slot p to that of the first query."""
    lead: int = 0
    """Number of verified slots after p."""


Options = Callable[[Path], dict[str, Any]]
BOTH = ("v1", "v2")


@dataclass(frozen=True)
class Kind:
    """One kind of drafter with random weights."""

    name: str
    build: Callable[[Path], object]
    """Writes the models' folders below the given one; the same bytes on every call."""
    options: Options
    """Returns the options of `LLM` beyond `ENGINE`, given the folder that `build` filled."""
    anatomy: Anatomy | None
    """None where only acceptance and timing are recorded."""
    listed: str = "EAGLE-3 / 3.1"
    """Name of the probe's `DrafterKind`."""
    runners: tuple[str, ...] = BOTH
    """Runners among "v1" and "v2" that serve it on a CPU (vLLM 0.32.0)."""

    def llm(self, folder: Path) -> dict[str, Any]:
        """Return all options for `LLM`."""
        return {**ENGINE, **self.options(folder)}


def speculating(
    method: str,
    *,
    drafter: str | None = "",
    target: str | None = None,
    depths: int = 4,
    llm: Mapping[str, Any] | None = None,
    **more: Any,
) -> Options:
    """Return the options for a drafter and a target in these folders below the built one; None: no
    drafter of its own, and the shipped target. `more` is for the speculation, `llm` for all."""

    def options(folder: Path) -> dict[str, Any]:
        speculation = {"method": method, "num_speculative_tokens": depths, **more}
        if drafter is not None:
            speculation["model"] = str(folder / drafter)
        model = TARGET if target is None else folder / target
        return {"model": str(model), "speculative_config": speculation, **(llm or {})}

    return options


def trio_config(name: str = "target") -> dict[str, Any]:
    """Return the config of a shipped model."""
    config: dict[str, Any] = json.loads((TARGET.parent / name / "config.json").read_text())
    return config


Shapes = dict[str, tuple[int, ...]]

SEED = 11
VOCABULARY = 256
"""Vocabulary size of the targets made here; prompts for any kind stay below it."""
NORM_SPREAD = 0.2
"""Deviation of the norms' weights from 1."""
LEAN = 0.3
"""Share of the embedding in a residual: small enough that target and drafter sometimes differ."""
GAINS = {
    "q_proj": 1.5,
    "k_proj": 1.5,
    "q_b_proj": 1.5,
    "kv_a_proj_with_mqa": 1.5,
    "kv_b_proj": 1.5,
    "lm_head": 4.0,
}
"""Standard deviation of a matrix's output for input of unit variance; 1 for the rest."""


def random_weights(
    shapes: Shapes, gains: Mapping[str, float] | None = None, seed: int = SEED
) -> dict[str, torch.Tensor]:
    """Return a tensor for each name; `gains` by the module's own name override `GAINS`."""
    generator = torch.Generator().manual_seed(seed)
    known = {**GAINS, **(gains or {})}
    weights = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        *_, module, kind = ("", *name.split("."))
        if kind == "bias":
            weights[name] = NORM_SPREAD * values
        elif len(shape) == 1:
            weights[name] = 1 + NORM_SPREAD * values
        elif module == "embed_tokens":
            weights[name] = values * known.get(module, 1.0)
        else:
            weights[name] = values * known.get(module, 1.0) / shape[-1] ** 0.5
    return weights


def successor_head(embeddings: torch.Tensor) -> torch.Tensor:
    """Return an output matrix under which a hidden state near a token's embedding gives the next
    id.

    Target and drafter that both keep the embedding in their residual then agree occasionally, so
    that some drafts are accepted although everything else is random.
    """
    head: torch.Tensor = embeddings.roll(1, 0) * GAINS["lm_head"] / embeddings.shape[1] ** 0.5
    return head


def lean_on_embedding(width: int, *, embedding_first: bool, share: float = LEAN) -> torch.Tensor:
    """Return a projection [width, 2 * width] that passes the embedding, and some of the hidden
    state."""
    generator = torch.Generator().manual_seed(SEED)
    other = torch.randn(width, width, generator=generator) * 0.5 / width**0.5
    embedding = share * torch.eye(width)
    return torch.cat((embedding, other) if embedding_first else (other, embedding), 1)


def agreeing_weights(shapes: Shapes, *copies: str, share: float = LEAN) -> dict[str, torch.Tensor]:
    """Return random weights with a weak embedding and an output matrix that responds to it.

    `copies` are further names of the output matrix.
    """
    weights = random_weights(shapes, {"embed_tokens": share})
    head = successor_head(weights["model.embed_tokens.weight"] / share)
    return {**weights, **{name: head.clone() for name in ("lm_head.weight", *copies)}}


HIDDEN = 128
BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}
"""Config of a small target."""


def mlp(hidden: int, inner: int, prefix: str) -> Shapes:
    """Return the projections of a gated feed-forward block."""
    return {
        f"{prefix}gate_proj.weight": (inner, hidden),
        f"{prefix}up_proj.weight": (inner, hidden),
        f"{prefix}down_proj.weight": (hidden, inner),
    }


INPUT = "input_layernorm"


def layer(config: dict[str, Any], prefix: str, *norms: str, width: int | None = None) -> Shapes:
    """Return the weights of one decoder layer; `norms` precede attention, whose input has
    `width`."""
    hidden, head, attention = config["hidden_size"], config["head_dim"], f"{prefix}self_attn."
    queries, keys = (config[f"num_{n}_heads"] * head for n in ("attention", "key_value"))
    return {
        **{f"{prefix}{norm}.weight": (hidden,) for norm in (*norms, "post_attention_layernorm")},
        f"{attention}q_proj.weight": (queries, width or hidden),
        f"{attention}k_proj.weight": (keys, width or hidden),
        f"{attention}v_proj.weight": (keys, width or hidden),
        f"{attention}o_proj.weight": (hidden, queries),
        **mlp(hidden, config["intermediate_size"], f"{prefix}mlp."),
    }


def causal_lm(config: dict[str, Any]) -> Shapes:
    """Return the weights of a whole Llama-like model."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    shapes: Shapes = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for index in range(config["num_hidden_layers"]):
        shapes |= layer(config, f"model.layers.{index}.", INPUT)
    return {**shapes, "model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}
