"""Section on replays as the sender of the requests saw them, by condition and load."""

from __future__ import annotations

from driftscope.analysis.number_words import NOTHING, milliseconds, number, percent
from driftscope.analysis.replays import (
    NO_INTERVAL,
    NOT_RECORDED,
    Cell,
    FileTotals,
    ReplayComparison,
    ReplaySummary,
)
from driftscope.analysis.statistics.ratio import PairedRatio
from driftscope.findings.rules_replays import OUTCOME_WORDS
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope.metrics.latency import (
    AGAINST,
    CLIENT_TPOT,
    CLIENT_TTFT,
    OUTCOME,
    PER_USER,
    THROUGHPUT,
)
from driftscope.pipeline import Analysis
from driftscope_reports.html.parts.tables import table
from driftscope_reports.markup import Markup, el
from driftscope_reports.model import Section
from driftscope_reports.page import part

_HEAD = (
    "replay",
    "condition",
    "load",
    "answered",
    "acceptance length",
    "to baseline",
    "time per token",
    "to baseline",
    "tokens/s per user",
    "tokens/s in total",
    "time to first token",
)
_SUMS = ("replay", "condition", "period", "K", "rounds", "drafted", "accepted", "by depth")
_MEMORY = (
    "replay",
    "KV cache, tokens",
    "requests at full length",
    "drafter's weights",
    "peak GPU memory",
    "GPU power",
    "matched with the probe",
    "first token outside the engine",
)
_VERSUS = (
    "replay",
    "against",
    "condition",
    "load",
    "acceptance length",
    "time per token",
    "same text",
)


def section(analysis: Analysis) -> Section | None:
    """Return tables of every replay; None without one."""
    if not analysis.senders:
        return None
    return Section(
        id="senders",
        name="As measured by the client",
        lead=_title(analysis),
        body=el(
            "div",
            el("p", el("b", "How to read this: "), _HOW, class_="how"),
            [
                _cells(analysis),
                _sums(analysis),
                _outcomes(analysis),
                _compared(analysis.versus),
                _memory(analysis),
            ],
            el("details", el("summary", "Definitions"), part("definitions", _DEFINITIONS)),
        ),
        affects=("senders",),
    )


_HOW = (
    "Each row is one condition of a replay at one load, as measured by the client. Ratios compare "
    "the same prompts, with a 95% interval; an interval that does not contain 1 shows a "
    "difference, any other may be chance."
)
_DEFINITIONS = (
    MEAN_LENGTH,
    CLIENT_TPOT,
    CLIENT_TTFT,
    PER_USER,
    THROUGHPUT,
    AGAINST,
    OUTCOME,
)


def ratio(value: PairedRatio | None) -> str:
    """Return a ratio with its interval, such as "0.91 [0.85, 0.97]"."""
    if value is None:
        return NOTHING
    spread = value.interval
    return number(value.value) + (f" [{spread.low:.2f}, {spread.high:.2f}]" if spread else "")


def length(cell: Cell) -> str:
    """Return the acceptance length with its interval; of sums, that they have none."""
    spread = cell.mean_length_interval
    if spread is None and cell.totals is not None and cell.mean_length is not None:
        return f"{number(cell.mean_length)} ({NO_INTERVAL})"
    return number(cell.mean_length) + (f" [{spread.low:.2f}, {spread.high:.2f}]" if spread else "")


def _title(analysis: Analysis) -> str:
    known = [run.planned for run in analysis.senders if run.planned is not None]
    answered = sum(run.ended.get("answered", 0) for run in analysis.senders)
    sentences = [f"The client recorded {answered:,} answers to {sum(known):,} requests."]
    if any(cell.totals for run in analysis.senders for cell in run.cells):
        sentences.append("Sums of another tool's file have no rows of single requests.")
    return " ".join(sentences if known else sentences[1:])


