"""Attention mass of a chain's queries by class of slot, from the keys of a layer.

Definition: the softmax of q.k * scale over all visible slots (see
driftscope.trace.records.DraftRow), summed over the slots of a class. A chain's keys are all
in the engine's cache once it is drafted, so its K queries are measured together, after the last
depth: the keys are read once per chain, outside any graph in which the drafter ran.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import threshold

from driftscope.trace.records import DOUBLINGS, longest_of, reach_of
from driftscope.vocabulary import MASSES, NULL_MASS, SINK_MASS
from driftscope_probes.buffers import LEAST, Array, array_of, count_up, empty, lesser, tensor_of
from driftscope_probes.drafter import AttentionKind
from driftscope_probes.sink_search import RECENT, SLOTS

SCORES_AT_ONCE = {"cpu": 1 << 18}
"""Upper bound of the attention scores in one pass, in elements; more requests take more passes. On
a CPU a pass and the keys that it reads should fit in the core's cache."""
SCORES_ELSEWHERE = 1 << 24
NOTHING = 1e-34
"""Weight, relative to the highest, up to which it counts as zero: just above exp(LEAST)."""
SINK, NULL = MASSES.index(SINK_MASS), MASSES.index(NULL_MASS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainSlots:
    """B chains of K queries each; the depth-d query of request b is at slot position[b] + d - 1."""

    k: int
    position: Array
    """[B] int64: last verified slot."""
    prompt_tokens: Array
    """[B] int64: prompt lengths in tokens."""
    sink_slots: Array
    """[S] int64: sink slots, ascending; empty if there is no sink."""
    is_sink: Array
    """Sink slots as a mask; see `sink_mask`."""
    ahead: int = 0
    """Number of slots from `position` to the first query's own slot."""
    causal: bool = True
    """Whether a query sees no slot after its own; otherwise it sees all slots of the chain."""
    seen: int = 0
    """Lower bound of the number of slots that lie before all queries."""

    def __getitem__(self, some: slice) -> ChainSlots:
        """Return the chains of a subset of the requests."""
        return replace(self, position=self.position[some], prompt_tokens=self.prompt_tokens[some])


Score = Callable[[torch.Tensor], torch.Tensor]
"""Function from [B, kv_heads, Q, head_size] float32 queries to their products with keys, [B,
blocks, kv_heads, Q, size] float32. The blocks of slots cover every slot that a query sees; products
beyond them may have any value."""


def masses(
    queries: torch.Tensor,
    score: Score,
    chains: ChainSlots,
    kind: AttentionKind,
    distances: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return [B, K, heads, 5] float32 in the order of MASSES; NaN where a class cannot occur.

    `queries` [B, K, heads * head_size]. `distances` [B, K, bins] float32 receives the means over
    heads of the masses by distance, if it is given; queries must then be causal. Its bins are those
    of `driftscope.trace.records`.
    """
    slot, own, scores = _attend(queries, score, chains, kind)
    batch, blocks, _, _, size = scores.shape
    most = scores.amax(-1).amax(1)
    null = None
    if kind.sinks is not None:
        bias = kind.sinks.to(scores)[None, :, None]
        most = most.maximum(bias)
        null = (bias - most).exp_()
    weights = scores.sub_(most[:, None, ..., None]).clamp_min_(LEAST).exp_()
    hidden = 0 if kind.bounded else chains.seen // size
    threshold(weights[:, hidden:], NOTHING, 0.0, inplace=True)
    by_block = weights.view(batch, blocks, -1, size) @ _classes(chains, slot).mT
    sums = by_block.sum(1).view(batch, kind.heads, chains.k, NULL)
    sums_of_heads = array_of(sums.transpose(1, 2))
    total = sums_of_heads.sum(-1)
    out = empty((batch, chains.k, kind.heads, len(MASSES)), sums_of_heads)
    out[..., NULL] = torch.nan
    if null is not None:
        learned = array_of(null.transpose(1, 2))
        total = total + learned
        out[..., NULL] = learned / total
    out[..., :NULL] = sums_of_heads / total[..., None]
    if distances is not None:
        of_head = 1.0 / (tensor_of(total) * kind.heads)
        shares = torch.einsum("bnhks,bkh->bkns", weights, of_head).flatten(2)
        outside = tensor_of(out)[..., SINK + 1 : NULL].sum(-1).mean(-1)
        distances.copy_(_by_distance(shares, outside, chains, distances.shape[-1]))
    if not len(chains.sink_slots):
        out[..., SINK] = torch.nan
    elif kind.bounded:
        has_left = (chains.sink_slots[-1] < kind.first_seen(own))[..., None]
        tensor_of(out)[..., SINK].masked_fill_(tensor_of(has_left), torch.nan)
    return tensor_of(out)


def _by_distance(
    shares: torch.Tensor, outside: torch.Tensor, chains: ChainSlots, bins: int
) -> torch.Tensor:
    """Return [B, K, bins]: the share of the slots in each bin, from the [B, K, slots] shares.

    `outside` [B, K]: the share of all slots outside the sink set, which the bins sum to.
    """
    last = tensor_of(chains.position)[:, None, None]
    depth = torch.arange(chains.k, device=shares.device)[:, None]
    away = torch.arange(reach_of(bins), device=shares.device)
    slot = last + chains.ahead + depth - away
    at = slot.clamp(0, shares.shape[-1] - 1)
    is_sink = tensor_of(chains.is_sink)
    sink = torch.zeros_like(slot, dtype=torch.bool)
    if len(is_sink):
        sink = (is_sink[at.clamp_max(len(is_sink) - 1)] > 0) & (at < len(is_sink)) & (slot <= last)
    near = shares.gather(-1, at).masked_fill_((slot != at) | sink, 0.0)
    k = longest_of(bins)
    wider = [near[..., k << n : k << (n + 1)].sum(-1, keepdim=True) for n in range(DOUBLINGS)]
    out = torch.cat((near[..., :k], *wider), -1)
    return torch.cat((out, (outside - out.sum(-1)).clamp_min_(0.0)[..., None]), -1)


def slot_weights(
    queries: torch.Tensor, score: Score, chains: ChainSlots, kind: AttentionKind
) -> torch.Tensor:
    """Return [B, SLOTS + 1] float32: the depth-1 weight of each of the first slots, averaged over
    heads, then the average weight of a slot of the context that the query sees.

    NaN for a slot that the query does not see, or that is less than RECENT slots before it. For the
    arguments see `masses`.
    """
    slot, own, scores = _attend(queries, score, chains, kind)
    slot = slot.reshape(-1)
    first = _softmax(scores[:, :, :, 0].transpose(1, 2).flatten(2), kind.sinks).mean(1)
    valid = slot <= chains.position[:, None]
    if kind.bounded:
        valid &= slot >= kind.first_seen(own[:, :1])
    telling = tensor_of(valid & (slot <= own[:, :1] - RECENT))
    valid = tensor_of(valid)
    even = first.masked_fill(~valid, 0.0).sum(-1, keepdim=True) / valid.sum(-1, keepdim=True)
    out = first.new_full((len(queries), SLOTS + 1), torch.nan)
    shown = min(SLOTS, len(slot))
    out[:, :shown] = first.masked_fill(~telling, torch.nan)[:, :shown]
    out[:, SLOTS:] = even
    return out


def _attend(
    queries: torch.Tensor, score: Score, chains: ChainSlots, kind: AttentionKind
) -> tuple[Array, Array, torch.Tensor]:
    """Return the slots [blocks, size], the queries' own slots [B, K], and the scores [B, blocks,
    heads, K, size], -inf where a query does not see a slot."""
    batch, k = len(queries), chains.k
    groups = kind.heads // kind.kv_heads
    q = (queries.float() * kind.scale).view(batch, k, kind.kv_heads, groups, kind.head_size)
    # One product serves all depths and all heads that share keys.
    scores = score(q.permute(0, 2, 3, 1, 4).reshape(batch, kind.kv_heads, groups * k, -1))
    if kind.softcap:
        scores = (scores / kind.softcap).tanh_().mul_(kind.softcap)
    blocks, size = scores.shape[1], scores.shape[-1]
    scores = scores.view(batch, blocks, kind.heads, k, size)
    slot = count_up(blocks * size, chains.position)
    own = (chains.position + chains.ahead)[:, None] + slot[:k]
    slot = slot.reshape(blocks, size)
    by_slot = slot[None, :, None, None]
    last = (own if chains.causal else own[:, -1:])[:, None, None, :, None]
    # In a long context most blocks lie before all queries and need no mask.
    first_blocks = chains.seen // size
    scores[:, first_blocks:].masked_fill_(tensor_of(by_slot[:, first_blocks:] > last), -torch.inf)
    if kind.bounded:
        has_left = by_slot < kind.first_seen(own)[:, None, None, :, None]
        scores.masked_fill_(tensor_of(has_left), -torch.inf)
    return slot, own, scores


def _softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Return the softmax over the last dimension of [B, heads, N], with biases [heads]."""
    if sinks is None:
        return torch.softmax(scores, -1)
    bias = sinks.to(scores)[None, :, None].expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat((scores, bias), -1), -1)[..., :-1]


