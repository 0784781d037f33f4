"""The rows of a trace: one frozen dataclass per record, and what each column means.

Conventions: `time_s` is seconds since the Unix epoch; durations end in `_s`; depth is 1-based, the
first element of every per-depth list; RMS is ||x||_2 / sqrt(dim); a list is None where the quantity
does not exist for the drafter or was not taken, never zeros. An element of a mass list that does
not apply is NaN: the sink's where a sliding window hides all of its slots from the layer.

A field with a default came later than version 1.0 of the schema: the default is what a row of an
older run reads as.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Floats = Sequence[float]
Ints = Sequence[int]

MASS_CLASSES = ("sink", "prompt", "generated", "self", "null")
"""The classes of slots, in the order in which `DraftRow.head_mass` holds them."""

SINK_DEFAULT, SINK_GIVEN, SINK_FOUND, SINK_SOUGHT = SINK_SOURCES = (
    "default",
    "given",
    "found",
    "sought",
)
"""`Manifest.sink_source`: nobody said otherwise; asked for; looked for in the first chains; still
being looked for, so that no masses were taken yet."""


class Execution:
    """Values of DraftRow.execution: how the drafter ran."""

    UNSAID = ""
    """Not said by the row: read as the manifest's mode."""
    EAGER = "eager"
    COMPILED = "compiled"
    PIECEWISE = "piecewise"
    """Piecewise CUDA graphs."""
    FULL = "full"
    """A full CUDA graph."""

    OF_MODE: Mapping[str, str] = {
        "eager": EAGER,
        "compiled": COMPILED,
        "piecewise graphs": PIECEWISE,
        "full graphs": FULL,
    }
    """By `Manifest.mode`."""


class Strategy:
    """Values of DraftRow.strategy: how attention masses were taken."""

    KEYS = "keys"
    """A softmax over the context's keys, read back from the cache."""
    LSE = "lse"
    """The kernel's own log-sum-exp, and the scores of short ranges of slots."""
    NONE = "none"
    """Not taken."""


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
    request: str
    """The engine's internal request id."""
    position: int
    """p: index of the last verified slot; the context is p + 1 slots long. Joins to VerifyRow."""
    prompt_tokens: int
    batch: int
    """Requests in the step."""
    k: int
    """Chain length; per-depth lists have this many elements."""
    layers: int
    """Drafter layers with attention; mass lists are [k * layers], depth-major."""
    chunked_prefill: bool
    """The drafter's KV cache is not known to be right, which may put the request's masses off.
    The prompt was prefilled in several chunks: vLLM's V1 runner then embeds the wrong token at each
    chunk boundary, while its V2 runner does nothing wrong. On V1 also: the request was in a step in
    which the drafter ran for nobody, because one request of the batch was near its context limit,
    and has slots that were never filled; or it was admitted on a hit of the prefix cache after
    either had happened to any request of the engine, whether or not its own blocks are affected."""
    sink_mass: Floats | None
    """The sink set, `Manifest.sink_slots`."""
    prompt_mass: Floats | None
    """Slots [0, prompt_tokens) outside the sink set."""
    generated_mass: Floats | None
    """Slots [prompt_tokens, p] outside the sink set."""
    self_mass: Floats | None
    """Slots [p+1, p+d-1]: the chain's own tokens; 0 at depth 1 by construction."""
    null_mass: Floats | None
    """A learned sink bias, where the drafter has one."""
    in_rms: Floats | None
    """Hidden state that enters the first drafter layer; depth 1: the fc output."""
    prenorm_rms: Floats | None
    """Residual stream after the last layer, before the final norm."""
    postnorm_rms: Floats | None
    """The same after the final norm."""
    fed_rms: Floats | None
    """What is fed to the next depth: post-norm with `norm_output`, else pre-norm."""
    top1: Floats | None
    """Largest softmax probability of the drafter's logits, over its own vocabulary."""
    entropy: Floats | None
    """Entropy of that softmax, nats."""
    aux_rms: Floats | None
    """Captured target layers at slot p, before any norm; one per captured layer."""
    aux_norm_rms: Floats | None
    """The same as the fc reads them, after `fc_norm` or `norm_before_fc`; None without either.
    `norm_before_fc` is one norm over all of them: then these are the RMS of its output's chunks,
    which differ as the layers' magnitudes do (the mean of their squares is what the norm sets)."""
    fc_rms: float | None
    """Output of the drafter's fc at slot p."""
    token_ids: Ints | None
    """The drafted tokens, as the target's ids; only when asked for."""
    rate: float = 1.0
    """Share of draft steps that were recorded when this chain was, more than 0 and at most 1: it
    stands for 1 / rate chains. An older run reads as 1 / `Manifest.every`."""
    head_mass: Floats | None = None
    """Masses by head, [k, layers, heads, 5] flattened, classes as in MASS_CLASSES; only when asked
    for."""
    heads: int = 0
    """Attention heads that this row's masses are means over: the rank's own in a file, those of all
    tensor-parallel ranks when read. 0: not known, or a drafter without attention."""
    strategy: str = Strategy.KEYS
    execution: str = Execution.UNSAID
    replica: int = 0
    """Data-parallel replica, see `driftscope.trace.ranks`; `step` counts per replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRow:
    """One decode step of one request: the verification of a draft, or a step without one.

    Written by the engine core for every step, whatever the sampling of DraftRow.
    """

    step: int
    """Number of the engine step, from 1."""
    time_s: float
    request: str
    position: int
    """p of the verified chain: joins to the latest DraftRow of this request and position."""
    drafted: int
    """Tokens proposed, 0 for an undrafted step."""
    accepted: int
    """Leading tokens accepted, as the engine counts them, before stop conditions."""
    reason: str | None
    """Why nothing was drafted (see `UndraftedReason`); None when drafted > 0."""
    replica: int = 0
    """As in DraftRow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step of a worker that asked the drafter for tokens, or could have."""

    step: int
    time_s: float
    requests: int
    """Requests in the step."""
    chains: int
    """Chains drafted: requests whose prefill is complete; 0 when the drafter did not run."""
    k: int
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
    """As in DraftRow."""
    gpu_draft_s: float | None = None
    """Time of the drafter on the GPU, between two CUDA events."""
    gpu_probe_s: float | None = None
    """Time of the probe's own kernels on the GPU."""
    replica: int = 0
    """As in DraftRow."""


