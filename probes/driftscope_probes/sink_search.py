"""Finds the sink set in the first recorded chains: the slots that hold attention at depth 1.

`driftscope_probes.torch_masses.slot_weights` computes a row per chain on the device; the
rest happens here, on the writer's thread. No masses are measured before the decision, because one
run must not mix classes of two definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SLOTS = 64
"""Number of slots examined: 0 to 63. Sinks are initial tokens (StreamingLLM, arXiv 2309.17453), and
"When Attention Sink Emerges" (arXiv 2410.10781) measures them at a length of 64 tokens."""
RECENT = 8
"""Distance, in slots, below which a query says nothing about a slot before it: the slot may hold
attention because it is recent, which in a short context looks like a sink. The value is
driftscope's own."""
MIN_CHAINS, MIN_REQUESTS = 64, 8
"""Numbers of chains, and of requests that they come from, needed for a decision: several prompts,
so that the content of no single prompt decides. The values are driftscope's own."""
MAX_CHAINS = 512
"""Number of chains after which the decision is made whatever requests they come from."""
SEEN_BY = 0.5
"""Share of the chains that must have observed a slot for it to count."""
SINK_FACTOR = 5.0
"""Smallest ratio of a sink slot's attention to that of an average visible slot. The value is
driftscope's own."""
SINK_SHARE = 0.02
"""Smallest share of all attention that a sink slot holds, averaged over layers and heads. arXiv
2410.10781 calls a slot a sink in a head that gives it more than 0.3 on average; one such head in
fifteen yields a share of 0.02."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSet:
    """The sink set that was found, and the evidence for it."""

    slots: tuple[int, ...]
    """Sink slots, ascending; (): there is no sink among the first SLOTS slots."""
    note: str
    """The evidence, in a sentence."""


class SinkSearch:
    """Adds up chains until they suffice; `sinks` is None until then.

    `sinks` is set on the writer's thread and read on the serving thread, which measures masses from
    the next step on.
    """

    def __init__(self) -> None:
        self.sinks: SinkSet | None = None
        self.report: Callable[[SinkSet], None] = lambda _: None
        """Callback run before `sinks` is set; if it raises, the next chains decide."""
        self._requests: set[str] = set()
        self._chains = self._looked_at = 0
        self._weights, self._uniform = np.zeros(SLOTS), np.zeros(SLOTS)
        self._finite = np.zeros(SLOTS, dtype=np.int64)

    def add(self, requests: Sequence[str], rows: npt.NDArray[np.float32]) -> None:
        """Add chains of `requests`: [n, SLOTS + 1] as returned by `slot_weights`.

        Raises what `report` raises.
        """
        if self.sinks is not None:
            return
        weights, uniform = rows[:, :SLOTS].astype(np.float64), rows[:, SLOTS:].astype(np.float64)
        finite = np.isfinite(weights)
        self._weights += np.where(finite, weights, 0.0).sum(0)
        self._uniform += np.where(finite, uniform, 0.0).sum(0)
        self._finite += finite.sum(0)
        informative = np.any(finite, axis=1)
        self._chains += int(informative.sum())
        self._looked_at += len(rows)
        self._requests |= {
            r for r, counts in zip(requests, informative.tolist(), strict=True) if counts
        }
        enough = self._chains >= MIN_CHAINS and len(self._requests) >= MIN_REQUESTS
        if enough or self._looked_at >= MAX_CHAINS:
            sinks = self._decide()
            self.report(sinks)
            self.sinks = sinks

    def _decide(self) -> SinkSet:
        counted = (self._finite > 0) & (self._finite >= SEEN_BY * self._chains)
        counts = np.maximum(self._finite, 1)
        means, uniform = self._weights / counts, self._uniform / counts
        times = means / np.where(uniform > 0, uniform, np.inf)
        sink = counted & (means >= SINK_SHARE) & (times >= SINK_FACTOR)
        slots = tuple(int(slot) for slot in np.flatnonzero(sink))
        described = [_described(slot, means, times) for slot in slots]
        looked = f"searched in {self._looked_at} chains of {len(self._requests)} requests"
        if slots:
            return SinkSet(slots=slots, note=f"sink set, {looked}: {', '.join(described)}")
        if not counted.any():
            why = (
                f"none of them was more than {RECENT} slots long, or had the first {SLOTS} slots "
                "in its attention window"
            )
        else:
            most = int(np.argmax(np.where(counted, means, -1.0)))
            why = (
                f"of the first {SLOTS} slots the strongest is {_described(most, means, times)}; a "
                f"sink holds at least {SINK_SHARE:.0%} and {SINK_FACTOR:.0f} times the average"
            )
        return SinkSet(slots=(), note=f"no sink found, {looked}: {why}")


def _described(slot: int, means: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> str:
    return (
        f"slot {slot} with {means[slot]:.1%} of the attention at depth 1 ({times[slot]:.1f} times "
        "an average slot)"
    )
