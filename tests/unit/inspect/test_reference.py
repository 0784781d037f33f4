"""The reference drafters: their layers, options, chains, engine and recorded runs."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.reference_engine import MASSES, generate, record_run, replay
from torch import Tensor
from torch.nn.functional import silu

from driftscope.inspect.reference.config import (
    LATENT_DRAFTER,
    DecoderConfig,
    DrafterConfig,
    LatentConfig,
    default_aux_layers,
)
from driftscope.inspect.reference.drafter import ReferenceDrafter
from driftscope.inspect.reference.layers import (
    LatentAttention,
    RMSNorm,
    Rotary,
    Target,
    causal_attention,
)
from driftscope.trace.reader import read_trace
from driftscope.trace.records import edges_of
from driftscope.trace.segments import RELATIVE_ERROR
from driftscope.vocabulary import BY_DEPTH
from driftscope_lab.training.checkpoints import (
    drafter_fields,
    layer_fields,
    load_drafter,
    load_target,
    save_drafter,
    save_target,
)
from driftscope_lab.trio import encode, load_prompts, trio_path

SIZES = DecoderConfig(
    vocab_size=40,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=128,
)
LAYER = replace(SIZES, num_hidden_layers=1)
Pair = tuple[Target, ReferenceDrafter]


def random_weights(module: torch.nn.Module, seed: int) -> None:
    """Matrices wide enough that softmaxes are peaked, norm weights away from 1."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.copy_(values * 0.4 if parameter.dim() == 2 else 1 + 0.2 * values)


def random_pair(config: DrafterConfig) -> Pair:
    """Return a random target and drafter, the same on every call."""
    target, drafter = Target(SIZES), ReferenceDrafter(config)
    random_weights(target, seed=1)
    random_weights(drafter, seed=2)
    if size := config.draft_vocab_size:
        drafter.d2t.copy_(torch.arange(size) + 3)
    return target.double().eval(), drafter.double().eval()


EAGLE3 = DrafterConfig(layer=LAYER, aux_layers=(1, 2))
EAGLE31 = replace(EAGLE3, fc_norm=True, norm_output=True)