class Structured:
    """Values of RequestRow.structured: vLLM's kinds of structured output, by its names."""

    NONE = "none"
    """Held to nothing."""
    KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
    """vLLM puts a tool call whose function is named or required as "json", or as "structural_tag"
    where its tool parser has one; a call that the model is free not to make may be "none"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One finished request, as the engine core saw it."""

    time_s: float
    """When it finished."""
    request: str
    label: str | None
    """The caller's workload label (sampling parameter extra_args["driftscope_label"])."""
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    ttft_s: float | None
    """Arrival to the first token leaving the engine core."""
    tpot_s: float | None
    """Mean time per output token after the first; None with fewer than two tokens."""
    finish_reason: str
    temperature: float | None
    max_tokens: int | None
    traced: bool = True
    """Whether the request was selected for recording."""
    replica: int = 0
    """As in DraftRow."""
    traceparent: str | None = None
    """The caller's trace context (W3C), where the engine was given one."""
    structured: str | None = None
    """What the output was held to, see `Structured`; None: the engine did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRow:
    """What a recording process and its machine use, every ten seconds while it serves."""

    time_s: float
    source: str
    """The process, as in its status."""
    process_bytes: int
    """Resident memory of the process."""
    host_available_bytes: int
    """Memory that the machine could still give."""
    gpu_used_bytes: int | None
    """Memory in use on the process's GPU, by anyone; None without one."""
    gpu_busy: float | None = None
    """Share of the time in which the GPU ran anything, as NVML has it; only beside a replay."""
    gpu_power_w: float | None = None


