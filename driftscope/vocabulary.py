"""Holds the words that driftscope shares: classes of slots, columns by depth, reasons, modes.

A word stands here once. Records of the trace, the probe's buffers, queries, reports and telemetry
take it from here; `driftscope.metrics` defines the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

MANIFEST = "manifest.json"
"""Name of the file that makes a directory a run."""
MASS_CLASSES = ("sink", "prompt", "generated", "self", "null")
"""The classes of slots."""
MASSES = tuple(f"{name}_mass" for name in MASS_CLASSES)
"""Columns of `DraftRow` with the attention mass of each class, in the same order."""
SINK_MASS, PROMPT_MASS, GENERATED_MASS, SELF_MASS, NULL_MASS = MASSES
DISTANCE_MASS = "distance_mass"
"""Column of `DraftRow` with the attention mass by distance from the query, see
`driftscope.trace.records`."""

RMS_BY_DEPTH = IN_RMS, PRENORM_RMS, POSTNORM_RMS, FED_RMS = (
    "in_rms",
    "prenorm_rms",
    "postnorm_rms",
    "fed_rms",
)
"""Columns with the RMS of a drafter's hidden state at each depth, in the order of the network."""
CONFIDENCE_BY_DEPTH = ("top1", "entropy")
"""Columns with the confidence of each draft."""
BY_DEPTH = (*RMS_BY_DEPTH, *CONFIDENCE_BY_DEPTH)
"""Columns of `DraftRow` with one number for each depth."""
AUX = ("aux_rms", "aux_norm_rms")
"""Columns of `DraftRow` with one number for each captured target layer."""

REPLAY_LABEL = "replay/"
"""Beginning of the workload label of each request that `driftscope replay` sends; the suite and the
condition follow: replay/SUITE/CONDITION."""

SINK_DEFAULT, SINK_GIVEN, SINK_FOUND, SINK_SOUGHT = SINK_SOURCES = (
    "default",
    "given",
    "found",
    "sought",
)
"""`Manifest.sink_source`: nobody said otherwise; asked for; looked for in the first chains; still
being looked for, so that no masses were taken yet."""


class Execution:
    """Values of DraftRow.execution and StepRow.execution: how the drafter ran."""

    UNSEEN = ""
    """No hook watched this step: readers put the manifest's mode in its place."""
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
    """Execution mode by `Manifest.mode`."""


class Interchange(StrEnum):
    """Format in which `driftscope export` writes a run."""

    SPECULATION_PROFILE = "speculation-profile"
    SPS_TABLE = "sps-table"
    ROLLUP = "rollup"


class EngineName(StrEnum):
    """Name of an engine on the command line, whose own metrics `watch` reads."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    LLAMACPP = "llamacpp"
    LMDEPLOY = "lmdeploy"


class Strategy:
    """Values of DraftRow.strategy: method by which attention masses were computed."""

    KEYS = "keys"
    """A softmax over the context's keys, read back from the cache."""
    LSE = "lse"
    """The kernel's own log-sum-exp, and the scores of short ranges of slots."""
    NONE = "none"
    """Not taken."""


class Structured:
    """Values of RequestRow.structured: vLLM's kinds of structured output, by its names."""

    NONE = "none"
    """No constraint."""
    KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
    """vLLM reports a tool call whose function is named or required as "json", or as
    "structural_tag" if its tool parser has one; an optional call may be "none"."""


class Region:
    """Kinds of text that an answer consists of: each of its tokens has one."""

    PROSE = "prose"
    CODE = "code"
    """A fenced block, its fences included, of any language but JSON, lines of code without a fence,
    and the lines of a diff or patch that change nothing."""
    DIFF = "diff"
    """Lines of a diff or patch that begin with +, - or @@, in a fence or not, and blocks from
    SEARCH to REPLACE."""
    JSON = "json"
    """A tool call between its marks, a fenced block of JSON, or JSON values that begin a line or
    follow a colon."""
    THINKING = "thinking"
    """Text between the marks that a model puts around its thinking."""
    MARKUP = "markup"
    """Rows of a table, and the marks of list items and headings."""
    NUMBER = "number"
    """Digits and formulae in prose."""
    TEMPLATE = "template"
    """Special tokens, and the marks around tool calls and thinking."""
    GUIDED = "guided"
    """An answer that a regular expression, a choice or a grammar constrains, after its thinking."""

    ALL = (PROSE, CODE, DIFF, JSON, THINKING, MARKUP, NUMBER, TEMPLATE, GUIDED)
    """All kinds; the place of one in this order is its code in a trace."""


