"""The rows of a trace: one frozen dataclass per record, and what each column means.

Conventions: `time_s` is seconds since the Unix epoch; durations end in `_s`; depth is 1-based, the
first element of every per-depth list; RMS is ||x||_2 / sqrt(dim); a list is None where the quantity
does not exist for the drafter or was not taken, never zeros. An element of a mass list that does
not apply is NaN: the sink's where a sliding window hides all of its slots from the layer.

A field with a default came later than version 1.0 of the schema: the default is what a row of an
older run reads as.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from driftscope.vocabulary import Execution, Strategy

Floats = Sequence[float]
Ints = Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRow:
    """One recorded chain: K tokens that the drafter guessed in a row for one request.

    With p = `position`, the last verified slot, the query of depth d is slot p+d-1 and sees slots
    0..p+d-1. The masses of one depth sum to 1 per layer; each is a mean over heads. A drafter
    without attention has 0 layers and 0 heads, and no masses.
    """

    step: int
    """Number of the draft step in its worker, from 1."""
    time_s: float
    """When the step ended, in seconds since the Unix epoch."""
    request: str
    """The engine's internal request id."""
    position: int
    """p: index of the last verified slot; the context is p + 1 slots long. Joins to VerifyRow."""
    prompt_tokens: int
    """Tokens of the request's prompt."""
    batch: int
    """Requests in the step."""
    k: int
    """Chain length; per-depth lists have this many elements."""
    layers: int
    """Drafter layers with attention; mass lists have k * layers elements, depth by depth."""
    chunked_prefill: bool
    """The drafter's KV cache is not known to be right, which may put the request's masses off.
    The prompt was prefilled in several chunks: vLLM's V1 runner then embeds the wrong token at each
    chunk boundary, while its V2 runner does nothing wrong. On V1 also: the request was in a step in
    which the drafter ran for nobody, because one request of the batch was near its context limit,
    and has slots that were never filled; or it was admitted on a hit of the prefix cache after
    either had happened to any request of the engine, whether or not its own blocks are affected."""
    sink_mass: Floats | None
    """Share of attention on the sink set, `Manifest.sink_slots`. None: masses were not taken, the
    drafter has no attention, or a sink was looked for and there is none. NaN in an element: a
    sliding window hides the sink from that layer."""
    prompt_mass: Floats | None
    """Share of attention on slots [0, prompt_tokens) outside the sink set. None: masses were not
    taken, or the drafter has no attention."""
    generated_mass: Floats | None
    """Share of attention on slots [prompt_tokens, p] outside the sink set: verified output. None:
    as prompt_mass."""
    self_mass: Floats | None
    """Share of attention on slots [p+1, p+d-1]: the chain's own tokens; 0 at depth 1 by
    construction. None: as prompt_mass."""
    null_mass: Floats | None
    """Share of attention that a learned sink bias takes. None: the drafter has no such bias, or
    masses were not taken."""
    in_rms: Floats | None
    """RMS of the hidden state that enters the first drafter layer; depth 1: the fc output. None:
    the drafter has no such state, or it was not taken."""
    prenorm_rms: Floats | None
    """RMS of the residual stream after the last layer, before the final norm. None: as in_rms."""
    postnorm_rms: Floats | None
    """RMS of the same after the final norm. None: as in_rms."""
    fed_rms: Floats | None
    """RMS of what is fed to the next depth: post-norm with `norm_output`, else pre-norm. None: as
    in_rms."""
    top1: Floats | None
    """Largest softmax probability of the drafter's logits, over its own vocabulary. None: the
    drafter gives no logits, or they were not taken."""
    entropy: Floats | None
    """Entropy of that softmax, in nats. None: as top1."""
    aux_rms: Floats | None
    """RMS of the captured target layers at slot p, before any norm; one per captured layer. None:
    the drafter reads no captured layers, or they were not taken."""
    aux_norm_rms: Floats | None
    """RMS of the same as the fc reads them, after `fc_norm` or `norm_before_fc`. `norm_before_fc`
    is one norm over all of them: then these are the RMS of its output's chunks, which differ as
    the layers' magnitudes do (the mean of their squares is what the norm sets). None: the drafter
    has neither norm."""
    fc_rms: float | None
    """RMS of the output of the drafter's fc at slot p. None: the drafter has no fc, or it was not
    taken."""
    token_ids: Ints | None
    """The drafted tokens, as the target's ids. None: they were not asked for."""
    rate: float = 1.0
    """Share of draft steps that were recorded when this chain was, more than 0 and at most 1: it
    stands for 1 / rate chains. An older run reads as 1 / `Manifest.every`."""
    head_mass: Floats | None = None
    """Masses by head, [k, layers, heads, 5] flattened, classes as in MASS_CLASSES. None: they were
    not asked for."""
    heads: int = 0
    """Attention heads that this row's masses are means over: the rank's own in a file, those of all
    tensor-parallel ranks when read. 0: not known, or a drafter without attention."""
    strategy: str = Strategy.KEYS
    """How the masses were taken, see `Strategy`."""
    execution: str = Execution.UNSAID
    """How the drafter ran, see `Execution`."""
    replica: int = 0
    """Data-parallel replica; `step` counts per replica. 0 in a file: the number is in the file's
    name, and readers fill it in, see `driftscope.trace.read.ranks`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRow:
    """One decode step of one request: the verification of a draft, or a step without one.

    Written by the engine core for every step, whatever the sampling of DraftRow.
    """

    step: int
    """Number of the engine step, from 1."""
    time_s: float
    """When the step ended, in seconds since the Unix epoch."""
    request: str
    """The engine's internal request id, as in DraftRow."""
    position: int
    """p of the verified chain: joins to the latest DraftRow of this request and position."""
    drafted: int
    """Tokens proposed, 0 for an undrafted step."""
    accepted: int
    """Leading tokens accepted, as the engine counts them, before stop conditions."""
    reason: str | None
    """Why nothing was drafted, see `UndraftedReason`. None: something was drafted."""
    replica: int = 0
    """Data-parallel replica, as in DraftRow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step of a worker that asked the drafter for tokens, or could have."""

    step: int
    """Number of the step in its worker, from 1, as in DraftRow."""
    time_s: float
    """When the step ended, in seconds since the Unix epoch."""
    requests: int
    """Requests in the step."""
    chains: int
    """Chains drafted: requests whose prefill is complete; 0 when the drafter did not run."""
    k: int
    """Tokens that each chain drafted; 0 when the drafter did not run."""
    recorded: bool
    """Whether this step's chains were written as DraftRow (sampling)."""
    step_s: float
    """Wall time of the whole model step on the worker's thread (target, sampling and drafter)."""
    draft_s: float
    """Wall time of the drafter within it."""
    probe_s: float
    """Time the probe itself took on the worker's thread within it."""
    rate: float = 1.0
    """Share of draft steps that are recorded, in force at this step; as in DraftRow."""
    execution: str = Execution.UNSAID
    """How the drafter ran, as in DraftRow."""
    gpu_draft_s: float | None = None
    """Time of the drafter on the GPU, between two CUDA events. None: there is no GPU."""
    gpu_probe_s: float | None = None
    """Time of the probe's own kernels on the GPU. None: as gpu_draft_s."""
    replica: int = 0
    """Data-parallel replica, as in DraftRow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One finished request, as the engine core saw it."""

    time_s: float
    """When it finished, in seconds since the Unix epoch."""
    request: str
    """The engine's internal request id, as in DraftRow."""
    label: str | None
    """The caller's workload label (sampling parameter extra_args["driftscope_label"]). None: the
    caller gave none."""
    arrival_s: float
    """When it arrived, in seconds since the Unix epoch."""
    prompt_tokens: int
    """Tokens of the prompt."""
    output_tokens: int
    """Tokens of the answer."""
    ttft_s: float | None
    """Time from arrival to the first token leaving the engine core. None: no token left it."""
    tpot_s: float | None
    """Mean time per output token after the first. None: fewer than two tokens."""
    finish_reason: str
    """Why it ended, in vLLM's words, such as "stop", "length" or "abort"."""
    temperature: float | None
    """Sampling temperature of the request. None: the engine did not say."""
    max_tokens: int | None
    """Most tokens that the answer may have. None: no limit was set."""
    traced: bool = True
    """Whether the request was selected for recording."""
    replica: int = 0
    """Data-parallel replica, as in DraftRow."""
    traceparent: str | None = None
    """The caller's trace context (W3C). None: the engine was given none."""
    structured: str | None = None
    """Kind of structured output asked for, see `Structured`. None: the engine did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRow:
    """What a recording process and its machine use, every ten seconds while it serves."""

    time_s: float
    """When it was looked at, in seconds since the Unix epoch."""
    source: str
    """The process, as in its status."""
    process_bytes: int
    """Resident memory of the process."""
    host_available_bytes: int
    """Memory that the machine could still give."""
    gpu_used_bytes: int | None
    """Memory in use on the process's GPU, by anyone. None: no GPU."""
    gpu_busy: float | None = None
    """Share of the time in which the GPU ran anything, as NVML has it. None: not beside a replay,
    or no GPU."""
    gpu_power_w: float | None = None
    """Power that the GPU draws, in watts. None: as gpu_busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    """One request of a replay, as its sender saw it; one row for each that was planned.

    Durations are the sender's, the network and the server's queue in them. What the server did not
    say is None.
    """

    time_s: float
    """When it ended, in seconds since the Unix epoch."""
    request: str
    """Id that the sender gave it, unique in the run; sent as X-Request-Id."""
    response: str | None
    """Id in the server's answer, such as "chatcmpl-<request>". RequestRow.request begins with it
    in vLLM, see `driftscope.analysis.replays.senders`. None: there was no answer."""
    order: int
    """Place in the randomised plan, from 0."""
    condition: str
    """Condition of the suite that it was asked under; also its workload label."""
    pair: str
    """Rows with the same pair, concurrency and repeat asked the same question, in each condition
    and in each run of the same suite."""
    repeat: int
    """Number of the repetition, from 0."""
    warmup: bool
    """Sent to warm the server up: no figure counts it."""
    concurrency: int | None
    """Requests kept running at once (closed loop). None: sent at `rate`."""
    rate: float | None
    """Requests per second as asked for (open loop). None: a closed loop."""
    due_s: float | None
    """When an open loop wanted it sent, in seconds since the Unix epoch. None: a closed loop."""
    sent_s: float | None
    """When its last attempt was sent, in seconds since the Unix epoch. None: it was never sent."""
    ended: str
    """How it came to its end, see `Ended`."""
    status: int | None
    """HTTP status of the last attempt that had one. None: no attempt had one."""
    error: str | None
    """Last error, also of an attempt that was retried. None: there was none."""
    attempts: int
    """How often it was sent."""
    waited_s: float
    """Time between attempts, all together."""
    ttft_s: float | None
    """Time from `sent_s` to the first token. None: no token came."""
    tpot_s: float | None
    """Mean time per token from the first token to the last, over the tokens after the first. None:
    fewer than two tokens came."""
    e2e_s: float | None
    """Time from the first attempt to the end, waits included. None: it was never sent."""
    gaps_s: Floats | None
    """Time between arrivals of pieces of the answer; with speculation a piece may hold several
    tokens. None: no answer came."""
    prompt_tokens: int | None
    """Tokens of the prompt, by the server's count. None: the server did not say."""
    output_tokens: int | None
    """Tokens of the answer, by the server's count. None: the server did not say."""
    cached_tokens: int | None
    """Prompt tokens from the server's prefix cache. None: the server did not say."""
    finish_reason: str | None
    """Why the answer ended, in the server's words. None: it did not say."""
    temperature: float | None
    """Sampling temperature that was asked for. None: none was."""
    max_tokens: int | None
    """Most tokens of the answer that were asked for. None: no limit was."""
    drafted: Ints | None
    """Tokens drafted in each round, from the server's `metrics.speculative_decoding`. None: the
    server did not say."""
    accepted: Ints | None
    """Tokens accepted in each round; where the server gives a histogram only, sorted. None: the
    server did not say."""
    digest: str | None
    """sha256 of the answer's text and tool calls, first 16 hex digits; no text is kept. None:
    there was no answer."""
    json_ok: bool | None
    """Whether the answer parses as JSON and fits the schema, if there is one. None: JSON was not
    asked for, or there was no answer."""
    tool_ok: bool | None
    """Whether the tool call is the expected one: right function, arguments that parse and fit its
    schema. None: no tool call was expected, or there was no answer."""
    early_stop: bool | None
    """Whether it stopped by itself before the least length that was expected. None: no least
    length was expected, or there was no answer."""
    garbled: bool | None
    """Whether too many of the answer's characters are none that a text has. None: there was no
    answer."""
    looping: bool | None
    """Whether the answer ends in a repetition loop. None: there was no answer."""


Row = DraftRow | VerifyRow | StepRow | RequestRow | ResourceRow | ClientRow

RECORDS: dict[str, type[Row]] = {
    "draft": DraftRow,
    "verify": VerifyRow,
    "step": StepRow,
    "request": RequestRow,
    "resource": ResourceRow,
    "client": ClientRow,
}
