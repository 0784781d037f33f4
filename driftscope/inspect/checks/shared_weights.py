"""Checks a drafter's embedding and head against the target's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from driftscope.inspect.checks.check_result import Certainty, CheckResult, Inspected, Level
from driftscope.inspect.checks.engine_rules import VLLM_LOADER
from driftscope.inspect.checks.expected_tensors import EMBEDDING
from driftscope.inspect.files.safetensors_file import StoredTensor

UNLIKE_BELOW = 0.5
"""Mean cosine of a token's row in both embeddings below which they count as unrelated. Rows of
independent embeddings have a cosine near 0; fine-tuned ones stay near 1."""
SAMPLED_ROWS = 4096
"""Rows that are compared, spread evenly over the vocabulary."""


def check_width(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield a width of captured states that is not the target's."""
    drafter, target = inspected.drafter, inspected.target
    if target is not None and drafter.target_hidden_size != target.hidden_size:
        yield CheckResult(
            id="target_width",
            level=Level.ERROR,
            title="the drafter was made for a target of another width",
            expected=f'"target_hidden_size": {target.hidden_size}',
            rule="fc reads the target's states, whose width is its hidden_size",
            there=f"{drafter.target_hidden_size}",
            change="use a drafter of this target",
        )


def check_embedding(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield how the drafter's embedding relates to the target's, if both are there."""
    own = inspected.drafter.tensors.get(EMBEDDING)
    targets = inspected.target.embedding() if inspected.target else None
    if own is None or targets is None or own.shape != targets.shape:
        return
    if not (own.is_float and targets.is_float):
        return
    first, second = _sampled(own), _sampled(targets)
    cosine = mean_cosine(first, second)
    if np.array_equal(first, second):
        yield CheckResult(
            id="embedding_copied",
            level=Level.NOTE,
            title="the embedding is a copy of the target's",
            expected="no copy is needed",
            rule=f"{VLLM_LOADER}: shares the target's if the drafter has none",
            there=f"{own.bytes / 1e6:.0f} MB that could be left out",
        )
    elif cosine < UNLIKE_BELOW:
        yield CheckResult(
            id="embedding_not_targets",
            level=Level.WARNING,
            title="the embedding is not the target's",
            expected="the target's embedding, copied or fine-tuned",
            rule="EAGLE trains with the target's embedding",
            there=f"rows of both have a mean cosine of {cosine:.2f}",
            change="leave embed_tokens out of the weights; with --target this is tried",
            certainty=Certainty.LIKELY,
        )


def mean_cosine(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """Return the mean cosine of corresponding rows, [rows, width] each."""
    sizes = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    products = (first * second).sum(axis=1)
    return float(np.mean(products / np.where(sizes > 0, sizes, 1)))


def _sampled(tensor: StoredTensor) -> NDArray[np.float32]:
    rows = tensor.shape[0]
    index = np.unique(np.linspace(0, rows - 1, min(rows, SAMPLED_ROWS)).astype(np.int64))
    return np.asarray(tensor.rows(index), np.float32)
