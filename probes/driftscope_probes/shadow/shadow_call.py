"""A call of a drafter that can also run under an intervention, as a runner's module offers it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from driftscope_probes.base.step_view import DraftCall


class VerifiedStep(NamedTuple):
    """The target's tokens in a step that has just been verified, of B requests in N rows."""

    starts: torch.Tensor
    """[B + 1] int: row of each request's first token."""
    rows: torch.Tensor
    """[B] int: row of each request's last verified token; rows after it were rejected."""
    positions: torch.Tensor
    """[N] int: position of each row's token."""
    tokens: torch.Tensor
    """[N] int: ids of the tokens that the target read."""
    newest: torch.Tensor
    """[B] int: id of the token that the target produced last, one position after `rows`."""


class ShadowCall(DraftCall, Protocol):
    """A call of the drafter that can first draft chains which are not served."""

    def under(self, intervention: str) -> torch.Tensor:
        """Draft under an intervention; return [B, K] int tokens. Keep the engine's inputs, so that
        `serve` can follow and overwrite whatever the chain left in the drafter's cache."""

    def verified(self) -> VerifiedStep:
        """Return the step's tokens on the device; call this before `serve`."""
