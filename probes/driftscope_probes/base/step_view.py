"""What a runner seam shows the recorder of one draft step: all that it may see of a runner."""

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
    """What the taps need of a recorded step, most of it on the engine's device."""

    rows: torch.Tensor
    """[B] int64: row of each request's first query in the depth-1 forward, its last verified slot;
    for a block drafter [B * K], all of a request's rows together."""
    position: torch.Tensor
    """[B] int64: p, that slot's position."""
    block_tables: Mapping[str, torch.Tensor]
    """Attention layer -> [>= B, blocks] int."""
    prompt_tokens: npt.NDArray[np.int64]
    """[B] prompt lengths, on the host."""
    max_context: int
    """No request's context is longer, before the chain."""


class DraftStep(NamedTuple):
    """A recorded call of the drafter for a batch of B requests, as the host knows it.

    It lies in the writer's queue for up to a second: nothing in it may keep a tensor alive, which
    is memory that vLLM believes to be free.
    """

    requests: tuple[str, ...]
    """Engine-internal request ids, B of them."""
    prefilling: bytes
    """[B], 1 where the prompt is not complete yet, so that nothing that is drafted counts."""
    k: int
    """Depths that will be drafted."""


class DraftCall(Protocol):
    """One call of the drafter, which has not run yet.

    Every step makes one and asks it for K; the rest is asked of a recorded step only, for NumPy's
    functions take ten times as long between two forwards as they do in a loop.
    """

    @property
    def k(self) -> Any:
        """Depths that will be drafted, a number unless vLLM has changed."""

    def step(self) -> DraftStep:
        """The batch, on the host."""

    def on_device(self) -> DeviceStep:
        """The same for the taps; as long as the drafter has not run."""

    def serve(self) -> Any:
        """The engine's own call; returns [B, K] int tokens."""

    def without_graphs(self) -> Any:
        """The same drafts, made eagerly; leaves the engine's inputs as they are, so that `serve`
        can follow it."""


class DraftCallBase(NamedTuple):
    """A call of `original`, a method of `owner` that drafts: what every seam's DraftCall begins
    with."""

    k: Any
    runner: Any
    owner: Any
    original: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def serve(self) -> Any:
        """As of a DraftCall."""
        return self.original(self.owner, *self.args, **self.kwargs)


_Call = TypeVar("_Call", bound=DraftCallBase)


make_draft_call: Callable[[type[_Call], tuple[Any, ...]], _Call] = tuple.__new__
"""One of a kind, of its fields; no function of Python's is called."""
