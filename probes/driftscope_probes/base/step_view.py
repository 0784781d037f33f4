"""The view of a draft step that a runner module gives the recorder: all it sees of a runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceStep:
    """Data that the taps need about a recorded step, most of it on the engine's device."""

    rows: torch.Tensor
    """[B] int64: row of each request's first query, its last verified slot, in the depth-1 forward;
    for a block drafter [B * K], with all rows of a request together."""
    position: torch.Tensor
    """[B] int64: position p of that slot."""
    block_tables: Mapping[str, torch.Tensor]
    """Attention layer -> [>= B, blocks] int."""
    prompt_tokens: npt.NDArray[np.int64]
    """[B] prompt lengths in tokens, on the host."""
    max_context: int
    """Upper bound of the requests' context lengths before the chain."""


class DraftStep(NamedTuple):
    """A recorded call of the drafter for a batch of B requests, with the data known on the host.

    It stays in the writer's queue for up to a second. No field may keep a tensor alive, because
    vLLM considers that memory free.
    """

    requests: tuple[str, ...]
    """Engine-internal request ids, B of them."""
    prefilling: bytes
    """[B] bytes: 1 if the request's prompt is not complete yet, so that its drafts do not count."""
    k: int
    """Number of depths that will be drafted."""


class DraftCall(Protocol):
    """One call of the drafter, which has not run yet.

    Every step creates one and reads its k. Everything else is computed for recorded steps only,
    because NumPy's functions take ten times as long between two forwards as they do in a loop.
    """

    @property
    def k(self) -> Any:
        """Number of depths that will be drafted; an int unless vLLM has changed."""

    def step(self) -> DraftStep:
        """Return the batch as known on the host."""

    def on_device(self) -> DeviceStep:
        """Return the batch as the taps need it; call this before the drafter runs."""

    def serve(self) -> Any:
        """Run the engine's own call; return [B, K] int tokens."""

    def without_graphs(self) -> Any:
        """Run the same drafts eagerly; keep the engine's inputs, so that `serve` can follow."""


class DraftCallBase(NamedTuple):
    """A call of `original`, a drafting method of `owner`: base of every runner's DraftCall."""

    k: Any
    runner: Any
    owner: Any
    original: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def serve(self) -> Any:
        """See DraftCall."""
        return self.original(self.owner, *self.args, **self.kwargs)


_Call = TypeVar("_Call", bound=DraftCallBase)


make_draft_call: Callable[[type[_Call], tuple[Any, ...]], _Call] = tuple.__new__
"""Builds an instance from its fields without running any Python function."""
