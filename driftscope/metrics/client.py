"""Metrics measured by the sender of requests; see `driftscope.trace.format.records.ClientRow`."""

from __future__ import annotations

import math

from driftscope.metrics.definition import Definition

CLIENT_TTFT = Definition(
    name="client.ttft_s",
    title="Time to first token, measured by the client",
    meaning="Time from sending a request to the first piece of its answer, including the network "
    "and the server's queue; mean over answered requests.",
    unit="s",
    range="0 or more",
    source="driftscope replay",
)
CLIENT_TPOT = Definition(
    name="client.tpot_s",
    title="Time per output token, measured by the client",
    meaning="Time from the first piece of an answer to the last, divided by the number of tokens "
    "after the first; mean over answered requests, each counting once.",
    unit="s",
    range="0 or more",
    source="driftscope replay; as `vllm bench serve` computes it",
)
THROUGHPUT = Definition(
    name="client.throughput",
    title="Output tokens per second",
    meaning="Output tokens of answered requests of all users, divided by the time from sending the "
    "first of these requests to the end of the last.",
    unit="{token}/s",
    range="0 or more",
    source="driftscope replay; as `vllm bench serve` computes it",
)
PER_USER = Definition(
    name="client.per_user",
    title="Tokens per second per user",
    meaning="1 divided by the time per output token: how fast one user sees an answer grow.",
    unit="{token}/s",
    range="more than 0",
    source="driftscope",
)
AGAINST = Definition(
    name="client.against_baseline",
    title="Against the baseline",
    meaning="Ratio of a condition's figure to the baseline's, over the prompts that both answered, "
    "with a 95% interval by resampling prompts; both sides of a pair are resampled together.",
    unit="1",
    range="more than 0",
    source="driftscope (paired percentile bootstrap)",
)
OUTCOME = Definition(
    name="client.outcomes",
    title="Outcomes",
    meaning="Share of answers with this outcome: as requested (JSON, tool call), or faulty "
    "(stopped too early, garbled, ending in a repetition loop).",
    unit="1",
    range="0 to 1",
    source="driftscope.workloads.client.outcome",
)


def tokens_per_second(tokens: int, seconds: float) -> float | None:
    """Return THROUGHPUT; None if no time has passed."""
    return tokens / seconds if seconds > 0 else None


def per_user(tpot_s: float | None) -> float | None:
    """Return PER_USER; None without a time per token."""
    return 1.0 / tpot_s if tpot_s else None


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided exact p-value for the hypothesis that outcomes are wrong equally often
    in both runs of a pair.

    It depends only on the pairs that differ (McNemar 1947, in its exact binomial form).
    """
    n, k = only_first + only_second, min(only_first, only_second)
    if n == 0:
        return 1.0
    tail = sum(math.comb(n, i) for i in range(k + 1)) / (1 << n)
    return min(1.0, 2.0 * tail)
