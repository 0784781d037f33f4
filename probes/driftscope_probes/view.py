"""What a runner seam knows of one draft step, frozen: all that the recorder may see of a runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceStep:
    """What the taps need of a step, most of it on the engine's device; made only for a recorded
    one."""

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
    """One call of the drafter for a batch of B requests, as the host knows it.

    Made for every step, so that nothing in it may cost anything: NumPy's functions take ten times
    as long between two forwards as they do in a loop. It lies in the writer's queue for up to a
    second: nothing in it may keep a tensor alive, which is memory that vLLM believes to be free.
    """

    requests: tuple[str, ...]
    """Engine-internal request ids, B of them."""
    prefilling: Callable[[], bytes]
    """[B] bytes, 1 where the prompt is not complete yet, so that nothing that is drafted counts.
    Of things that the runner does not change any more: called on the writer's thread."""
    k: int
    """Depths that will be drafted."""
    doubtful: tuple[str, ...] = ()
    """Requests, also others than the step's, in whose slots of the drafter's KV cache the runner is
    now known to have left something wrong, other than by a prompt in chunks."""


Drafting = tuple[DraftStep, Callable[[], DeviceStep]]
"""A step, and what makes the rest of it if it is recorded, as long as the drafter has not run."""
