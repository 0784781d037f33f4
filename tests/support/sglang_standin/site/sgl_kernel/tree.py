"""The kernels that build and verify a tree of drafted tokens; a chain is a tree with one branch."""

from __future__ import annotations

import torch

Tensor = torch.Tensor
NONE = -1
"""Index of a node that does not exist."""


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    seq_lens: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Write each request's tree: node 0 is the last verified token, node i a selected draft."""
    nodes, flat, written = draft_token_num, tree_mask.view(-1), 0
    for request, context in enumerate(seq_lens.tolist()):
        parents = _parents(selected_index[request].tolist(), parent_list[request].tolist(), topk)
        sees = _ancestors(parents)
        child, sibling = _links(parents)
        block = slice(request * nodes, (request + 1) * nodes)
        positions.view(-1)[block] = (context - 1 + sees.sum(1)).to(positions.dtype)
        retrieve_index.view(-1)[block] = torch.arange(block.start, block.stop)
        retrieve_next_token.view(-1)[block] = torch.tensor(child)
        retrieve_next_sibling.view(-1)[block] = torch.tensor(sibling)
        for row in sees:
            if tree_mask_mode == 0:  # the mask also covers the verified context
                flat[written : written + context] = 1
                written += context
            flat[written : written + nodes] = row.to(flat.dtype)
            written += nodes


def _parents(selected: list[int], expanded: list[int], topk: int) -> list[int]:
    """Return each node's parent. Candidate c is a child of the candidate that `expanded` names for
    its group of `topk`; the first group's parent is the root."""
    groups = [candidate // topk for candidate in selected]
    return [NONE, *(0 if group == 0 else selected.index(expanded[group]) + 1 for group in groups)]


def _ancestors(parents: list[int]) -> Tensor:
    """Return [nodes, nodes]: whether a node sees another, itself included. Parents come first."""
    sees = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent != NONE:
            sees[node] |= sees[parent]
    return sees


def _links(parents: list[int]) -> tuple[list[int], list[int]]:
    """Return each node's first child and next sibling."""
    child, sibling = [NONE] * len(parents), [NONE] * len(parents)
    for node in reversed(range(1, len(parents))):
        sibling[node] = child[parents[node]]
        child[parents[node]] = node
    return child, sibling


def verify_tree_greedy_cpu(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Follow the target's own tokens from the root for as long as a child holds them."""
    own = target_predict.reshape(-1)
    for request in range(len(candidates)):
        flat, node, accepted = retrive_index[request], 0, 0
        while True:
            here = flat[node]
            accept_index[request, accepted] = here
            predicts[here] = own[here]
            node = int(retrive_next_token[request, node])
            while node != NONE and candidates[request, node] != own[here]:
                node = int(retrive_next_sibling[request, node])
            if node == NONE or accepted + 1 == accept_index.shape[1]:
                break
            accepted += 1
        accept_token_num[request] = accepted


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """Write the last accepted token of each request."""
    last = torch.arange(len(accept_lens)) * accept_stride + accept_lens.long() - 1
    bonus_tokens[:] = accept_tokens.view(-1)[last].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """Write the slots of the accepted nodes, without gaps."""
    kept = accept_index.flatten()
    slots = out_cache_loc[kept[kept >= 0].long()]
    accept_out_cache_loc[: len(slots)] = slots
