"""The kernels that assign and move slots of the KV cache.

`req_to_token` [pool rows, slots] is SGLang's table of each request's slots.
"""

from __future__ import annotations

import ctypes

import torch

Tensor = torch.Tensor


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Write the `topk * num_steps` slots after each request's committed ones."""
    wanted = topk * num_steps
    at = seq_lens.long().unsqueeze(1) + torch.arange(wanted)
    rows = req_to_token.index_select(0, req_pool_indices.long())
    out_cache_loc[:] = rows.gather(1, at).flatten().to(out_cache_loc.dtype)


def _spans(pool: Tensor, start: Tensor, end: Tensor) -> list[tuple[int, slice, slice]]:
    """Return (pool row, slots of that row, places in a flat list) for each request."""
    spans, place = [], 0
    for row, first, after in zip(pool.tolist(), start.tolist(), end.tolist(), strict=True):
        spans.append((row, slice(first, after), slice(place, place + after - first)))
        place += after - first
    return spans


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write each request's slots from start to end, one request after another."""
    for row, slots, places in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[places] = req_to_token[row, slots].to(out_cache_loc.dtype)


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Enter new slots in the table: the inverse of `assign_extend_cache_locs_cpu`."""
    for row, slots, places in _spans(req_pool_indices, start_offset, end_offset):
        req_to_token[row, slots] = out_cache_loc[places].to(req_to_token.dtype)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """Return a table with a row for each branch: the request's slots, then the branch's own."""
    table = req_to_token[req_pool_indices.long()].repeat_interleave(topk, dim=0)
    for row in range(len(table)):
        request, branch = divmod(row, topk)
        committed = int(seq_lens[request])
        own = committed + branch * num_steps
        source = req_to_token[req_pool_indices[request]]
        table[row, committed : committed + num_steps] = source[own : own + num_steps]
    return table


def copy_all_layer_kv_cache_cpu(
    data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor
) -> None:
    """Copy slots in every layer's buffer, which is given by address and bytes per slot."""
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for address, size in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        contents = [ctypes.string_at(address + slot * size, size) for slot in sources]
        for slot, content in zip(targets, contents, strict=True):
            ctypes.memmove(address + slot * size, content, size)
