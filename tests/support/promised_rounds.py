"""Rounds of a live run that an inspection of the same prompts makes, too."""

from __future__ import annotations

from support.engine_process.job import K, Outcome, prompts

from driftscope.trace.reader import read_trace


def served_length(outcome: Outcome) -> float:
    """Return the acceptance length of the rounds whose K drafts all lie within the answer. An
    inspection makes no others, because it knows the target's tokens up to the answer's end only.

    Tokens that a last round accepts past the end of its answer are no tokens of the request.
    """
    trace = read_trace(outcome.run)
    ends = {row["request"]: _end(row["request"], outcome) for row in trace.verify.to_pylist()}
    lengths = [
        row["accepted"] + 1
        for row in trace.verify.to_pylist()
        if row["drafted"] and row["position"] + 1 + K < ends[row["request"]]
    ]
    return sum(lengths) / len(lengths)


def _end(request: str, outcome: Outcome) -> int:
    """Return the number of tokens of a request, prompt and answer."""
    at = int(request.partition("-")[0])
    return len(prompts(outcome.job.requests)[at]) + len(outcome.tokens()[at])
