"""The two attention kernels: one query per request, and several."""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor


def attend(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, hidden: Tensor | None
) -> Tensor:
    """Return [queries, heads, size] for keys and values [slots, kv_heads, size].

    `hidden` [queries, slots]: True where a query does not see a slot.
    """
    group = query.shape[1] // keys.shape[1]
    own, other = (part.float().repeat_interleave(group, dim=1) for part in (keys, values))
    scores = scale * torch.matmul(query.float().transpose(0, 1), own.permute(1, 2, 0))
    if hidden is not None:
        scores.masked_fill_(hidden, -torch.inf)
    out: Tensor = torch.matmul(scores.softmax(-1), other.transpose(0, 1)).transpose(0, 1)
    return out.to(query.dtype)


def _check_plain(logit_cap: float, cross: bool, window: int, sinks: Any) -> None:
    if logit_cap or cross or window > 0 or sinks is not None:
        raise NotImplementedError("only plain attention has a stand-in")


def decode_attention_cpu(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: float,
    v_scale: float,
    output: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool = False,
    sliding_window_size: int = 0,
    encoder_lens: Tensor | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Store each request's new key and value, then attend with its one query."""
    _check_plain(logit_cap, is_cross_attn, sliding_window_size, sinks)
    for cache, new in ((k_cache, key), (v_cache, value)):
        if new is not None:
            cache[loc] = new.reshape(-1, *cache.shape[1:]).to(cache.dtype)
    for row, (pool, length) in enumerate(zip(req_pool_indices, seq_lens, strict=True)):
        seen = req_to_token[pool, :length].long()
        output[row] = attend(query[row, None], k_cache[seen], v_cache[seen], sm_scale, None)[0]


def extend_attention_cpu(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    o: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_extend_len: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool = False,
    sliding_window_size: int = 0,
    encoder_lens: Tensor | None = None,
    sinks: Tensor | None = None,
    tree_mask: Tensor | None = None,
    is_causal: bool = True,
) -> None:
    """Attend with the last queries of each request; their keys and values are in the cache."""
    _check_plain(logit_cap, is_cross_attn, sliding_window_size, sinks)
    spans = zip(
        req_pool_indices.tolist(),
        seq_lens.tolist(),
        extend_seq_lens.tolist(),
        extend_start_loc.tolist(),
        strict=True,
    )
    read = 0
    for pool, length, new, first in spans:
        seen = req_to_token[pool, :length].long()
        slot = torch.arange(length)
        hidden = slot > torch.arange(length - new, length)[:, None]
        if tree_mask is not None:  # new x new flags for each request: which nodes a node sees
            flags = tree_mask[read : read + new * new].view(new, new)
            hidden[:, length - new :] = flags == 0
            read += new * new
        rows = slice(first, first + new)
        own = hidden if is_causal else None
        o[rows] = attend(q[rows], k_cache[seen], v_cache[seen], sm_scale, own)


_DECODE = """decode_attention_cpu(Tensor query, Tensor(a!) k_cache, Tensor(b!) v_cache,
float k_scale, float v_scale, Tensor(c!) output, Tensor? key, Tensor? value, Tensor loc,
Tensor attn_logits, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, float sm_scale,
float logit_cap, bool is_cross_attn=False, int sliding_window_size=0, Tensor? encoder_lens=None,
Tensor? sinks=None) -> ()"""
_EXTEND = """extend_attention_cpu(Tensor q, Tensor? k, Tensor? v, Tensor(a!) o, Tensor k_cache,
Tensor v_cache, float k_scale, float v_scale, Tensor req_to_token, Tensor req_pool_indices,
Tensor seq_lens, Tensor extend_seq_lens, Tensor extend_start_loc, int max_extend_len,
float sm_scale, float logit_cap, bool is_cross_attn=False, int sliding_window_size=0,
Tensor? encoder_lens=None, Tensor? sinks=None, Tensor? tree_mask=None, bool is_causal=True) -> ()"""
_library = torch.library.Library("sgl_kernel", "FRAGMENT")
for _schema, _function in ((_DECODE, decode_attention_cpu), (_EXTEND, extend_attention_cpu)):
    _library.define(" ".join(_schema.split()))
    _library.impl(_function.__name__, _function, "CPU")
