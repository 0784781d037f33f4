"""Holds the words that driftscope shares: classes of slots, columns by depth, reasons, modes.

A word stands here once. Records of the trace, the probe's buffers, queries, reports and telemetry
take it from here; `driftscope.metrics` defines the figures.
"""

from __future__ import annotations

from collections.abc import Mapping

MASS_CLASSES = ("sink", "prompt", "generated", "self", "null")
"""The classes of slots, in the order in which `DraftRow.head_mass` holds them."""
MASSES = tuple(f"{name}_mass" for name in MASS_CLASSES)
"""Columns of `DraftRow` with the attention mass of each class, in the same order."""
SINK_MASS, PROMPT_MASS, GENERATED_MASS, SELF_MASS, NULL_MASS = MASSES

RMS_BY_DEPTH = ("in_rms", "prenorm_rms", "postnorm_rms", "fed_rms")
"""Columns with the RMS of a drafter's hidden state at each depth, in the order of the network."""
CONFIDENCE_BY_DEPTH = ("top1", "entropy")
"""Columns with the confidence of each draft."""
BY_DEPTH = (*RMS_BY_DEPTH, *CONFIDENCE_BY_DEPTH)
"""Columns of `DraftRow` with one number for each depth."""
AUX = ("aux_rms", "aux_norm_rms")
"""Columns of `DraftRow` with one number for each captured target layer."""

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


class Structured:
    """Values of RequestRow.structured: vLLM's kinds of structured output, by its names."""

    NONE = "none"
    """Held to nothing."""
    KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
    """vLLM puts a tool call whose function is named or required as "json", or as "structural_tag"
    where its tool parser has one; a call that the model is free not to make may be "none"."""


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
    TOKEN_BUDGET = "token_budget"  # noqa: S105  tokens of text, no secret
    """The batch used up max_num_batched_tokens: the draft was thrown away unverified."""
    NO_DRAFT = "no_draft"
    """The drafter ran or could have run, and gave nothing: none of the above."""

    DELIBERATE = (K_ZERO,)
    ALL = (K_ZERO, CONTEXT_LIMIT, STRUCTURED_OUTPUT, PREEMPTED, TOKEN_BUDGET, NO_DRAFT)
