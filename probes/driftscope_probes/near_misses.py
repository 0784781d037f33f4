"""Measures, at the step that verifies a recorded chain, how nearly its rejected token was right.

The drafter's logits are kept from the chain until then; the target's are those that the engine has
just verified with. Where Python sees no logits, as inside a CUDA graph, nothing is measured.
"""

from __future__ import annotations

from typing import Any

import torch

from driftscope_probes.buffers import HostRing
from driftscope_probes.drafter import Drafter
from driftscope_probes.engine import Verification
from driftscope_probes.step_record import Capture

MOST_LOGITS = 1 << 24
"""Number of logits of a chain's batch, over all depths, above which none are kept: they would take
more than 64 MiB of the device's memory."""
FIGURES = 3
"""Numbers of a chain: rank of the target's token in the drafter's logits, closeness of the rejected
token, and whether the request's own top-k or top-p excludes it; see DraftRow."""


class KeptLogits:
    """The near misses of the chain that was drafted last.

    ==================  =====================================================================
    `begin()`           discard what is kept; a chain whose logits are wanted begins
    `keep(logits)`      keep the logits of one forward
    `drafted(...)`      the chain is recorded, and waits for the step that verifies it
    `verified(...)`     measure it there
    ==================  =====================================================================
    """

    def __init__(self, drafter: Drafter) -> None:
        self._change = drafter.samples or drafter.compiled
        self._ring = HostRing(drafter.max_requests, FIGURES, drafter.device)
        self._logits = list[torch.Tensor]()
        self._capture: Capture | None = None
        self._drafts: Any = None
        self.wanted, self.waiting = False, False
        """Whether the logits of the chain in progress are kept; whether a chain waits for its
        verification. Hooks ask this in every step."""

    def begin(self, *, wanted: bool) -> None:
        """Discard what is kept; keep the logits of the chain that begins if they are `wanted`."""
        self.wanted, self.waiting = wanted, False
        self._logits.clear()
        self._capture = self._drafts = None

    def keep(self, logits: torch.Tensor) -> None:
        """Keep the logits [rows, vocabulary] of one depth, or of all of them by request."""
        if not self.wanted:
            return
        if sum(map(torch.Tensor.numel, self._logits)) + logits.numel() > MOST_LOGITS:
            self.begin(wanted=False)
        else:
            self._logits.append(logits.clone() if self._change else logits)

    def drafted(self, capture: Capture, drafts: Any) -> None:
        """Wait for the verification of the tokens `drafts` [B, K] of a recorded chain."""
        if self._logits:
            self._capture, self._drafts, self.waiting = capture, drafts, True
            capture.awaited = True

    def verified(self, step: Verification) -> None:
        """Measure the chain that waits, and start copying its numbers to the host."""
        capture, drafts, vocabulary = self._capture, self._drafts, step.logits.shape[-1]
        if capture is None:
            return
        own = {request: row for row, request in enumerate(capture.step.requests)}
        pairs = [
            (at, own[request], first, count)
            for at, (request, first, count) in enumerate(
                zip(step.requests, step.first_rows, step.drafted, strict=True)
            )
            if count > 0 and request in own
        ]
        if pairs and len(pairs) * vocabulary <= MOST_LOGITS:
            device = step.logits.device
            index = torch.tensor(pairs, device=device).unbind(1)
            logits = self._by_depth(len(own))
            rows, figures = _measured(step, index, drafts, logits, waits=device.type == "cpu")
            if len(rows):
                numbers = torch.full((len(own), FIGURES), torch.nan, device=device)
                numbers[rows] = figures
                capture.near_misses = self._ring.send(numbers)
        self.begin(wanted=False)

    def _by_depth(self, batch: int) -> list[torch.Tensor]:
        """Return the logits of each depth, [at least B, vocabulary]."""
        if len(self._logits) > 1:
            return self._logits
        (logits,) = self._logits
        depths = logits.shape[0] // batch
        by_request = logits[: batch * depths].view(batch, depths, -1)
        return list(by_request.unbind(1))


def _measured(
    step: Verification,
    index: tuple[torch.Tensor, ...],
    drafts: torch.Tensor,
    logits: list[torch.Tensor],
    *,
    waits: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return chains' rows [R], and their FIGURES [R, 3], NaN where nothing was rejected.

    `index`: for each of them its row in the verification and in the chain's batch, the first row of
    its target logits, and the number of draft tokens that were verified, [R] each. `waits`: look at
    what was rejected first, so that nothing else is computed; a device would have to be waited for.
    """
    at, own, first, count = index
    accepted = step.accepted[at].long()
    rejected = (accepted >= 0) & (accepted < count) & (accepted < len(logits))
    if waits:
        at, own, first, accepted = (x[rejected] for x in (at, own, first, accepted))
        rejected = rejected[rejected]
    depth = torch.where(rejected, accepted, 0)
    token, right = drafts[own, depth].long()[:, None], step.sampled[at, depth].long()[:, None]
    target = step.logits[first + depth].float()
    ours = target.gather(1, token.clamp_min(0))
    above = (target > ours).sum(-1)
    best = target.amax(-1)
    close = torch.where(above == 1, (ours[:, 0] - best).exp(), 0.0)
    rank = torch.full_like(best, torch.nan)
    for number in set(depth.tolist()) if waits else range(len(logits)):
        known = logits[number][own].float()
        right_logits = known.gather(1, right.clamp(0, known.shape[-1] - 1))
        place = 1.0 + (known > right_logits).sum(-1)
        place = torch.where(right_logits[:, 0] == -torch.inf, 0.0, place)
        rank = torch.where(depth == number, place, rank)
    figures = torch.stack([rank, close, _excluded(step, at, target, above)], 1)
    return own, torch.where((rejected & (right[:, 0] >= 0))[:, None], figures, torch.nan)


def _excluded(
    step: Verification, at: torch.Tensor, target: torch.Tensor, above: torch.Tensor
) -> torch.Tensor:
    """Return 1 where the token with `above` [R] better ones in the `target` logits lies outside the
    request's own top-k or top-p, else 0."""
    none = torch.zeros_like(target[:, 0])
    heat, top_k, top_p = (x if x is None else x[at] for x in step.sampling)
    if heat is None or (top_k is None and top_p is None):
        return none
    logits = target.sort(-1, descending=True).values / heat.clamp_min(1e-6)[:, None]
    mass = logits.softmax(-1).cumsum(-1)
    size = target.shape[-1]
    kept = torch.full_like(above, size) if top_k is None else top_k.long().clamp(1, size)
    before = mass.gather(1, (above - 1).clamp_min(0)[:, None])[:, 0] * (above > 0)
    share = before / mass.gather(1, (kept - 1)[:, None])[:, 0]
    outside = above >= kept
    if top_p is not None:
        outside = outside | ((share >= top_p) & (top_p < 1.0))
    return torch.where(outside & (heat > 0), 1.0, none)
