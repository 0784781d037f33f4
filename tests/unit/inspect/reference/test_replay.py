"""Replay against its definitions written out again: one chain, one depth, one head at a time."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from driftscope.inspect.reference.chain import MASSES, PER_DEPTH, replay
from driftscope.inspect.reference.drafter import Drafter, Target
from driftscope.trace.records import edges_of

Pair = tuple[Target, Drafter]
K = 5


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).sum() / len(x) + eps) * weight


def rotated(x: Tensor, position: int, theta: float) -> Tensor:
    half = len(x) // 2
    out = x.clone()
    for i in range(half):
        angle = position * theta ** (-i / half)
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return out


@torch.no_grad()
def naive_chain(
    target: Target, drafter: Drafter, tokens: list[int], prompt_tokens: int, p: int, n_sink: int
) -> dict[str, list[float]]:
    """One chain, every slot's key made anew at every depth; plain vectors throughout."""
    w, c = drafter.state_dict(), drafter.config.layer
    embed = target.state_dict()["model.embed_tokens.weight"]
    aux = target(torch.tensor([tokens[: p + 1]]), aux_layers=drafter.config.aux_layers).aux
    group, size = c.num_attention_heads // c.num_key_value_heads, c.head_dim

    def fused(slot: int) -> Tensor:
        parts = [layer[0, slot] for layer in aux]
        if drafter.config.fc_norm:
            weights = [w[f"fc_norm.{i}.weight"] for i in range(len(parts))]
            parts = [norm(x, y, c.rms_norm_eps) for x, y in zip(parts, weights, strict=True)]
        mixed: Tensor = w["fc.weight"] @ torch.cat(parts)
        return mixed

    def projected(slot: int, name: str, head: int) -> Tensor:
        token = ids[slot + 1]
        x = torch.cat(
            [
                norm(embed[token], w["midlayer.input_layernorm.weight"], c.rms_norm_eps),
                norm(states[slot], w["midlayer.hidden_norm.weight"], c.rms_norm_eps),
            ]
        )
        y = (w[f"midlayer.self_attn.{name}.weight"] @ x)[head * size : (head + 1) * size]
        return y if name == "v_proj" else rotated(y, slot, c.rope_theta)

    ids = tokens[: p + 2]
    states = [fused(slot) for slot in range(p + 1)]
    record: dict[str, list[float]] = {
        name: [] for name in (*MASSES, *PER_DEPTH, "token_ids", "distance_mass")
    }
    for depth in range(1, K + 1):
        slot = p + depth - 1
        mean, outputs = torch.zeros(slot + 1, dtype=embed.dtype), []
        for head in range(c.num_attention_heads):
            query = projected(slot, "q_proj", head)
            keys = [projected(i, "k_proj", head // group) for i in range(slot + 1)]
            weights = torch.softmax(torch.stack([query @ k for k in keys]) / size**0.5, 0)
            values = [projected(i, "v_proj", head // group) for i in range(slot + 1)]
            outputs.append(sum(a * v for a, v in zip(weights, values, strict=True)))
            mean += weights / c.num_attention_heads
        x = states[slot] + w["midlayer.self_attn.o_proj.weight"] @ torch.cat(outputs)
        y = norm(x, w["midlayer.post_attention_layernorm.weight"], c.rms_norm_eps)
        gate, up = (w[f"midlayer.mlp.{name}_proj.weight"] @ y for name in ("gate", "up"))
        x = x + w["midlayer.mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)
        post = norm(x, w["norm.weight"], c.rms_norm_eps)
        probs = torch.softmax(w["lm_head.weight"] @ post, 0)
        fed = post if drafter.config.norm_output else x
        of_class = [
            3 if i > p else 0 if i < n_sink else 1 if i < prompt_tokens else 2
            for i in range(slot + 1)
        ]
        for index, name in enumerate(MASSES):
            record[name].append(
                sum(float(m) for m, k in zip(mean, of_class, strict=True) if k == index)
            )
        edges = edges_of(K)
        by_distance = [0.0] * len(edges)
        for i, (mass, k) in enumerate(zip(mean, of_class, strict=True)):
            if k != 0:
                by_distance[sum(edge <= slot - i for edge in edges) - 1] += float(mass)
        record["distance_mass"] += by_distance
        for name, vector in zip(PER_DEPTH[:4], (states[slot], x, post, fed), strict=True):
            record[name].append(float(vector.norm()) / len(vector) ** 0.5)
        record["top1"].append(float(probs.max()))
        record["entropy"].append(-float((probs * probs.log()).sum()))
        record["token_ids"].append(int(probs.argmax()))
        ids = [*ids, int(probs.argmax())]
        states.append(fed)
    return record


@pytest.mark.parametrize(
    ("prompt_tokens", "n_sink"), [(10, 4), (10, 0), (3, 4), (1, 1), (28, 2), (12, 20)]
)
def test_replay_equals_a_naive_loop(
    pair: Pair, tokens: list[int], prompt_tokens: int, n_sink: int
) -> None:
    anchors = [0, 2, 9, 10, 17, 28]
    chains = replay(*pair, tokens, prompt_tokens, anchors, K, n_sink)
    assert [chain.position for chain in chains] == anchors
    for chain in chains:
        naive = naive_chain(*pair, tokens, prompt_tokens, chain.position, n_sink)
        for name, expected in naive.items():
            assert getattr(chain, name) == pytest.approx(expected, abs=1e-10), name


def test_masses_sum_to_one_and_self_is_empty_at_depth_one(pair: Pair, tokens: list[int]) -> None:
    for chain in replay(*pair, tokens, 12, range(29), K):
        masses = zip(*(getattr(chain, name) for name in MASSES), strict=True)
        assert [sum(row) for row in masses] == pytest.approx([1.0] * K, abs=1e-12)
        bins = torch.tensor(chain.distance_mass).reshape(K, -1).sum(-1) + torch.tensor(
            chain.sink_mass
        )
        assert bins.tolist() == pytest.approx([1.0] * K, abs=1e-6)
        assert chain.self_mass[0] == 0.0
        assert all(mass > 0 for mass in chain.self_mass[1:])


def test_a_context_inside_the_sink_set_is_all_sink(pair: Pair, tokens: list[int]) -> None:
    (chain,) = replay(*pair, tokens, 12, [2], K, n_sink=4)
    assert chain.sink_mass[0] == pytest.approx(1.0)
    assert chain.prompt_mass == chain.generated_mass == (0.0,) * K


def test_what_is_fed_is_what_enters_the_next_depth(pair: Pair, tokens: list[int]) -> None:
    (chain,) = replay(*pair, tokens, 12, [20], K)
    assert chain.in_rms[0] == chain.fc_rms
    assert chain.in_rms[1:] == chain.fed_rms[:-1]
    norm_output = pair[1].config.norm_output
    assert chain.fed_rms == (chain.postnorm_rms if norm_output else chain.prenorm_rms)


def test_only_eagle31_has_normed_captured_states(pair: Pair, tokens: list[int]) -> None:
    (chain,) = replay(*pair, tokens, 12, [20], K)
    assert len(chain.aux_rms) == 2
    assert (chain.aux_norm_rms is not None) is pair[1].config.fc_norm


def test_float32_is_close_to_float64(
    make_pair: Callable[[torch.dtype], Pair], tokens: list[int]
) -> None:
    anchors = [5, 15, 25]
    exact = replay(*make_pair(torch.float64), tokens, 12, anchors, K)
    rounded = replay(*make_pair(torch.float32), tokens, 12, anchors, K)
    for one, other in zip(exact, rounded, strict=True):
        assert other.token_ids == one.token_ids
        for name in (*MASSES, *PER_DEPTH):
            assert getattr(other, name) == pytest.approx(getattr(one, name), abs=1e-4), name


def test_an_anchor_without_a_next_token_is_refused(pair: Pair, tokens: list[int]) -> None:
    with pytest.raises(ValueError, match=r"anchors must lie in 0\.\.28"):
        replay(*pair, tokens, 12, [29], K)
    assert replay(*pair, tokens, 12, [], K) == []
