"""Drafts chains from given anchors of a given token sequence, without generating."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from driftscope.inspect.reference.chain import Chain, draft_chains
from driftscope.inspect.reference.model import Drafter, Target

DEFAULT_N_SINK = 4
"""Number of slots counted as sink unless the data shows another sink set."""


@torch.no_grad()
def replay(
    target: Target,
    drafter: Drafter,
    tokens: Sequence[int],
    prompt_tokens: int,
    anchors: Sequence[int],
    k: int,
    n_sink: int = DEFAULT_N_SINK,
) -> list[Chain]:
    """Draft K tokens from each anchor p, given the true tokens 0..p+1 before it.

    The replay is teacher-forced and vectorised over the anchors. It repeats what a run drafted at
    position p of the same tokens, and computes in the dtype of the models.

    Raises ValueError for an anchor whose next token is not among `tokens`.
    """
    if not anchors:
        return []
    if min(anchors) < 0 or max(anchors) > len(tokens) - 2:
        raise ValueError(
            f"anchors must lie in 0..{len(tokens) - 2}: the token after each is needed; "
            f"got {min(anchors)}..{max(anchors)}"
        )
    ids = torch.tensor([list(tokens)])
    positions = torch.tensor(list(anchors))
    aux = target(ids[:, :-1], aux_layers=drafter.config.aux_layers).aux
    return draft_chains(
        target,
        drafter,
        anchors=positions,
        next_ids=ids[0, positions + 1],
        aux=tuple(layer[:, positions] for layer in aux),
        context=drafter.context(drafter.embed(ids[:, 1:], target), drafter.fuse(aux)),
        prompt_tokens=prompt_tokens,
        k=k,
        n_sink=n_sink,
    )
