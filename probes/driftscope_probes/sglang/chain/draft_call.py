"""One call of SGLang's drafter; see `DraftCall`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from driftscope_probes.engine import NOBODY, DeviceStep, DraftStep

DRAFT_GRAPH = "cuda_graph_runner"
EXTEND_GRAPH = "cuda_graph_runner_for_draft_extend"
"""Attributes of an EagleDraftWorker: with None in them, its forwards run eagerly."""


class SglangDraftCall:
    """A call of `EagleDraftWorker.draft`, whose chains begin with a depth that is known already."""

    __slots__ = ("_batch", "_first", "_layers", "_missing", "_original", "_worker", "result")

    def __init__(
        self,
        worker: Any,
        batch: Any,
        original: Callable[[], Any],
        *,
        layers: tuple[str, ...] = (),
        missing: frozenset[str] = NOBODY,
        first: Callable[[], None] = lambda: None,
    ) -> None:
        """`layers`: names of the drafter's attention layers. `missing`: requests whose first depth
        is not known; `first` passes on that of the others."""
        self._worker, self._batch, self._original = worker, batch, original
        self._layers, self._missing, self._first = layers, missing, first
        self.result: Any = None
        """Result of SGLang's method."""

    @property
    def k(self) -> Any:
        """See DraftCall."""
        return self._worker.speculative_num_steps

    def step(self) -> DraftStep:
        """See DraftCall."""
        names = tuple(req.rid for req in self._batch.reqs)
        missing = bytes(name in self._missing for name in names)
        return DraftStep(names, missing, self.k)

    def on_device(self) -> DeviceStep:
        """See DraftCall: the first query is that of the last verified slot."""
        worker, batch = self._worker, self._batch
        count, lengths = len(batch.reqs), batch.seq_lens.long()
        table = worker.req_to_token_pool.req_to_token
        # An overlapped step before this one may not have added its tokens to the requests yet.
        unseen = 2 * worker.speculative_num_draft_tokens
        context = max(len(req.origin_input_ids) + len(req.output_ids) for req in batch.reqs)
        context = min(context + unseen, table.shape[1])
        slots = table[batch.req_pool_indices.long(), :context]
        return DeviceStep(
            rows=torch.arange(count, device=lengths.device),
            position=lengths - 1,
            block_tables=dict.fromkeys(self._layers, slots),
            prompt_tokens=np.array([len(req.origin_input_ids) for req in batch.reqs], np.int64),
            max_context=context,
        )

    def serve(self) -> torch.Tensor | None:
        """See DraftCall; None if the tokens are not where they are expected."""
        self.result = self._original()
        tokens = getattr(self.result, "draft_token", None)
        count = len(self._batch.reqs)
        if not isinstance(tokens, torch.Tensor) or tokens.numel() % count:
            return None
        return tokens.reshape(count, -1)[:, 1:]  # the first is the last verified token

    def without_graphs(self) -> torch.Tensor | None:
        """See DraftCall."""
        self._first()
        drafts: torch.Tensor | None = without_graph(self._worker, DRAFT_GRAPH, self.serve)
        return drafts


def without_graph(worker: Any, graph: str, run: Callable[[], Any]) -> Any:
    """Return what `run` returns, with a worker's CUDA graph set aside."""
    captured = getattr(worker, graph, None)
    setattr(worker, graph, None)
    try:
        return run()
    finally:
        setattr(worker, graph, captured)