class Ended:
    """Values of ClientRow.ended: how a request came to its end, as its sender saw it."""

    ANSWERED = "answered"
    """The whole answer came, with a finish reason."""
    INTERRUPTED = "interrupted"
    """The stream broke off after tokens had come, was none, or ended without saying why."""
    TIMEOUT = "timeout"
    """Nothing came for longer than the sender waits."""
    REFUSED = "refused"
    """The server answered with an error, also when asked again."""
    UNREACHED = "unreached"
    """No connection, or it broke before an answer began, also when asked again."""
    CANCELLED = "cancelled"
    """Running when the replay was stopped."""
    UNSENT = "unsent"
    """Never sent: the replay was stopped, or the server was gone."""

    ALL = (ANSWERED, INTERRUPTED, TIMEOUT, REFUSED, UNREACHED, CANCELLED, UNSENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    """One request of a replay, as its sender saw it; one row for each that was planned.

    Durations are the sender's, the network and the server's queue in them. What the server did not
    say is None.
    """

    time_s: float
    """When it ended."""
    request: str
    """Id that the sender gave it, unique in the run; sent as X-Request-Id."""
    response: str | None
    """Id in the server's answer, such as "chatcmpl-<request>". RequestRow.request begins with it in
    vLLM, see `driftscope.analysis.senders`."""
    order: int
    """Place in the randomised plan, from 0."""
    condition: str
    """Also its workload label."""
    pair: str
    """Rows with the same pair, concurrency and repeat asked the same question, in each condition
    and in each run of the same suite."""
    repeat: int
    warmup: bool
    """Sent to warm the server up: no figure counts it."""
    concurrency: int | None
    """Requests kept running at once (closed loop); None: sent at `rate`."""
    rate: float | None
    """Requests per second as asked for (open loop)."""
    due_s: float | None
    """When an open loop wanted it sent."""
    sent_s: float | None
    """When its last attempt was sent; None: never."""
    ended: str
    """See `Ended`."""
    status: int | None
    """HTTP status of the last attempt that had one."""
    error: str | None
    """What went wrong last, also in an attempt that was retried."""
    attempts: int
    waited_s: float
    """Between attempts."""
    ttft_s: float | None
    """From `sent_s` to the first token."""
    tpot_s: float | None
    """From the first token to the last, over the tokens after the first."""
    e2e_s: float | None
    """From the first attempt to the end, waits included."""
    gaps_s: Floats | None
    """Time between arrivals of pieces of the answer; with speculation a piece may hold several
    tokens."""
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    """Prompt tokens from the server's prefix cache."""
    finish_reason: str | None
    temperature: float | None
    max_tokens: int | None
    drafted: Ints | None
    """Per round, from the server's `metrics.speculative_decoding`; None: it did not say."""
    accepted: Ints | None
    """As `drafted`; where the server gives a histogram only, sorted."""
    digest: str | None
    """sha256 of the answer's text and tool calls, first 16 hex digits; no text is kept."""
    json_ok: bool | None
    """Where JSON was asked for: whether the answer parses and fits the schema, if there is one."""
    tool_ok: bool | None
    """Where a tool call was expected: right function, arguments parse and fit its schema."""
    early_stop: bool | None
    """Where a least length was expected: it stopped by itself before."""
    garbled: bool | None
    looping: bool | None
    """The answer ends in a repetition loop."""


Row = DraftRow | VerifyRow | StepRow | RequestRow | ResourceRow | ClientRow

RECORDS: dict[str, type[Row]] = {
    "draft": DraftRow,
    "verify": VerifyRow,
    "step": StepRow,
    "request": RequestRow,
    "resource": ResourceRow,
    "client": ClientRow,
}


class UndraftedReason:
    """Values of VerifyRow.reason. `DELIBERATE` lists those that a setting asked for."""

    K_ZERO = "k_zero"
    """The schedule set K = 0 on purpose (num_speculative_tokens_per_batch_size, adaptive K)."""
    CONTEXT_LIMIT = "context_limit"
    """No room left before the drafter's or the engine's context limit. vLLM's V1 runner then drafts
    for no request of the batch and has zeros verified, which its own counters call drafted."""
    STRUCTURED_OUTPUT = "structured_output"
    """The grammar rejected the whole draft."""
    PREEMPTED = "preempted"
    """First output after a preemption: its draft was thrown away."""
    TOKEN_BUDGET = "token_budget"
    """The batch used up max_num_batched_tokens: the draft was thrown away unverified."""
    NO_DRAFT = "no_draft"
    """The drafter ran or could have run, and gave nothing: none of the above."""

    DELIBERATE = (K_ZERO,)
    ALL = (K_ZERO, CONTEXT_LIMIT, STRUCTURED_OUTPUT, PREEMPTED, TOKEN_BUDGET, NO_DRAFT)
