"""Latency metrics as a user of the server experiences them, from finished requests."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from driftscope.metrics.definition import Definition

TTFT = Definition(
    name="latency.ttft_s",
    title="Time to first token",
    meaning="Time from a request's arrival until its first token leaves the engine core; mean over "
    "finished requests.",
    unit="s",
    range="0 or more",
    source="gen_ai.server.time_to_first_token (OpenTelemetry), measured in the engine core",
)
TPOT = Definition(
    name="latency.tpot_s",
    title="Time per output token",
    meaning="Time per token after the first, within a request; mean over finished requests, each "
    "request counting once.",
    unit="s",
    range="0 or more",
    source="gen_ai.server.time_per_output_token (OpenTelemetry), measured in the engine core",
)
BETWEEN_OUTPUTS = Definition(
    name="latency.between_outputs_s",
    title="Time between outputs",
    meaning="Time from one output of a request to the next. Each output is one decode step: the "
    "token that the target adds and the draft tokens that it accepted arrive together.",
    unit="s",
    range="0 or more",
    source="driftscope, times of VerifyRow; with one token per step it is the inter-token latency",
)
STEP = Definition(
    name="latency.step_s",
    title="Step time",
    meaning="Wall time of one model step in which the drafter ran, and of the drafter within it, "
    "without the time spent in the probe. Target, sampling and drafter are all part of the step.",
    unit="s",
    range="0 or more",
    source="driftscope, StepRow on the worker's thread",
)
INTER_TOKEN = Definition(
    name="latency.inter_token_s",
    title="Time between tokens",
    meaning="Time per token after the first, over all tokens of all finished requests: long "
    "answers count more than in the time per output token.",
    unit="s",
    range="0 or more",
    source="the token-weighted mean of the same times",
)
DRAFT_STEP = Definition(
    name="latency.draft_s",
    title="Drafting time per step",
    meaning="Median time of the drafter in a step that drafted, without the time spent in the "
    "probe.",
    unit="s",
    range="0 or more",
    source="driftscope",
)
VERIFY_STEP = Definition(
    name="latency.verify_s",
    title="Verification time per step",
    meaning="Median time of a step that drafted, minus its drafting time: target and sampling.",
    unit="s",
    range="0 or more",
    source="driftscope",
)


def inter_token_s(tpot_s: ArrayLike, output_tokens: ArrayLike) -> float | None:
    """Return the mean of `tpot_s` weighted by the tokens after the first; None if no request has
    any."""
    each = np.asarray(tpot_s, dtype=np.float64)
    tokens = np.asarray(output_tokens, dtype=np.float64) - 1
    known = np.isfinite(each) & (tokens > 0)
    return float(np.average(each[known], weights=tokens[known])) if known.any() else None


def life_s(ttft_s: ArrayLike, tpot_s: ArrayLike, output_tokens: ArrayLike) -> NDArray[np.float64]:
    """Return the seconds from each request's arrival to its last token; NaN where a time that it
    takes is unknown."""
    later = np.asarray(output_tokens, dtype=np.float64) - 1
    decoding = np.where(later > 0, np.asarray(tpot_s, dtype=np.float64) * later, 0.0)
    return np.asarray(np.asarray(ttft_s, dtype=np.float64) + decoding, dtype=np.float64)


def mean_s(values: ArrayLike) -> float | None:
    """Return the mean over the requests that have the duration; None if none has it."""
    seconds = np.asarray(values, dtype=np.float64)
    seconds = seconds[np.isfinite(seconds)]
    return float(seconds.mean()) if len(seconds) else None
