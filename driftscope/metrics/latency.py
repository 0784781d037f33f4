"""Times of requests and steps in the engine and at the client, speeds estimated from them, and what
the probe takes of them.

CLIENT_TTFT and its siblings are measured by the sender of requests, see
`driftscope.trace.records.ClientRow`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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
    source="driftscope.workloads.client.answer",
)
Array = NDArray[np.float64]
PREDICTED_TPOT = Definition(
    name="throughput.predicted_tpot_s",
    title="Predicted time per output token",
    meaning="Time of a step at this K and batch size, by a model fitted on measured steps, divided "
    "by the tokens that a round with K draft tokens yields.",
    unit="s",
    range="more than 0",
    source="driftscope, from measured acceptance and step times",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Typical time of one step that drafts K tokens."""

    step_s: float
    """Time in seconds of the whole model step: target, sampling and drafter."""
    draft_s: float
    """Time in seconds of the drafter within the step."""
    recorded: bool = False
    """Whether the times come from recorded steps, which the probe slows by more than its own
    time."""


def inter_token_s(tpot_s: ArrayLike, output_tokens: ArrayLike) -> float | None:
    """Return the mean of `tpot_s` weighted by the tokens after the first; None if no request has
    any."""
    per_token_s = np.asarray(tpot_s, dtype=np.float64)
    tokens = np.asarray(output_tokens, dtype=np.float64) - 1
    known = np.isfinite(per_token_s) & (tokens > 0)
    return float(np.average(per_token_s[known], weights=tokens[known])) if known.any() else None


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


def tpot_s(step_s: Array, tokens_per_round: Array) -> Array:
    """Return the seconds per output token of a request that takes part in every step."""
    return step_s / tokens_per_round


OVERHEAD = Definition(
    name="probe.overhead_fraction",
    title="Probe cost, all in",
    meaning="Time of the probe's hooks on the serving threads of worker and engine core, plus the "
    "core time of their writers' threads, as a share of the time of the worker's model steps. "
    "Slower execution that a recording mode causes elsewhere is not included.",
    unit="1",
    range="0 or more",
    source="driftscope; `make bench` measures serving with the probe off and on",
)
BUDGETED = Definition(
    name="probe.budgeted_fraction",
    title="Probe cost, budgeted",
    meaning="Expected share of a step that the probe takes in the worker at the present sampling "
    "rate, from medians of recent steps: the figure that a budget bounds. The engine core, which "
    "runs beside the worker, and rare costs are not included.",
    unit="1",
    range="0 or more",
    source="driftscope; the governor of the sampling rate computes it",
)


def overhead_fraction(
    worker_probe_s: float, engine_probe_s: float, step_s: float, writer_s: float = 0.0
) -> float | None:
    """Return the probe time of worker and engine core, plus their writers' time, over the time of
    the model steps; None without steps."""
    return (worker_probe_s + engine_probe_s + writer_s) / step_s if step_s > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCost:
    """The probe's time in one process of an engine."""

    worker: bool
    """Whether it is a worker, otherwise an engine core."""
    replica: int
    probe_s: float
    """Time of the hooks on its serving threads."""
    writer_s: float
    """Core time of its writer's thread."""
    step_s: float = 0.0
    """Time of its model steps; 0 for an engine core."""


def all_in(processes: Iterable[ProcessCost]) -> float | None:
    """Return the cost of all processes, see OVERHEAD; None without steps.

    Of the tensor-parallel ranks of a replica, which run the same steps, the slowest counts.
    """
    costs = list(processes)
    core_s, writer_s, step_s = outside_steps(costs)
    probe_s = sum(_slowest(costs, lambda process: process.probe_s))
    return overhead_fraction(probe_s, core_s, step_s, writer_s)


def outside_steps(processes: Sequence[ProcessCost]) -> tuple[float, float, float]:
    """Return the time of the engine cores' hooks, of all writers, and of all model steps, in
    seconds."""
    cores = [process for process in processes if not process.worker]
    writers_s = sum(_slowest(processes, lambda process: process.writer_s))
    return (
        sum(core.probe_s for core in cores),
        writers_s + sum(core.writer_s for core in cores),
        sum(_slowest(processes, lambda process: process.step_s)),
    )


def _slowest(
    processes: Iterable[ProcessCost], of: Callable[[ProcessCost], float]
) -> Iterable[float]:
    """Return the largest value among the ranks of each replica."""
    largest: dict[int, float] = {}
    for process in processes:
        if process.worker:
            largest[process.replica] = max(of(process), largest.get(process.replica, 0.0))
    return largest.values()


def cost_of(source: str, probe_s: float, writer_s: float, step_s: float = 0.0) -> ProcessCost:
    """Return the cost of the process named `source`, such as "worker0-4711", times in seconds."""
    from driftscope.trace.ranks import place_of  # needs Arrow, which names need not

    place = place_of(source)
    return ProcessCost(
        worker=source.startswith("worker"),
        replica=place.replica or 0,
        probe_s=probe_s,
        writer_s=writer_s,
        step_s=step_s,
    )
