"""The tree of n-gram drafts, from the mask of its nodes' ancestors."""

from __future__ import annotations

import torch


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Write, for each node [B, n], its position, its place in the batch, its first child and its
    next sibling; -1 where there is none.

    `tree_mask` [B * n * n]: whether node j is an ancestor of node i. The contract is that of
    sglang.kernels.ops.speculative.reconstruct_tree, 0.5.23.
    """
    n, size = draft_token_num, (batch_size, draft_token_num)
    above = tree_mask.view(batch_size, n, n).bool().tril(-1)
    order = torch.arange(n)
    parent = torch.where(above, order, -1).amax(-1)  # [B, n]
    child = torch.where(above.transpose(1, 2), order, n).amin(-1)
    alike = (parent[:, None, :] == parent[:, :, None]) & (order[None, :] > order[:, None])
    sibling = torch.where(alike, order, n).amin(-1)
    positions.view(size).copy_(above.sum(-1) + verified_seq_len[:, None])
    retrieve_index.view(size).copy_(torch.arange(batch_size * n).view(size))
    retrieve_next_token.view(size).copy_(torch.where(child < n, child, -1))
    has = (parent >= 0) & (sibling < n)
    retrieve_next_sibling.view(size).copy_(torch.where(has, sibling, -1))