def _cells(analysis: Analysis) -> Markup:
    rows = [
        [
            run.label,
            cell.condition,
            cell.load,
            _answered(cell),
            length(cell),
            ratio(cell.length_ratio),
            milliseconds(cell.tpot_s),
            ratio(cell.tpot_ratio),
            number(cell.per_user, 1),
            number(cell.throughput, 1),
            milliseconds(cell.ttft_s),
        ]
        for run in analysis.senders
        for cell in run.cells
    ]
    return table(_HEAD, rows, words=2, caption="Replays by condition and load", sortable=True)


def _answered(cell: Cell) -> str:
    if cell.answered is not None and cell.requests is not None:
        return f"{cell.answered:,} of {cell.requests:,}"
    return NOT_RECORDED if cell.requests is None else f"{cell.requests:,} requests"


def _sums(analysis: Analysis) -> Markup | None:
    """Return the sums of other tools' files; None if there are none."""
    rows = [
        [run.label, cell.condition, *_figures(cell.totals)]
        for run in analysis.senders
        for cell in run.cells
        if cell.totals is not None
    ]
    if not rows:
        return None
    return table(_SUMS, rows, words=3, caption="Sums of other tools' files")


def _figures(sums: FileTotals) -> list[str]:
    depths = sums.marginal
    return [
        sums.period,
        *(_whole(n) for n in (sums.k, sums.rounds, sums.drafted, sums.accepted)),
        NOT_RECORDED if depths is None else " ".join(number(rate) for rate in depths),
    ]


def _whole(value: int | None) -> str:
    return NOT_RECORDED if value is None else f"{value:,}"


def _outcomes(analysis: Analysis) -> Markup | None:
    shown = [
        name
        for name in OUTCOME_WORDS
        if any(name in cell.outcomes for run in analysis.senders for cell in run.cells)
    ]
    if not shown:
        return None
    rows = [
        [run.label, cell.condition, cell.load, *(_share(cell, name) for name in shown)]
        for run in analysis.senders
        for cell in run.cells
    ]
    head = ["replay", "condition", "load", *(OUTCOME_WORDS[name] for name in shown)]
    return table(head, rows, words=2, caption="Outcomes of the answers")


def _share(cell: Cell, name: str) -> str:
    counts = cell.outcomes.get(name)
    return NOTHING if counts is None else f"{percent(counts[0] / counts[1])} of {counts[1]:,}"


def _compared(pairs: tuple[ReplayComparison, ...]) -> Markup | None:
    if not pairs:
        return None
    rows = [
        [
            pair.other,
            pair.first,
            pair.condition,
            pair.load,
            ratio(pair.length_ratio),
            ratio(pair.tpot_ratio),
            percent(pair.same_text[0] / pair.same_text[1]) if pair.same_text[1] else NOTHING,
        ]
        for pair in pairs
    ]
    return table(_VERSUS, rows, words=3, caption="Replays of the same prompts")


def _memory(analysis: Analysis) -> Markup:
    return table(
        _MEMORY,
        [_memory_row(run) for run in analysis.senders],
        caption="Memory, and matching with the probe",
    )


def _memory_row(run: ReplaySummary) -> list[str]:
    workload = run.manifest.workload
    server = workload.get("server") or {}
    tokens, longest = server.get("kv_tokens"), server.get("max_model_len")
    weights = workload.get("drafter_bytes")
    return [
        run.label,
        f"{tokens:,}" if tokens else NOTHING,
        number(tokens / longest, 1) if tokens and longest else NOTHING,
        f"{weights / 2**20:,.1f} MiB" if weights else NOTHING,
        f"{run.gpu_used_bytes / 2**30:,.1f} GiB" if run.gpu_used_bytes else NOTHING,
        f"{run.gpu_power_w:,.0f} W" if run.gpu_power_w else NOTHING,
        f"{run.joined:,}" if run.joined else NOTHING,
        milliseconds(run.outside_s),
    ]
