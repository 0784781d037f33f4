"""Acceptance of drafts by depth.

Drafted, verified and accepted tokens are three counts. A round is a draft of which at least one
token was verified; `counts[i-1]` is the number of rounds with at least i tokens accepted. Rounds
may verify fewer than K tokens: K may follow the batch size or change while the server runs, and a
draft may be cut before verification by a grammar, a length limit, the step's token budget or a low
confidence. So there are two rates by depth:

- by risk sets: the conditional rate at depth i is taken among rounds that verified at least i
  tokens and had i-1 of them accepted; the marginal rate is the running product of conditional rates
  (Kaplan and Meier 1958). It estimates how far a chain is accepted if it is verified that far,
  unless what cuts drafts knows how likely their tokens are (a low confidence, a grammar): the
  tokens that are verified are then the likely ones;
- as counted: `counts[i-1]` over all rounds, so that a depth that was not verified counts as not
  accepted. vLLM's counters (`vllm:spec_decode_num_accepted_tokens_per_pos` over
  `vllm:spec_decode_num_drafts`) give this rate.

They are equal where every round verifies K tokens.

Associations of acceptance with drift prove no cause.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from driftscope.metrics.definition import Definition

Counts = NDArray[Any]
"""Counts by depth, [K], possibly scaled by a constant (a published histogram may be in percent)."""
UNCUT = 0.99
"""Share of K that drafts must have on average to count as whole: an answer may end within one."""
MARGINAL = Definition(
    name="acceptance.marginal",
    title="Marginal acceptance",
    meaning="Share of rounds in which the target accepts the draft up to this depth, if it is "
    "verified that far: the running product of the conditional rates. It can only fall with depth.",
    unit="1",
    range="0 to 1",
    source="driftscope; risk sets (Kaplan and Meier 1958). Equal to vLLM's counts if every round "
    "verifies K tokens",
)
COUNTED = Definition(
    name="acceptance.counted",
    title="Acceptance as vLLM counts it",
    meaning="Rounds accepted up to this depth over all rounds: a depth that a round did not verify "
    "counts as not accepted. 1 + the sum of these rates is the acceptance length.",
    unit="1",
    range="0 to 1",
    source="vLLM spec_decode_num_accepted_tokens_per_pos / spec_decode_num_drafts",
)
CONDITIONAL = Definition(
    name="acceptance.conditional",
    title="Conditional acceptance",
    meaning="Share of the rounds accepted up to the previous depth, and verifying this depth, that "
    "are accepted at it. At large depths only a few easy rounds remain, so judge a drafter by the "
    "marginal rate.",
    unit="1",
    range="0 to 1; empty where no round accepted up to the previous depth verified this one",
    source="ratio of neighbouring marginal rates",
)
MEAN_LENGTH = Definition(
    name="acceptance.mean_length",
    title="Acceptance length",
    meaning="Tokens that one round yields on average, as served: the accepted ones plus the one "
    "that the target always adds. Equals 1 + the sum of the rates as vLLM counts them.",
    unit="{token}",
    range="1 to K + 1",
    source="vLLM's mean acceptance length; some tools and papers leave the added token out",
)
MEAN_LENGTH_BY_REQUEST = Definition(
    name="acceptance.mean_length_by_request",
    title="Acceptance length per request",
    meaning="Mean of the requests' acceptance lengths, each request counting once: what a typical "
    "request experiences, whatever its length.",
    unit="{token}",
    range="1 to K + 1",
    source="driftscope",
)
MEAN_LENGTH_BY_TOKEN = Definition(
    name="acceptance.mean_length_by_token",
    title="Acceptance length per token",
    meaning="Length of the round that produced a token, averaged over tokens: long rounds count "
    "more, so it is never less than the length per round.",
    unit="{token}",
    range="1 to K + 1",
    source="driftscope; the size-biased mean of the same lengths",
)
TOKEN_RATE = Definition(
    name="acceptance.token_rate",
    title="Accepted share of verified tokens",
    meaning="Accepted tokens divided by verified draft tokens. It falls when K grows, even for the "
    "same drafter.",
    unit="1",
    range="0 to 1",
    source="vLLM's draft acceptance rate",
)
WITHIN_REQUEST = Definition(
    name="within_request.per_sd",
    title="Acceptance within a request",
    meaning="Change of the share of draft tokens accepted at a depth, for one standard deviation "
    "of a measure of the drafter, between tokens of one request and one depth in chains accepted "
    "up to that depth; how far the answer has come is a covariate. It shows an association, not a "
    "cause.",
    unit="1",
    range="-1 to 1; 0 if acceptance does not go with the measure",
    source="driftscope; linear probability model with strata, jackknife over requests",
)


def counts_of(histogram: ArrayLike) -> Counts:
    """Return the rounds with at least 1 .. K accepted, [K], from the histogram over 0 .. K."""
    return np.cumsum(np.asarray(histogram)[::-1])[::-1][1:]


def marginal_rates(counts: ArrayLike, rounds: float) -> tuple[float, ...]:
    """Return the share of all rounds with at least i accepted, by depth; `rounds` must be
    positive."""
    return tuple(float(count) / rounds for count in np.asarray(counts))


def running_product(accepted: ArrayLike, at_risk: ArrayLike) -> NDArray[np.float64]:
    """Return the marginal rates by risk sets, [..., K], from two counts of rounds, [..., K] each.

    The rate is 0 from the first depth that no round passed, and NaN if no round was at risk before.
    """
    top, bottom = np.asarray(accepted, dtype=np.float64), np.asarray(at_risk, dtype=np.float64)
    some = bottom > 0
    rate = np.where(some, top / np.where(some, bottom, 1.0), np.nan)
    died = np.logical_or.accumulate(some & (top <= 0), axis=-1)
    return np.where(died, 0.0, np.cumprod(rate, axis=-1))


def risk_set_rates(accepted: ArrayLike, at_risk: ArrayLike) -> tuple[float | None, ...]:
    """Return rounds accepted at depth i over rounds at risk there, [K] counts each; None if no
    round was at risk."""
    both = zip(np.asarray(accepted).tolist(), np.asarray(at_risk).tolist(), strict=True)
    return tuple(float(some) / float(of) if of else None for some, of in both)


def mean_length(accepted_tokens: Any, rounds: Any) -> Any:
    """Return 1 + accepted tokens per round, for numbers or arrays; `rounds` must be positive."""
    return 1.0 + accepted_tokens / rounds


def mean_length_of(marginal: Sequence[float]) -> float:
    """Return the mean length, computed from the marginal rates."""
    return 1.0 + sum(marginal)


def token_rate(accepted_tokens: float, verified_tokens: float) -> float | None:
    """Return accepted over verified tokens; None if nothing was verified."""
    return accepted_tokens / verified_tokens if verified_tokens else None


def mean_length_by_request(accepted: ArrayLike, rounds: ArrayLike) -> float | None:
    """Return the mean over requests of their acceptance lengths; None if no request has a round."""
    n = np.asarray(rounds, dtype=np.float64)
    lengths = mean_length(np.asarray(accepted)[n > 0], n[n > 0])
    return float(np.mean(lengths)) if (n > 0).any() else None


def mean_length_by_token(histogram: ArrayLike) -> float:
    """Return the sum of squared round lengths over the sum of round lengths."""
    counts = np.asarray(histogram, dtype=np.float64)
    length = np.arange(len(counts)) + 1.0
    return float((counts * length**2).sum() / (counts * length).sum())


def check_identities(histogram: ArrayLike, rounds: float, k: int) -> None:
    """Raise ValueError unless a run's counts are consistent: no count is negative, the histogram
    contains all rounds, the marginal rates fall, and 1 + their sum is the mean length."""
    counts = np.asarray(histogram, dtype=np.float64)
    if len(counts) != k + 1 or (counts < 0).any() or counts.sum() != rounds:
        raise ValueError(f"a histogram over 0..{k} that does not hold all {rounds} rounds")
    marginal = marginal_rates(counts_of(counts), rounds)
    accepted = float((counts * np.arange(k + 1)).sum())
    if not math.isclose(mean_length_of(marginal), mean_length(accepted, rounds), rel_tol=1e-9):
        raise ValueError("marginal rates that do not sum to the mean length")
