"""Finds the sink set in the first recorded chains: the slots that hold attention at depth 1.

`driftscope_probes.masses.torch_masses.slot_weights` gives a row per chain, on the device; the rest
happens here, on the writer's thread. Until it is decided no masses are taken: classes of two
definitions must not mix in one run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SLOTS = 64
"""Slots 0 to 63 are looked at. Sinks are initial tokens (StreamingLLM, arXiv 2309.17453), and 64
tokens are the length at which "When Attention Sink Emerges" (arXiv 2410.10781) measures them."""
RECENT = 8
"""A query says nothing of the slots less than this far before it: what it holds there it may hold
for being recent, which in a short context looks like a sink. driftscope's own."""
MIN_CHAINS, MIN_REQUESTS = 64, 8
"""Chains, and requests that they come from, after which it is decided: several prompts, so that no
single prompt's content decides. driftscope's own."""
MAX_CHAINS = 512
"""Chains after which it is decided whatever they come from."""
SEEN_BY = 0.5
"""Share of the chains that must have said something of a slot for it to count."""
SINK_FACTOR = 5.0
"""A sink slot holds at least this many times what a visible slot does on average. driftscope's
own."""
SINK_SHARE = 0.02
"""And at least this share of all attention, mean over layers and heads. arXiv 2410.10781 calls a
slot a sink in a head that gives it more than 0.3 on average; 0.02 is what one such head in fifteen
brings about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found, and from what."""

    slots: tuple[int, ...]
    """Ascending; (): there is no sink among the first SLOTS slots."""
    note: str
    """The evidence, in a sentence."""


class SinkSearch:
    """Sums over chains until they suffice; `found` is None until then.

    `found` is set on the writer's thread and read on the serving thread, which takes masses from
    the next step on.
    """

    def __init__(self) -> None:
        self.found: Found | None = None
        self.tell: Callable[[Found], None] = lambda _: None
        """Called before `found` is set; what it raises puts the decision off to the next chains."""
        self._requests: set[str] = set()
        self._chains = self._looked_at = 0
        self._held, self._even = np.zeros(SLOTS), np.zeros(SLOTS)
        self._said = np.zeros(SLOTS, dtype=np.int64)

    def add(self, requests: Sequence[str], rows: npt.NDArray[np.float32]) -> None:
        """Chains of `requests`: [n, SLOTS + 1] as `slot_weights` gives them.

        Raises what `tell` raises.
        """
        if self.found is not None:
            return
        weights, even = rows[:, :SLOTS].astype(np.float64), rows[:, SLOTS:].astype(np.float64)
        said = np.isfinite(weights)
        self._held += np.where(said, weights, 0.0).sum(0)
        self._even += np.where(said, even, 0.0).sum(0)
        self._said += said.sum(0)
        telling = np.any(said, axis=1)
        self._chains += int(telling.sum())
        self._looked_at += len(rows)
        self._requests |= {r for r, tells in zip(requests, telling.tolist(), strict=True) if tells}
        enough = self._chains >= MIN_CHAINS and len(self._requests) >= MIN_REQUESTS
        if enough or self._looked_at >= MAX_CHAINS:
            found = self._decide()
            self.tell(found)
            self.found = found

    def _decide(self) -> Found:
        counted = (self._said > 0) & (self._said >= SEEN_BY * self._chains)
        told = np.maximum(self._said, 1)
        held, even = self._held / told, self._even / told
        times = held / np.where(even > 0, even, np.inf)
        sink = counted & (held >= SINK_SHARE) & (times >= SINK_FACTOR)
        slots = tuple(int(slot) for slot in np.flatnonzero(sink))
        described = [_described(slot, held, times) for slot in slots]
        looked = f"looked for in {self._looked_at} chains of {len(self._requests)} requests"
        if slots:
            return Found(slots=slots, note=f"sink set {looked}: {', '.join(described)}")
        if not counted.any():
            why = f"none of them was more than {RECENT} slots long, or saw the first {SLOTS} slots"
        else:
            most = int(np.argmax(np.where(counted, held, -1.0)))
            why = (
                f"of the first {SLOTS} slots the strongest is {_described(most, held, times)}; a "
                f"sink holds {SINK_SHARE:.0%} and {SINK_FACTOR:.0f} times"
            )
        return Found(slots=(), note=f"no sink found, {looked}: {why}")


def _described(slot: int, held: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> str:
    return (
        f"slot {slot} with {held[slot]:.1%} of the attention at depth 1 ({times[slot]:.1f} times "
        "an average slot)"
    )
