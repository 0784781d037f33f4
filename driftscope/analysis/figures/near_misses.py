"""How nearly right the tokens were that a target rejected, over chains that end before K, and what
could make a verification accept more of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.number_words import between_percent, percent
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.ratio import rate_intervals, ratio_of
from driftscope.boundary.json_document import written_property

BRANCHES = (2, 4, 8)
"""Numbers of a drafter's best tokens among which the target's is looked for."""
Numbers = NDArray[np.float64]
CLOSE = 0.5
"""Share of the probability of the target's own token from which a relaxed rule may take another."""
MOST = 0.5
"""Share of the ends above which a remedy is named: it reaches most of them."""


class Remedy(StrEnum):
    """Ways to make a verification accept more."""

    WIDER = "a wider draft (a tree) can help"
    RELAXED = "a relaxed rule of verification can help, but changes answers"
    TRAINING = "neither a wider draft nor a relaxed rule reaches most of them, training can"
    CANNOT_TELL = "what helps most cannot be told, more prompts or requests can tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOfEnds:
    """Share of the chains that end before K."""

    name: str
    """Short name, for a picture."""
    what: str
    value: float
    interval: Interval | None
    """95% interval over prompts or requests; None with too few of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMisses:
    """How far the first rejected token of a chain was from being accepted."""

    ends: int
    """Number of chains that end before K."""
    wider: tuple[ShareOfEnds, ...]
    """Ends at which the target's token is among the drafter's best 2, 4 and 8: a draft of so many
    branches holds it."""
    runner_up: ShareOfEnds
    """Ends at which the drafted token is the target's second choice."""
    close: ShareOfEnds
    """Those of them at which it has at least half the probability of the target's own."""
    lacking: ShareOfEnds
    """Ends at which the draft vocabulary lacks the target's token."""
    excluded: ShareOfEnds
    """Ends at which the request's own top-k or top-p excludes the drafted token."""

    @property
    def shares(self) -> tuple[ShareOfEnds, ...]:
        """All shares, in the order in which they are shown."""
        rare = (share for share in (self.lacking, self.excluded) if share.value)
        return (*self.wider, self.runner_up, self.close, *rare)

    @written_property
    def remedy(self) -> Remedy:
        """The way that reaches most of the ends."""
        branches, close = self.wider[1].interval, self.close.interval
        if branches is None or close is None:
            return Remedy.CANNOT_TELL
        if branches.low > MOST:
            return Remedy.WIDER
        if close.low > MOST:
            return Remedy.RELAXED
        if branches.high < MOST and close.high < MOST:
            return Remedy.TRAINING
        return Remedy.CANNOT_TELL

    @property
    def words(self) -> str:
        """Conclusion in words."""
        held, close, excluded = (
            f"{percent(share.value)}{between_percent(share.interval)}"
            for share in (self.wider[1], self.close, self.excluded)
        )
        never = f" In {excluded} the request's own top-k or top-p excludes it."
        return (
            f"Of {self.ends:,} chains that end early, in {held} the target's token is among the "
            f"drafter's best 4, and in {close} the drafted one was the target's close second "
            f"choice: {self.remedy.value}.{never if self.excluded.value else ''}"
        )


def near_misses_of(
    rank: Numbers, closeness: Numbers, excluded: NDArray[np.bool_], cluster: NDArray[np.int64]
) -> NearMisses | None:
    """Return the shares over chains that end early, arrays of [ends]; None without any. The first
    three are as in DraftRow; the intervals are over the numbers in `cluster`."""
    if not len(rank):
        return None
    code = np.unique(cluster, return_inverse=True)[1]
    whole = np.bincount(code)[:, None].astype(np.float64)

    def share(name: str, what: str, holds: NDArray[np.bool_]) -> ShareOfEnds:
        hits = np.bincount(code, holds, len(whole))[:, None].astype(np.float64)
        value, interval = share_of(hits, whole)
        return ShareOfEnds(name=name, what=what, value=value, interval=interval)

    return NearMisses(
        ends=len(rank),
        wider=tuple(
            share(
                f"best {n}",
                f"target's token among the drafter's best {n}",
                (rank > 0) & (rank <= n),
            )
            for n in BRANCHES
        ),
        runner_up=share(
            "second choice", "drafted token is the target's second choice", closeness > 0
        ),
        close=share("close", f"of these, at least {CLOSE:.0%} as probable", closeness >= CLOSE),
        lacking=share("lacking", "target's token not in the draft vocabulary", rank == 0),
        excluded=share(
            "excluded", "drafted token excluded by the request's top-k or top-p", excluded
        ),
    )


def share_of(some: Numbers, of: Numbers) -> tuple[float, Interval | None]:
    """Return a share from counts by cluster, [clusters, 1], and its 95% interval, if any."""
    ratio = ratio_of(some, of)
    spread = rate_intervals(ratio)
    return float(ratio.value[0]), spread[0] if spread else None
