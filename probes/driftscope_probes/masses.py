"""Attention mass of a chain's queries by class of slot, from the keys of a layer.

Definition: the softmax of q.k * scale over all visible slots (see
driftscope.trace.records.DraftRow), summed over the slots of a class. A chain's keys all lie in the
engine's cache once it is drafted, so its K queries are measured together, after the last depth: the
keys are read once per chain, outside whatever graph the drafter ran in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from driftscope_probes.buffers import MASSES
from driftscope_probes.sinks import RECENT, SLOTS

SCORES_AT_ONCE = 1 << 24
"""Bound of the attention scores that a pass holds, in elements; more requests take more passes."""
SINK, NULL = MASSES.index("sink_mass"), MASSES.index("null_mass")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionKind:
    """How one layer attends, read off the layer itself."""

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    window: int | None = None
    """Slots that a query sees, itself included; None: all."""
    softcap: float = 0.0
    """Scores become softcap * tanh(score / softcap); 0: as they are."""
    sinks: torch.Tensor | None = None
    """[heads] learned biases: a slot without a value, whose mass is the class `null`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chains:
    """B chains of K queries each; request b's query of depth d is slot position[b] + d - 1."""

    k: int
    position: torch.Tensor
    """[B] int64: last verified slot."""
    prompt_tokens: torch.Tensor
    """[B] int64."""
    sink_slots: torch.Tensor
    """[S] int64, ascending; none where there is no sink."""
    ahead: int = 0
    """Slots from `position` to the first query's own."""
    causal: bool = True
    """A query sees no slot after its own; else all of the chain's."""

    def __getitem__(self, some: slice) -> Chains:
        """The chains of some of the requests."""
        return replace(self, position=self.position[some], prompt_tokens=self.prompt_tokens[some])


Score = Callable[[torch.Tensor], torch.Tensor]
"""[B, kv_heads, Q, head_size] float32 queries -> [B, kv_heads, Q, N] float32, their products with
the keys of N slots, more than every slot that a query sees; what lies beyond may be anything."""


def masses(
    queries: torch.Tensor, score: Score, chains: Chains, kind: AttentionKind
) -> torch.Tensor:
    """[B, K, heads, 5] float32 in the order of MASSES; NaN where a class cannot be.

    `queries` [B, K, heads * head_size].
    """
    batch = len(queries)
    slot, own, _, weights, null = _attend(queries, score, chains, kind)
    found = weights.view(batch, -1, len(slot)) @ _classes(chains, slot)
    out = torch.cat((found.view(batch, kind.heads, chains.k, 4), null.unsqueeze(-1)), dim=-1)
    out = out.transpose(1, 2)
    if not len(chains.sink_slots):
        out[..., SINK] = torch.nan
    elif kind.window is not None:
        out[..., SINK].masked_fill_(_sink_out_of_sight(chains, own, kind.window), torch.nan)
    if kind.sinks is None:
        out[..., NULL] = torch.nan
    return out


def slot_weights(
    queries: torch.Tensor, score: Score, chains: Chains, kind: AttentionKind
) -> torch.Tensor:
    """[B, SLOTS + 1] float32: weight of each of the first slots at depth 1, mean over heads, then
    what a slot of the context that the query sees holds on average.

    NaN for a slot that the query does not see, or that is less than RECENT before it. Arguments as
    for `masses`.
    """
    slot, own, hidden, weights, _ = _attend(queries, score, chains, kind)
    first = weights[:, :, 0].mean(1)
    seen = ~hidden[:, 0] & (slot <= chains.position[:, None])
    even = first.masked_fill(~seen, 0.0).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)
    telling = seen & (slot <= own[:, :1] - RECENT)
    out = first.new_full((len(queries), SLOTS + 1), torch.nan)
    shown = min(SLOTS, len(slot))
    out[:, :shown] = first.masked_fill(~telling, torch.nan)[:, :shown]
    out[:, SLOTS:] = even
    return out


def _attend(
    queries: torch.Tensor, score: Score, chains: Chains, kind: AttentionKind
) -> tuple[torch.Tensor, ...]:
    """Slots [N], the queries' own [B, K], which are hidden from them [B, K, N], the weights
    [B, heads, K, N], and the learned bias's share [B, heads, K]."""
    batch, k = len(queries), chains.k
    groups = kind.heads // kind.kv_heads
    q = queries[:, :k].float().view(batch, k, kind.kv_heads, groups, kind.head_size) * kind.scale
    # One product for all depths and for all heads that share keys.
    scores = score(q.permute(0, 2, 3, 1, 4).reshape(batch, kind.kv_heads, groups * k, -1))
    if kind.softcap:
        scores = (scores / kind.softcap).tanh_().mul_(kind.softcap)
    n, device = scores.shape[-1], scores.device
    scores = scores.view(batch, kind.heads, k, n)
    slot = torch.arange(n, device=device)
    own = chains.position[:, None] + chains.ahead + torch.arange(k, device=device)  # [B, K]
    last = own if chains.causal else own[:, -1:].expand_as(own)
    hidden = slot > last[..., None]
    if kind.window is not None:
        hidden |= slot <= own[..., None] - kind.window
    scores.masked_fill_(hidden[:, None], -torch.inf)
    return slot, own, hidden, *_softmax(scores, kind.sinks)


def _softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Over the last dimension of [B, heads, K, N]; the bias's own share, [B, heads, K]."""
    if sinks is None:
        return torch.softmax(scores, -1), scores.new_zeros(scores.shape[:-1])
    bias = sinks.to(scores)[None, :, None, None].expand(*scores.shape[:-1], 1)
    weights = torch.softmax(torch.cat((scores, bias), -1), -1)
    return weights[..., :-1].contiguous(), weights[..., -1]


def _classes(chains: Chains, slot: torch.Tensor) -> torch.Tensor:
    """[B, N, 4] float one-hot: sink, prompt, generated, self."""
    own = slot > chains.position[:, None]
    sink = torch.isin(slot, chains.sink_slots) & ~own
    prompt = (slot < chains.prompt_tokens[:, None]) & ~own & ~sink
    return torch.stack((sink, prompt, ~(own | sink | prompt), own), -1).float()


def _sink_out_of_sight(chains: Chains, own: torch.Tensor, window: int) -> torch.Tensor:
    """[B, K, 1]: no sink slot is within the window."""
    return (chains.sink_slots[-1] <= own - window)[..., None]


def at_once(batch: int, k: int, heads: int, slots: int) -> int:
    """Requests whose scores fit into one pass, at least one."""
    return max(1, min(batch, SCORES_AT_ONCE // max(1, k * heads * slots)))
