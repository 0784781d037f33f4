"""The options of the EAGLE-3 family, each against the drafter run anew over the whole sequence."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from driftscope.inspect.reference.chain import MASSES, PER_DEPTH, replay
from driftscope.inspect.reference.config import DrafterConfig
from driftscope.inspect.reference.drafter import Drafter, Target
from driftscope.inspect.reference.layers import Rotary

from .conftest import LAYER, SIZES, random_weights

K, P, PROMPT_TOKENS, N_SINK = 4, 12, 8, 2
PLAIN = DrafterConfig(layer=LAYER, aux_layers=(1, 2))
TWO_LAYERS = replace(LAYER, num_hidden_layers=2)
OPTIONS = {
    "norm_before_fc": replace(PLAIN, norm_before_fc=True),
    "both norms": replace(PLAIN, norm_before_fc=True, fc_norm=True),
    "norm_before_residual": replace(PLAIN, norm_before_residual=True),
    "draft vocabulary": replace(PLAIN, draft_vocab_size=17),
    "two layers": replace(PLAIN, layer=TWO_LAYERS),
    "three layers": replace(PLAIN, layer=replace(LAYER, num_hidden_layers=3), norm_output=True),
    "narrow": replace(PLAIN, layer=replace(LAYER, hidden_size=12), target_hidden_size=16),
    "qk_norm": replace(PLAIN, qk_norm=True),
}
Pair = tuple[Target, Drafter]


@pytest.fixture(params=sorted(OPTIONS))
def pair(request: pytest.FixtureRequest) -> Pair:
    config = OPTIONS[request.param]
    target, drafter = Target(SIZES).double(), Drafter(config).double()
    random_weights(target, seed=1)
    random_weights(drafter, seed=2)
    if size := config.draft_vocab_size:
        drafter.d2t.copy_(torch.arange(size) + 3)
    return target.eval(), drafter.eval()


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + LAYER.rms_norm_eps).sqrt() * weight


def as_fc_reads(drafter: Drafter, aux: Tensor) -> Tensor:
    """[slots, layers * width] captured states."""
    w, config = drafter.state_dict(), drafter.config
    if config.norm_before_fc:
        aux = normed(aux, w["input_norm.weight"])
    if config.fc_norm:
        parts = enumerate(aux.chunk(2, -1))
        aux = torch.cat([normed(x, w[f"fc_norm.{i}.weight"]) for i, x in parts], -1)
    return aux


def layer_over(drafter: Drafter, index: int, embedding: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Residual stream [slots, H] behind the layer; what its last slot looks at, mean over heads."""
    config, prefix = drafter.config, "midlayer." if index == 0 else f"layers.{index}."
    w = {k.removeprefix(prefix): v for k, v in drafter.state_dict().items() if k.startswith(prefix)}
    read = normed(embedding if index == 0 else x, w["input_layernorm.weight"])
    if index == 0:
        hidden = normed(x, w["hidden_norm.weight"])
        x = hidden if config.norm_before_residual else x
        read = torch.cat([read, hidden], -1)
    slots, heads = len(x), {}
    for name in "qkv":
        part = (read @ w[f"self_attn.{name}_proj.weight"].T).view(slots, -1, LAYER.head_dim)
        if config.qk_norm and name != "v":
            part = normed(part, w[f"self_attn.{name}_norm.weight"])
        part = part.transpose(0, 1)
        if name != "v":
            part = Rotary(LAYER)(part[None], torch.arange(slots))[0]
        heads[name] = part if name == "q" else part.repeat_interleave(2, 0)
    scores = heads["q"] @ heads["k"].transpose(1, 2) / LAYER.head_dim**0.5
    later = torch.ones(slots, slots).triu(1).bool()
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    x = x + (weights @ heads["v"]).transpose(0, 1).flatten(1) @ w["self_attn.o_proj.weight"].T
    y = normed(x, w["post_attention_layernorm.weight"])
    inner = silu(y @ w["mlp.gate_proj.weight"].T) * (y @ w["mlp.up_proj.weight"].T)
    return x + inner @ w["mlp.down_proj.weight"].T, weights.mean(0)[-1]


@torch.no_grad()
def anew(target: Target, drafter: Drafter, tokens: list[int]) -> dict[str, list[float]]:
    """The chain anchored at P, every slot of every layer computed again at every depth."""
    w, config = drafter.state_dict(), drafter.config
    table = w.get("embed_tokens.weight", target.state_dict()["model.embed_tokens.weight"])
    aux = torch.cat(target(torch.tensor([tokens[: P + 1]]), aux_layers=(1, 2)).aux, -1)[0]
    read = as_fc_reads(drafter, aux)
    states, ids = read @ w["fc.weight"].T, tokens[: P + 2]
    found: dict[str, list[float]] = {n: [] for n in (*MASSES, *PER_DEPTH, "token_ids")}
    found["aux_norm_rms"] = [float(x.square().mean().sqrt()) for x in read[P].chunk(2)]
    for _ in range(K):
        x = states
        for index in range(config.layer.num_hidden_layers):
            x, seen = layer_over(drafter, index, table[torch.tensor(ids[1:])], x)
            parts = seen.split(
                [N_SINK, PROMPT_TOKENS - N_SINK, P + 1 - PROMPT_TOKENS, len(seen) - P - 1]
            )
            for name, part in zip(MASSES, parts, strict=True):
                found[name].append(float(part.sum()))
        post = normed(x[-1], w["norm.weight"])
        fed = post if config.norm_output else x[-1]
        for name, vector in zip(PER_DEPTH[:4], (states[-1], x[-1], post, fed), strict=True):
            found[name].append(float(vector.square().mean().sqrt()))
        probs = (w["lm_head.weight"] @ post).softmax(0)
        found["top1"].append(float(probs.max()))
        found["entropy"].append(-float((probs * probs.log()).sum()))
        best = int(probs.argmax())
        ids = [*ids, best + (int(w["d2t"][best]) if "d2t" in w else 0)]
        found["token_ids"].append(ids[-1])
        states = torch.cat([states, fed[None]])
    return found


def test_replay_equals_running_the_drafter_anew(pair: Pair, tokens: list[int]) -> None:
    (chain,) = replay(*pair, tokens, PROMPT_TOKENS, [P], K, N_SINK)
    config = pair[1].config
    for name, expected in anew(*pair, tokens).items():
        if name == "aux_norm_rms" and not (config.fc_norm or config.norm_before_fc):
            assert chain.aux_norm_rms is None
        else:
            assert getattr(chain, name) == pytest.approx(expected, abs=1e-10), name


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_a_config_reads_back_as_it_was_written(name: str) -> None:
    assert DrafterConfig.from_hf(OPTIONS[name].to_hf()) == OPTIONS[name]


@pytest.mark.parametrize("name", ["draft vocabulary", "norm_before_fc", "qk_norm", "narrow"])
def test_a_speculators_config_says_the_same(name: str) -> None:
    config = OPTIONS[name]
    written = config.to_hf()
    fields = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": {
            **config.layer.to_hf(),
            "model_type": "qwen3" if config.qk_norm else "llama",
        },
        "eagle_aux_hidden_state_layer_ids": [1, 2],
        "draft_vocab_size": written["draft_vocab_size"],
        "target_hidden_size": config.target_hidden_size,
        "norm_before_fc": config.norm_before_fc,
    }
    assert DrafterConfig.from_hf(fields) == replace(config, norm_before_residual=True)
    fields["norm_before_residual"] = False
    assert DrafterConfig.from_hf(fields) == config
