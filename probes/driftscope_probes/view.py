"""What a runner seam knows of one draft step, frozen: all that the recorder may see of a runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftStep:
    """One call of the drafter for a batch of B requests. Tensors are on the engine's device."""

    requests: tuple[str, ...]
    """Engine-internal request ids, B of them."""
    prompt_tokens: npt.NDArray[np.int64]
    """[B] prompt lengths."""
    rows: torch.Tensor
    """[B] int64: row of each request's last verified slot in the depth-1 forward."""
    position: torch.Tensor
    """[B] int64: p, that slot's position."""
    prefilling: torch.Tensor | npt.NDArray[np.bool_]
    """[B] bool: the prompt is not complete yet, so nothing that is drafted counts."""
    k: int
    """Depths that will be drafted."""