def sink_mask(slots: tuple[int, ...]) -> torch.Tensor:
    """Return [last slot + 1] float32: 1 at each of the slots, else 0."""
    mask = torch.zeros(max(slots, default=-1) + 1)
    mask[list(slots)] = 1.0
    return mask


def _classes(chains: ChainSlots, slot: Array) -> torch.Tensor:
    """Return [B, blocks, 4, size] float one-hot classes: sink, prompt, generated, self."""
    blocks, size = slot.shape
    # A class's slots extend from its edge to the next edge; sinks are removed from them below.
    edges = empty((len(chains.position), NULL + 1), slot, "int64")
    edges[:, :2] = 0
    edges[:, 3] = context = chains.position + 1
    edges[:, 2] = lesser(chains.prompt_tokens, context)
    edges[:, 4] = blocks * size
    reached = slot[:, None] >= edges[:, None, :, None]
    classes = empty((len(edges), blocks, NULL, size), slot)
    classes[:] = reached[:, :, :-1] > reached[:, :, 1:]
    known = chains.is_sink[: blocks * size]
    some = -(-len(known) // size)
    is_sink = empty((some * size,), slot)
    is_sink[: len(known)], is_sink[len(known) :] = known, 0.0
    is_sink = is_sink.reshape(some, size)
    first = classes[:, :some]
    first[:, :, 0] = (first[:, :, 1] + first[:, :, 2]) * is_sink
    first[:, :, 1:3] *= 1.0 - is_sink[:, None]
    return tensor_of(classes)


def at_once(batch: int, k: int, heads: int, slots: int, device: torch.device) -> int:
    """Return the number of requests whose scores fit into one pass, at least one."""
    bound = SCORES_AT_ONCE.get(device.type, SCORES_ELSEWHERE)
    return max(1, min(batch, bound // max(1, k * heads * slots)))
