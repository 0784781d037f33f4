"""The rows of a trace: one frozen dataclass per record, with the meaning of each column.

Conventions: `time_s` is seconds since the Unix epoch; durations end in `_s`; depth is 1-based, the
first element of every per-depth list; RMS is ||x||_2 / sqrt(dim); a list is None where the quantity
does not exist for the drafter or was not recorded, never zeros. An element of a mass list that does
not apply is NaN, for example the sink's if a sliding window hides all of its slots from the layer.

`distance_mass` is by the distance of a slot from the query: the query's own slot minus the slot, so
that the own slot has distance 0. A chain of K tokens looks back on itself over at most K - 1 slots:
these distances have a bin each. The bins after them double in width, and everything farther away
shares the last one:

    0, 1, ..., K-1, [K, 2K-1], [2K, 4K-1], [4K, 8K-1], [8K, ...)

Slots of the sink set and the learned bias have classes of their own and are in no bin: at each
depth and in each layer the bins, `sink_mass` and `null_mass` sum to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from driftscope.vocabulary import Execution, Strategy

SCHEMA_VERSION = "3.0"
"""Version as major.minor: a new column raises minor, a changed meaning raises major."""

Floats = Sequence[float]
Ints = Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRow:
    """One recorded chain: the K tokens that the drafter drafted in a row for one request.

    With p = `position`, the last verified slot, the query of depth d is slot p+d-1 and sees slots
    0..p+d-1. In each layer the masses of one depth sum to 1; each mass is a mean over heads. A
    drafter without attention has 0 layers and 0 heads, and no masses.
    """

    step: int
    """Number of the draft step in its worker, from 1."""
    time_s: float
    """Time at which the step ended, in seconds since the Unix epoch."""
    request: str
    """The engine's internal request id."""
    position: int
    """p: index of the last verified slot; the context is p + 1 slots long. Joins to VerifyRow."""
    prompt_tokens: int
    """Number of tokens in the request's prompt."""
    batch: int
    """Number of requests in the step."""
    k: int
    """Chain length; per-depth lists have this many elements."""
    layers: int
    """Number of drafter layers with attention; mass lists have k * layers elements, depth by
    depth."""
    chunked_prefill: bool
    """Whether the drafter's KV cache may be wrong for this request, which distorts its masses: on
    vLLM's V1 runner after a prompt prefilled in several chunks, after a step that the drafter
    skipped near a context limit, and for requests that the prefix cache serves after either."""
    sink_mass: Floats | None
    """Share of attention on the sink set, `Manifest.sink_slots`. None: masses were not recorded,
    the drafter has no attention, or a search for a sink found none. NaN in an element: a sliding
    window hides the sink from that layer."""
    prompt_mass: Floats | None
    """Share of attention on slots [0, prompt_tokens) outside the sink set. None: masses were not
    recorded, or the drafter has no attention."""
    generated_mass: Floats | None
    """Share of attention on slots [prompt_tokens, p] outside the sink set: verified output. None:
    as prompt_mass."""
    self_mass: Floats | None
    """Share of attention on slots [p+1, p+d-1]: the chain's own tokens; 0 at depth 1 by
    construction. None: as prompt_mass."""
    null_mass: Floats | None
    """Share of attention that a learned sink bias takes. None: the drafter has no such bias, or
    masses were not recorded."""
    in_rms: Floats | None
    """RMS of the hidden state that enters the first drafter layer; depth 1: the fc output. None:
    the drafter has no such state, or it was not recorded."""
    prenorm_rms: Floats | None
    """RMS of the residual stream after the last layer, before the final norm. None: as in_rms."""
    postnorm_rms: Floats | None
    """RMS of the residual stream after the final norm. None: as in_rms."""
    fed_rms: Floats | None
    """RMS of the state fed to the next depth: post-norm with `norm_output`, otherwise pre-norm.
    None: as in_rms."""
    top1: Floats | None
    """Largest softmax probability of the drafter's logits, over its own vocabulary. None: the
    drafter returns no logits, or they were not recorded."""
    entropy: Floats | None
    """Entropy of that softmax, in nats. None: as top1."""
    aux_rms: Floats | None
    """RMS of the captured target layers at slot p, before any norm; one per captured layer. None:
    the drafter reads no captured layers, or they were not recorded."""
    aux_norm_rms: Floats | None
    """RMS of the captured target layers as the fc reads them, after `fc_norm`, or of the chunks of
    the output of `norm_before_fc`. None: the drafter has neither norm."""
    fc_rms: float | None
    """RMS of the output of the drafter's fc at slot p. None: the drafter has no fc, or it was not
    recorded."""
    token_ids: Ints | None
    """Ids of the drafted tokens in the target's vocabulary. None: recording them was not
    requested."""
    rate: float = 1.0
    """Share of draft steps that were recorded at the time of this chain, more than 0 and at most 1:
    the chain represents 1 / rate chains."""
    distance_mass: Floats | None = None
    """Share of attention by distance from the query, [k, layers, bins] flattened, mean over heads;
    bins begin at `Manifest.distance_edges`. They sum to 1 minus sink_mass and null_mass. None: not
    recorded for this chain, because one recorded chain in `Manifest.distance_every` has it; or the
    drafter has no attention, or its queries see slots after their own."""
    target_token_rank: int | None = None
    """Rank of the target's own token among the drafter's logits at the depth whose token was
    rejected, from 1; 0 if the draft vocabulary lacks it. None: no token that was verified was
    rejected, or it was not measured: one recorded chain in `Manifest.distance_every` is, where the
    logits are not inside a CUDA graph."""
    rejected_closeness: float | None = None
    """Probability of the rejected token as a share of that of the target's most probable one; 0
    unless it is the target's second choice. None: as target_token_rank."""
    rejected_excluded: bool | None = None
    """Whether the request's own top-k or top-p excludes the rejected token, so that it could not be
    accepted. None: as target_token_rank."""
    heads: int = 0
    """Number of attention heads over which masses are averaged: the rank's own in a file, those of
    all ranks when read. 0: not known, or no attention."""
    strategy: str = Strategy.KEYS
    """Method by which the masses were computed, see `Strategy`."""
    execution: str
    """Execution mode of the drafter, see `Execution`."""
    replica: int = 0
    """Data-parallel replica; `step` counts per replica. Always 0 in a file, whose name has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRow:
    """One decode step of one request: the verification of a draft, or a step without one.

    The engine core writes one for every step, whatever the sampling of DraftRow.
    """

    step: int
    """Number of the engine step, from 1."""
    time_s: float
    """Time at which the step ended, in seconds since the Unix epoch."""
    request: str
    """The engine's internal request id, as in DraftRow."""
    position: int
    """p of the verified chain: joins to the latest DraftRow of this request and position."""
    drafted: int
    """Number of tokens that the drafter proposed for this step; 0 for a step without a draft."""
    verified: int
    """Number of these tokens that the target verified; rates by depth are over these."""
    accepted: int
    """Number of leading draft tokens accepted, as the engine counts them, before stop
    conditions."""
    reason: str | None
    """Reason why nothing was drafted, or why the draft was cut, see `UndraftedReason`. None: every
    drafted token was verified."""
    replica: int = 0
    """Data-parallel replica, as in DraftRow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step of a worker in which the drafter ran or could have run."""

    step: int
    """Number of the step in its worker, from 1, as in DraftRow."""
    time_s: float
    """Time at which the step ended, in seconds since the Unix epoch."""
    requests: int
    """Number of requests in the step."""
    chains: int
    """Number of chains drafted, one per request whose prefill is complete; 0 if the drafter did not
    run."""
    k: int
    """Number of tokens in each chain; 0 if the drafter did not run."""
    recorded: bool
    """Whether this step's chains were sampled and written as DraftRow."""
    step_s: float
    """Wall time of the whole model step on the worker's thread (target, sampling and drafter)."""
    draft_s: float
    """Wall time of the drafter within the step."""
    probe_s: float
    """Time spent in the probe on the worker's thread within the step."""
    rate: float = 1.0
    """Share of draft steps that were recorded at the time of this step, as in DraftRow."""
    execution: str = Execution.UNSEEN
    """Execution mode of the drafter, as in DraftRow. Empty in a file: the mode of the manifest."""
    gpu_draft_s: float | None = None
    """Time of the drafter on the GPU, between two CUDA events. None: there is no GPU."""
    gpu_probe_s: float | None = None
    """Time of the probe's own kernels on the GPU. None: as gpu_draft_s."""
    replica: int = 0
    """Data-parallel replica, as in DraftRow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One finished request, as recorded in the engine core."""

    time_s: float
    """Time at which it finished, in seconds since the Unix epoch."""
    request: str
    """The engine's internal request id, as in DraftRow."""
    label: str | None
    """The caller's workload label, `driftscope_label`, else `adapter`. None: there is neither."""
    arrival_s: float
    """Time at which it arrived, in seconds since the Unix epoch."""
    prompt_tokens: int
    """Number of tokens in the prompt."""
    output_tokens: int
    """Number of tokens in the answer."""
    ttft_s: float | None
    """Time from arrival to the first token leaving the engine core. None: there was no token."""
    tpot_s: float | None
    """Mean time per output token after the first. None: fewer than two tokens."""
    finish_reason: str
    """The engine's finish reason, such as "stop", "length" or "abort"."""
    temperature: float | None
    """Sampling temperature of the request. None: the engine did not report it."""
    max_tokens: int | None
    """Largest number of tokens allowed in the answer. None: no limit was set."""
    traced: bool = True
    """Whether the request was selected for recording."""
    replica: int = 0
    """Data-parallel replica, as in DraftRow."""
    traceparent: str | None = None
    """The caller's trace context (W3C). None: the request had none."""
    structured: str | None = None
    """Kind of structured output requested, see `Structured`. None: the engine did not report it."""
    prompt_digest: str | None = None
    """Keyed hash of the prompt's token ids, 16 hex digits. None: digests are switched off, or the
    prompt has no token ids."""
    conversation: str | None = None
    """Digest of the prompt with which this request's conversation began: another than its own if it
    continues an earlier prompt and its answer. None: as prompt_digest."""
    session: str | None = None
    """The caller's session, `driftscope_session`, else the engine's. None: the caller gave none."""
    pair: str | None = None
    """`ClientRow.pair` of the question, if a replay sent it. None: the caller gave none."""
    adapter: str | None = None
    """LoRA adapter with which the target served it. None: the target as it is."""
    region_starts: Ints | None = None
    """Places in the answer at which a region begins, ascending; the answer's first token is 0. The
    round of VerifyRow drafts from token position + 2 - prompt_tokens on. None: not recorded."""
    region_codes: Ints | None = None
    """Place in `Region.ALL` of the region that begins at each of these. None: not recorded."""
    region_languages: Ints | None = None
    """Place in `Language.ALL` of the language that its fence names, 0 outside fences. None: not
    recorded."""
    region_boundaries: Ints | None = None
    """Places in the answer at which a block of text, or prose after one, begins, ascending. None:
    not recorded."""
    region_copies: Ints | None = None
    """Begin and end, alternating, of each passage that repeats at least 8 earlier tokens. None: not
    recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRow:
    """Resources used by a recording process and its machine, every ten seconds while it serves."""

    time_s: float
    """Time of the measurement, in seconds since the Unix epoch."""
    source: str
    """Name of the process, as in its status file."""
    process_bytes: int
    """Resident memory of the process."""
    host_available_bytes: int
    """Memory still available on the machine."""
    gpu_used_bytes: int | None
    """Memory in use on the process's GPU, by any process. None: no GPU."""
    gpu_busy: float | None = None
    """Share of the time in which the GPU ran any kernel, according to NVML. None: not recorded by a
    replay, or no GPU."""
    gpu_power_w: float | None = None
    """Power that the GPU draws, in watts. None: as gpu_busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    """One request of a replay, as measured by the client; one row per planned request.

    Durations are measured by the client and include the network and the server's queue. Values that
    the server did not report are None.
    """

    time_s: float
    """Time at which it ended, in seconds since the Unix epoch."""
    request: str
    """Id that the client assigned, unique in the run; sent as X-Request-Id."""
    response: str | None
    """Id in the server's answer, with which RequestRow.request begins in vLLM. None: there was no
    answer."""
    order: int
    """Position in the randomised plan, from 0."""
    condition: str
    """Condition of the suite under which it was sent; also its workload label."""
    pair: str
    """Identifier of the question, the same in each condition and each run of a suite."""
    repeat: int
    """Number of the repetition, from 0."""
    warmup: bool
    """Whether it was sent to warm the server up; no figure counts it."""
    concurrency: int | None
    """Number of requests kept running at once (closed loop). None: sent at `rate`."""
    rate: float | None
    """Requested rate in requests per second (open loop). None: a closed loop."""
    due_s: float | None
    """Time at which the open loop planned to send it, in seconds since the Unix epoch. None: a
    closed loop."""
    sent_s: float | None
    """Time at which its last attempt was sent, in seconds since the Unix epoch. None: it was never
    sent."""
    ended: str
    """Kind of its end, see `Ended`."""
    status: int | None
    """HTTP status of the last attempt that had one. None: no attempt had one."""
    error: str | None
    """Last error, including errors of attempts that were retried. None: there was none."""
    attempts: int
    """Number of times that it was sent."""
    waited_s: float
    """Total waiting time between attempts."""
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
    """Number of tokens in the prompt. None: the server did not report it."""
    output_tokens: int | None
    """Number of tokens in the answer. None: as prompt_tokens."""
    cached_tokens: int | None
    """Number of prompt tokens read from the prefix cache. None: as prompt_tokens."""
    finish_reason: str | None
    """Finish reason reported by the server. None: it reported none."""
    temperature: float | None
    """Requested sampling temperature. None: none was requested."""
    max_tokens: int | None
    """Requested largest number of tokens in the answer. None: no limit was requested."""
    verified: Ints | None
    """Number of draft tokens verified in each round. None: as prompt_tokens."""
    accepted: Ints | None
    """Number of tokens accepted in each round; sorted if the server reports only a histogram. None:
    as prompt_tokens."""
    digest: str | None
    """sha256 of the answer's text and tool calls, 16 hex digits. None: there was no answer."""
    json_ok: bool | None
    """Whether the answer parses as JSON and fits the schema. None: JSON was not requested, or there
    was no answer."""
    tool_ok: bool | None
    """Whether the tool call has the right function and fitting arguments. None: none was expected,
    or there was no answer."""
    early_stop: bool | None
    """Whether it stopped before the expected minimum length. None: as tool_ok."""
    garbled: bool | None
    """Whether too many of the answer's characters do not belong in a text. None: there was no
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


DOUBLINGS = 3
"""Number of bins between the single distances and the last bin, each twice as wide as the one
before. The value is driftscope's own: over 8K slots, text that a chain of K tokens repeats is near,
and the kernels sort only these slots by distance."""


def edges_of(k: int) -> tuple[int, ...]:
    """Return the first distance of each bin for chains of at most `k` tokens, from 1."""
    return (*range(k), *(k << n for n in range(DOUBLINGS + 1)))


def longest_of(bins: int) -> int:
    """Return the chain length that `bins` bins are made for."""
    return bins - DOUBLINGS - 1


def reach_of(bins: int) -> int:
    """Return the distance at which the last of `bins` bins begins."""
    return longest_of(bins) << DOUBLINGS


def edge_faults(edges: tuple[int, ...], every: int) -> str | None:
    """Return in words what is wrong with a manifest's `distance_edges` and `distance_every`."""
    if bool(edges) != bool(every):
        return f"distance_every is {every}, with {len(edges)} distance_edges"
    if edges and edges != edges_of(longest_of(len(edges))):
        return f"distance_edges is {list(edges)!r:.40}, not the first distances of bins"
    return None