class Language:
    """Classes of languages that a fence of code names: a word of this list, never the text."""

    NO_FENCE = "no fence"
    """Text outside fences, arguments of tool calls and JSON answers included."""
    PYTHON = "python"
    JAVASCRIPT = "javascript/typescript"
    JAVA = "java"
    C = "c/c++"
    GO = "go"
    RUST = "rust"
    SHELL = "shell"
    SQL = "sql"
    HTML = "html/css"
    """HTML, CSS and XML."""
    JSON = "json/yaml"
    """JSON, YAML and TOML."""
    OTHER = "other"
    """A fence that names any other language, or something else, such as diff."""
    NONE = "none"
    """A fence that names no language."""

    ALL = (
        *(NO_FENCE, PYTHON, JAVASCRIPT, JAVA, C, GO, RUST, SHELL, SQL, HTML, JSON),
        *(OTHER, NONE),
    )
    """All classes; the place of one in this order is its code in a trace."""


class Ended:
    """Values of ClientRow.ended: how a request ended, as observed by the client."""

    ANSWERED = "answered"
    """The complete answer arrived, with a finish reason."""
    INTERRUPTED = "interrupted"
    """The stream was cut off after tokens had arrived, was not an event stream, or ended without a
    finish reason."""
    TIMEOUT = "timeout"
    """No data arrived for longer than the client waits."""
    REFUSED = "refused"
    """The server answered with an error, also after retries."""
    UNREACHED = "unreached"
    """There was no connection, or it broke before an answer began, also after retries."""
    CANCELLED = "cancelled"
    """The request was running when the replay was stopped."""
    UNSENT = "unsent"
    """The request was never sent: the replay was stopped, or the server was gone."""

    ALL = (ANSWERED, INTERRUPTED, TIMEOUT, REFUSED, UNREACHED, CANCELLED, UNSENT)


class RunState:
    """States of a run directory."""

    RECORDING = "recording"
    """A process still writes to it."""
    STARTING = "starting"
    """An engine has begun it and has not loaded its models yet."""
    CLOSED = "closed"
    """Every process closed it; its figures are complete."""
    EMPTY = "no rounds"
    """It is closed and nothing was drafted."""
    NOT_CLOSED = "not closed"
    """Its processes were killed, or are idle on another machine."""
    NEVER_BEGAN = "never began"
    """The engine ended before its models were loaded: nothing was recorded."""
    UNREADABLE = "unreadable"
    """Its manifest or status cannot be read."""

    REMOVABLE = (CLOSED, EMPTY)
    """States in which `prune` may remove a run."""


class UndraftedReason:
    """Values of VerifyRow.reason: why a step had no draft to verify, or a cut one. `DELIBERATE`
    lists those that a setting asked for, `COUNTED` those that an engine may count as rejected
    drafts."""

    K_ZERO = "k_zero"
    """K = 0 on purpose: by the schedule (num_speculative_tokens_per_batch_size, adaptive K), or
    because the engine has no drafter."""
    CONTEXT_LIMIT = "context_limit"
    """No room left before the drafter's or the engine's context limit. vLLM's V1 runner then drafts
    for no request of the batch and has zeros verified, which its own counters call drafted."""
    STRUCTURED_OUTPUT = "structured_output"
    """A grammar allows no, or no further, token of the draft."""
    PREEMPTED = "preempted"
    """First output after a preemption: its draft was thrown away."""
    TOKEN_BUDGET = "token_budget"  # noqa: S105  tokens of text, no secret
    """The batch used up max_num_batched_tokens: the draft, or its end, was not verified."""
    CONFIDENCE = "confidence"
    """The engine verified no token, or only the first ones, of a draft with low confidence
    (vLLM's enable_adaptive_verification), which its own counters call rejected."""
    NO_DRAFT = "no_draft"
    """The drafter ran or could have run, but returned nothing, for none of the reasons above."""

    DELIBERATE = (K_ZERO, CONFIDENCE)
    COUNTED = (CONTEXT_LIMIT, STRUCTURED_OUTPUT, PREEMPTED, CONFIDENCE)
    """Reasons for which vLLM may verify padding or an emptied draft instead, which its own counters
    call a draft with nothing accepted (vllm#34734, vllm#58080, vllm#56977)."""
    ALL = (
        *(K_ZERO, CONTEXT_LIMIT, STRUCTURED_OUTPUT, PREEMPTED, TOKEN_BUDGET, CONFIDENCE),
        NO_DRAFT,
    )


CHOOSES_LENGTH = ("ngram", "ngram_gpu", "suffix")
"""Speculation methods that copy text: each draft is as long as the copied text, up to K."""

HIGH, MEDIUM, INFO, GOOD = ("high", "medium", "info", "good")
"""Importance of a finding, worst first: in the terminal, the report, the JSON, the gate and the
alerts."""
GATED = (HIGH, MEDIUM)
"""Severities that a gate can fail on."""


class Growth(StrEnum):
    """Answer to whether the state fed to the next depth grows."""

    GROWS = "grows"
    KEEPS_ITS_SIZE = "keeps its size"
    CANNOT_TELL = "cannot tell"
    """Neither is excluded, or the truth lies between the two thresholds."""