@pytest.fixture(params=[EAGLE3, EAGLE31], ids=["eagle3", "eagle31"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return random_pair(request.param)


@pytest.fixture
def tokens() -> list[int]:
    generator = torch.Generator().manual_seed(3)
    ids: list[int] = torch.randint(0, SIZES.vocab_size, (30,), generator=generator).tolist()
    return ids


def test_rms_norm_keeps_float64() -> None:
    norm = RMSNorm(4, 1e-5).double()
    x = torch.tensor([1.0, 2.0, 3.0, 4.0 + 1e-12], dtype=torch.float64)
    expected = x / (x.square().mean() + 1e-5).sqrt()
    assert norm(x).dtype is torch.float64
    assert torch.allclose(norm(x), expected, rtol=0, atol=1e-15)


def test_casting_a_model_leaves_its_positions_exact(pair: Pair) -> None:
    cos = pair[1].rotary.cos.clone()
    assert pair[1].to(torch.bfloat16).rotary.cos.equal(cos)


def test_saved_models_load_as_they_were(pair: Pair, tmp_path: Path) -> None:
    target, drafter = pair
    save_target(target, tmp_path / "target", torch.float64)
    save_drafter(drafter, tmp_path / "drafter", torch.float64)
    for saved, loaded in (
        (target, load_target(tmp_path / "target", torch.float64)),
        (drafter, load_drafter(tmp_path / "drafter", torch.float64)),
    ):
        assert loaded.config == saved.config
        for name, values in loaded.state_dict().items():
            assert values.equal(saved.state_dict()[name]), name


def test_configs_say_what_vllm_reads(pair: Pair, tmp_path: Path) -> None:
    save_target(pair[0], tmp_path / "target")
    save_drafter(pair[1], tmp_path / "drafter")
    target, drafter = (
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("target", "drafter")
    )
    assert (
        target.items()
        >= {
            "architectures": ["LlamaForCausalLM"],
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        }.items()
    )
    assert (
        drafter.items()
        >= {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": target["vocab_size"],
            "torch_dtype": "bfloat16",
        }.items()
    )
    assert drafter["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 2]


def test_absent_norm_flags_mean_eagle3_and_layers_may_be_named_at_the_top_alone(pair: Pair) -> None:
    fields = drafter_fields(pair[1].config)
    del fields["eagle_config"], fields["fc_norm"], fields["norm_output"]
    assert DrafterConfig.from_hf(fields) == EAGLE3


def test_a_config_without_auxiliary_layers_means_vllms_default(pair: Pair) -> None:
    unnamed = replace(pair[1].config, aux_layers=(2, 4, 5), names_aux_layers=False)
    fields = drafter_fields(unnamed)
    assert "layer_ids" not in json.dumps(fields)
    with pytest.raises(KeyError):
        DrafterConfig.from_hf(fields)
    assert DrafterConfig.from_hf(fields, target_layers=8) == unnamed
    with pytest.raises(ValueError, match="target of 6 are not three"):
        DrafterConfig.from_hf(fields, target_layers=6)


@pytest.mark.parametrize("layers", [7, 8, 32, 61])
@pytest.mark.slow
def test_default_layers_are_the_installed_vllms(layers: int) -> None:
    interfaces = pytest.importorskip("vllm.model_executor.models.interfaces")
    target = SimpleNamespace(model=SimpleNamespace(layers=range(layers)))
    theirs = interfaces.SupportsEagle3.get_eagle3_default_aux_hidden_state_layers(target)
    assert default_aux_layers(layers) == theirs


LATENT_SIZES = {
    "q_lora_rank": 12,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
LATENT_LAYER = DecoderConfig(
    hidden_size=32, num_attention_heads=3, head_dim=4, rms_norm_eps=1e-6, rope_theta=1e4
)
"""The epsilon is the one that transformers gives to the norms of the ranks."""
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 0.8,
    "mscale_all_dim": 1.2,
}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}


def _theirs(rope: dict[str, Any]) -> tuple[Any, Any]:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
        DeepseekV3Attention,
        DeepseekV3RotaryEmbedding,
    )

    config = DeepseekV3Config(
        hidden_size=32,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=64,
        rope_parameters=dict(rope),
        attn_implementation="eager",
        **LATENT_SIZES,
    )
    torch.manual_seed(1)
    return DeepseekV3Attention(config, 0).eval(), DeepseekV3RotaryEmbedding(config)


def _ours(theirs: Any, rotary: Any, rope: dict[str, Any], x: Tensor) -> Tensor:
    latent = LatentConfig.from_hf({**LATENT_SIZES, "rope_parameters": rope})
    layer = LatentAttention(LATENT_LAYER, latent, 32)
    layer.load_state_dict(theirs.state_dict())
    turn = Rotary(LATENT_LAYER, rotary.inv_freq, float(rotary.attention_scaling))
    positions = torch.arange(x.shape[1])
    keys, values = layer.keys_values(x, turn, positions)
    return layer.output(causal_attention(layer.queries(x, turn, positions), keys, values))


@pytest.mark.parametrize("rope", [PLAIN, YARN], ids=["plain", "yarn"])
@torch.no_grad()
def test_attention_is_that_of_transformers(rope: dict[str, Any]) -> None:
    theirs, rotary = _theirs(rope)
    x = torch.randn(1, 40, 32, generator=torch.Generator().manual_seed(2))
    turns = rotary(x, torch.arange(40)[None])
    hidden = torch.full((40, 40), float("-inf")).triu(1)[None, None]
    expected = theirs(x, turns, hidden)[0]
    torch.testing.assert_close(_ours(theirs, rotary, rope, x), expected, atol=2e-6, rtol=1e-4)


def test_scaled_positions_change_the_temperature() -> None:
    plain, scaled = (
        LatentConfig.from_hf({**LATENT_SIZES, "rope_scaling": r}) for r in (PLAIN, YARN)
    )
    assert plain.scale == 1.0
    assert scaled.scale == pytest.approx((0.1 * 1.2 * 1.3862943611 + 1) ** 2)


def test_a_config_of_latent_attention_is_read_as_it_is_written() -> None:
    plain = DrafterConfig(layer=LATENT_LAYER, aux_layers=(1, 2))
    assert DrafterConfig.from_hf({**drafter_fields(plain), **LATENT_SIZES}).latent is None
    config = replace(plain, latent=LatentConfig.from_hf(LATENT_SIZES))
    fields = drafter_fields(config)
    assert fields["architectures"] == [LATENT_DRAFTER]
    assert DrafterConfig.from_hf(fields) == config
    del fields["v_head_dim"]
    with pytest.raises(KeyError, match="v_head_dim"):
        DrafterConfig.from_hf(fields)


K = 4
TWO_LAYERS = replace(LAYER, num_hidden_layers=2)
OPTIONS = {
    "eagle3": EAGLE3,
    "eagle31": EAGLE31,
    "norm_before_fc": replace(EAGLE3, norm_before_fc=True),
    "both norms": replace(EAGLE3, norm_before_fc=True, fc_norm=True),
    "norm_before_residual": replace(EAGLE3, norm_before_residual=True),
    "draft vocabulary": replace(EAGLE3, draft_vocab_size=17),
    "two layers": replace(EAGLE3, layer=TWO_LAYERS),
    "three layers": replace(EAGLE3, layer=replace(LAYER, num_hidden_layers=3), norm_output=True),
    "narrow": replace(EAGLE3, layer=replace(LAYER, hidden_size=12), target_hidden_size=16),
    "qk_norm": replace(EAGLE3, qk_norm=True),
}


@pytest.fixture(params=sorted(OPTIONS))
def optional_pair(request: pytest.FixtureRequest) -> Pair:
    return random_pair(OPTIONS[request.param])


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + LAYER.rms_norm_eps).sqrt() * weight


def as_fc_reads(drafter: ReferenceDrafter, aux: Tensor) -> Tensor:
    """[slots, layers * width] captured states."""
    w, config = drafter.state_dict(), drafter.config
    if config.norm_before_fc:
        aux = normed(aux, w["input_norm.weight"])
    if config.fc_norm:
        parts = enumerate(aux.chunk(2, -1))
        aux = torch.cat([normed(x, w[f"fc_norm.{i}.weight"]) for i, x in parts], -1)
    return aux


def layer_over(
    drafter: ReferenceDrafter, index: int, embedding: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
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
def anew(
    target: Target,
    drafter: ReferenceDrafter,
    tokens: list[int],
    prompt_tokens: int,
    p: int,
    n_sink: int,
) -> dict[str, list[float]]:
    """One chain, every slot of every layer computed again at every depth."""
    w, config, edges = drafter.state_dict(), drafter.config, torch.tensor(edges_of(K))
    table = w.get("embed_tokens.weight", target.state_dict()["model.embed_tokens.weight"])
    aux = torch.cat(target(torch.tensor([tokens[: p + 1]]), aux_layers=(1, 2)).aux, -1)[0]
    read = as_fc_reads(drafter, aux)
    states, ids = read @ w["fc.weight"].T, tokens[: p + 2]
    names = (*MASSES, *BY_DEPTH, "token_ids", "distance_mass")
    found: dict[str, list[float]] = {name: [] for name in names}
    found["aux_norm_rms"] = [float(x.square().mean().sqrt()) for x in read[p].chunk(2)]
    for _ in range(K):
        x, slot = states, torch.arange(len(states))
        of_class = torch.where(slot < n_sink, 0, torch.where(slot < prompt_tokens, 1, 2))
        of_class[slot > p] = 3
        for index in range(config.layer.num_hidden_layers):
            x, seen = layer_over(drafter, index, table[torch.tensor(ids[1:])], x)
            for at, name in enumerate(MASSES):
                found[name].append(float(seen[of_class == at].sum()))
            bins = torch.zeros(len(edges), dtype=seen.dtype)
            distance = torch.searchsorted(edges, len(seen) - 1 - slot, right=True) - 1
            bins.index_add_(0, distance[of_class > 0], seen[of_class > 0])
            found["distance_mass"] += bins.tolist()
        post = normed(x[-1], w["norm.weight"])
        fed = post if config.norm_output else x[-1]
        for name, vector in zip(BY_DEPTH[:4], (states[-1], x[-1], post, fed), strict=True):
            found[name].append(float(vector.square().mean().sqrt()))
        probs = (w["lm_head.weight"] @ post).softmax(0)
        found["top1"].append(float(probs.max()))
        found["entropy"].append(-float((probs * probs.log()).sum()))
        best = int(probs.argmax())
        ids = [*ids, best + (int(w["d2t"][best]) if "d2t" in w else 0)]
        found["token_ids"].append(ids[-1])
        states = torch.cat([states, fed[None]])
    return found


@pytest.mark.parametrize(
    ("prompt_tokens", "n_sink"), [(8, 2), (10, 0), (3, 4), (1, 1), (28, 2), (12, 20)]
)
def test_replay_equals_running_the_drafter_anew(
    optional_pair: Pair, tokens: list[int], prompt_tokens: int, n_sink: int
) -> None:
    anchors, config = [0, 2, 12, 28], optional_pair[1].config
    chains = replay(*optional_pair, tokens, prompt_tokens, anchors, K, n_sink)
    assert [chain.position for chain in chains] == anchors
    for chain in chains:
        wanted = anew(*optional_pair, tokens, prompt_tokens, chain.position, n_sink)
        for name, expected in wanted.items():
            if name == "aux_norm_rms" and not (config.fc_norm or config.norm_before_fc):
                assert chain.aux_norm_rms is None
            else:
                assert getattr(chain, name) == pytest.approx(expected, abs=1e-10), name


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_a_config_reads_back_as_it_was_written(name: str) -> None:
    assert DrafterConfig.from_hf(drafter_fields(OPTIONS[name])) == OPTIONS[name]


@pytest.mark.parametrize("name", ["draft vocabulary", "norm_before_fc", "qk_norm", "narrow"])
def test_a_speculators_config_says_the_same(name: str) -> None:
    config = OPTIONS[name]
    written = drafter_fields(config)
    fields = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": {
            **layer_fields(config.layer),
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


PROMPT = [7, 3, 9, 21, 4, 4, 17]
OUTPUT_TOKENS = 60


@torch.no_grad()
def test_the_output_is_that_of_plain_greedy_decoding(pair: Pair) -> None:
    ids = torch.tensor([PROMPT])
    for _ in range(OUTPUT_TOKENS):  # one token at a time, no cache
        newest = pair[0].logits(pair[0](ids).hidden[:, -1:]).argmax(-1)
        ids = torch.cat([ids, newest], 1)
    greedy = tuple(ids[0, len(PROMPT) :].tolist())
    result = generate(*pair, PROMPT, OUTPUT_TOKENS, K)
    assert result.token_ids == greedy
    positions = [one.chain.position for one in result.rounds]
    assert positions[0] == len(PROMPT) - 1
    steps = [one.accepted + 1 for one in result.rounds]
    assert [b - a for a, b in itertools.pairwise(positions)] == steps[:-1]
    assert positions[-1] + steps[-1] >= len(PROMPT) + OUTPUT_TOKENS - 2
    stopped = generate(*pair, PROMPT, OUTPUT_TOKENS, K, eos_token_id=greedy[20])
    assert stopped.token_ids == greedy[: greedy.index(greedy[20]) + 1]


MAX_TOKENS = 12
DRAFTERS = ("eagle3", "eagle31")


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_recorded_run_holds_each_round(tmp_path: Path, name: str) -> None:
    run, weights = tmp_path / "run", trio_path()
    prompts = [encode(prompt.in_distribution) for prompt in load_prompts()[:2]]
    models = weights / "target", weights / name
    done = record_run(run, *models, prompts, k=K, max_tokens=MAX_TOKENS, label="held out")
    trace = read_trace(run)
    assert trace.problems == ()
    assert trace.manifest.norm_flags["fc_norm"] == (name == "eagle31")
    rounds = [
        (f"reference-{n}", round_) for n, result in enumerate(done) for round_ in result.rounds
    ]
    verified = trace.verify.select(["request", "position", "accepted"]).to_pylist()
    assert [tuple(row.values()) for row in verified] == [
        (request, made.chain.position, made.accepted) for request, made in rounds
    ]
    for row, (request, made) in zip(trace.draft.to_pylist(), rounds, strict=True):
        assert (row["request"], row["position"]) == (request, made.chain.position)
        for column in ("sink_mass", "self_mass", "fed_rms", "top1", "entropy", "aux_rms"):
            expected = getattr(made.chain, column)
            assert row[column] == pytest.approx(expected, rel=RELATIVE_ERROR), column
    for row, result, prompt in zip(trace.request.to_pylist(), done, prompts, strict=True):
        assert (row["prompt_tokens"], row["output_tokens"]) == (len(prompt), len(result.token_ids))
