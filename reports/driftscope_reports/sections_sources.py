"""Sections on single requests, on replays as the client measured them, and on provenance."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path

from markupsafe import Markup

from driftscope.analysis.closeup import NAMED_EACH, NamedRequest, OpenedRequest
from driftscope.analysis.number_words import (
    NOTHING,
    count,
    listed,
    milliseconds,
    number,
    percent,
    times,
)
from driftscope.analysis.replays import (
    BOUNDS,
    NOT_RECORDED,
    Cell,
    FileTotals,
    ReplayComparison,
    ReplaySummary,
)
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.finding import capital
from driftscope.findings.rules_compare import OUTCOME_WORDS
from driftscope.findings.rules_data import requests_of
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
from driftscope.trace.manifest import (
    AGREES,
    AUX_FROM_CONFIG,
    AUX_FROM_ENGINE,
    BY_DEPTH,
    GREEDY,
    PROBABILISTIC,
    Manifest,
    Model,
)
from driftscope.vocabulary import SINK_SOUGHT, Strategy
from driftscope_reports.model import Section, table
from driftscope_reports.page import part
from driftscope_reports.terminal import replay_length, replay_ratio

_WORDS = 3
_HEAD = (
    "request",
    "label",
    "run",
    "tokens per round",
    "rounds",
    "growth",
    "on the chain, depth K",
    "prompt",
    "output",
    "time per token",
    "time to first",
    "temperature",
    "accepted by round",
)


def requests(analysis: Analysis) -> Section:
    """Return a table of the worst and the best, which the page's script can search and expand."""
    runs = analysis.runs
    if not any(run.closeup and run.closeup.named for run in runs):
        return Section(
            id="requests", name="Requests", missing="Not applicable: no request has a round."
        )
    named = [request for run in runs if run.closeup for request in run.closeup.named]
    lengths = sorted(request.mean_length for request in named)
    rows = [
        _request_row(i, run, request)
        for i, run in enumerate(runs)
        if run.closeup
        for request in run.closeup.named
    ]
    kept = [at for at in range(len(_HEAD)) if _tells(_HEAD[at], [row[at] for row in rows])]
    return Section(
        id="requests",
        name="Requests",
        conclusion=f"Single requests yield {number(lengths[0])} to {number(lengths[-1])} tokens "
        "per round.",
        lead=_requests_lead(runs),
        below=[
            part("search"),
            table(
                [_HEAD[at] for at in kept],
                [[row[at] for at in kept] for row in rows],
                words=sum(at < _WORDS for at in kept),
                caption="Requests, worst acceptance first",
                sortable=True,
                id="request-table",
            ),
        ],
        affects=("requests",),
    )


def stories(runs: tuple[RunSummary, ...]) -> list[dict[str, object]]:
    """Return what the page's script shows of each request that can be opened, by run."""
    return [
        {
            "label": run.label,
            "k": run.k,
            "opened": [_story(request) for request in (run.closeup.opened if run.closeup else ())],
        }
        for run in runs
    ]


def _story(opened: OpenedRequest) -> dict[str, object]:
    story = {field.name: getattr(opened, field.name) for field in fields(opened)}
    return {**story, "masses": dict(opened.masses), "text": opened.text and asdict(opened.text)}


def _requests_lead(runs: tuple[RunSummary, ...]) -> str:
    cut = any(run.requests > 2 * NAMED_EACH for run in runs)
    which = (
        f"The {NAMED_EACH} worst and the {NAMED_EACH} best requests of each run"
        if cut
        else "All requests"
    )
    recorded = any(
        ids is not None
        for run in runs
        if run.closeup
        for opened in run.closeup.opened
        for ids in opened.token_ids
    )
    kept = any(opened.text for run in runs if run.closeup for opened in run.closeup.opened)
    text = "Token ids were recorded." if recorded else "No text and no token ids were recorded."
    if kept:
        text = "Prompts and answers were kept, and opened requests show them."
    return f"{which} by tokens per round, worst first. Underlined requests can be opened. {text}"


def _tells(name: str, cells: list[str]) -> bool:
    """Return whether a column is informative: not a single run's name or a single label
    repeated."""
    if name in ("label", "run", "temperature"):
        return len(set(cells)) > 1
    return any(cell != NOTHING for cell in cells)


def _request_row(index: int, run: RunSummary, request: NamedRequest) -> list[str]:
    opened = [o.request for o in run.closeup.opened] if run.closeup else []
    name = request.request
    if name in opened:
        name = part("open_button", name, index, opened.index(name))
    return [
        name,
        request.label,
        run.label,
        number(request.mean_length),
        f"{request.rounds:,}",
        times(request.growth),
        percent(request.self_mass),
        _count(request.prompt_tokens),
        _count(request.output_tokens),
        milliseconds(request.tpot_s),
        milliseconds(request.ttft_s),
        number(request.temperature),
        part("code", request.accepted),
    ]


def _count(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


# ---- replays

_CELLS = (
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
_SUMS = ("replay", "condition", "period", "K", "rounds", "verified", "accepted", "by depth")
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


def replays(analysis: Analysis) -> Section | None:
    """Return tables of every replay; None without one."""
    if not analysis.senders:
        return None
    known = [run.planned for run in analysis.senders if run.planned is not None]
    answered = sum(run.ended.get("answered", 0) for run in analysis.senders)
    sentences = [f"The client recorded {answered:,} answers to {sum(known):,} requests."]
    if any(cell.totals for run in analysis.senders for cell in run.cells):
        sentences.append(
            "Sums of another tool's file have no rows of single requests; an interval is made of "
            f"{BOUNDS}."
        )
    return Section(
        id="senders",
        name="As measured by the client",
        lead=" ".join(sentences if known else sentences[1:]),
        below=[
            *(
                part("paragraph", f"{capital(run.validity.words)}.", head=f"{run.label}:")
                for run in analysis.senders
            ),
            part("paragraph", _HOW, "how", head="How to read this:"),
            _cells(analysis),
            _sums(analysis),
            _outcomes(analysis),
            _compared(analysis.versus),
            table(
                _MEMORY,
                [_memory_row(run) for run in analysis.senders],
                caption="Memory, and matching with the probe",
            ),
            part("opens", "Definitions", part("definitions", _DEFINITIONS)),
        ],
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


def _cells(analysis: Analysis) -> Markup:
    rows = [
        [
            run.label,
            cell.condition,
            cell.load,
            _answered(cell),
            replay_length(cell),
            replay_ratio(cell.length_ratio),
            milliseconds(cell.tpot_s),
            replay_ratio(cell.tpot_ratio),
            number(cell.per_user, 1),
            number(cell.throughput, 1),
            milliseconds(cell.ttft_s),
        ]
        for run in analysis.senders
        for cell in run.cells
    ]
    of_fleets = any(run.rollups for run in analysis.senders)
    head = [name.replace("baseline", "the others") if of_fleets else name for name in _CELLS]
    return table(head, rows, words=2, caption="Replays by condition and load", sortable=True)


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
        *(
            (NOT_RECORDED if n is None else f"{n:,}")
            for n in (sums.k, sums.rounds, sums.verified, sums.accepted)
        ),
        NOT_RECORDED if depths is None else " ".join(number(rate) for rate in depths),
    ]


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
            replay_ratio(pair.length_ratio),
            replay_ratio(pair.tpot_ratio),
            percent(pair.same_text[0] / pair.same_text[1]) if pair.same_text[1] else NOTHING,
        ]
        for pair in pairs
    ]
    return table(_VERSUS, rows, words=3, caption="Replays of the same prompts")


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


# ---- provenance

_STRATEGIES = {
    Strategy.KEYS: "a softmax over the keys read back",
    Strategy.LSE: "the kernel's log-sum-exp",
    Strategy.NONE: "nothing: masses were not recorded",
}

_CHOSEN = {
    AUX_FROM_CONFIG: " (named in the drafter's config)",
    AUX_FROM_ENGINE: " (the engine's default: the drafter's config names none that the engine "
    "reads)",
}
_DRAFTED = {
    GREEDY: "the most likely token at each depth, whatever the temperature",
    PROBABILISTIC: "drawn from the drafter's distribution at the request's temperature",
}


def provenance(analysis: Analysis, command: str | None = None) -> Section:
    """Return provenance as the last section, with the command that reproduces the file."""
    again = [part("paragraph", "Made again with:"), part("to_copy", command)] if command else []
    # Engine, models, settings, losses and cost, one column per run.
    columns = [provenance_parts(run) for run in analysis.runs]
    rows = [
        [name, *(column[name] for column in columns)]
        for name in (columns[0] if columns else ())
        if any(column[name] != NOTHING for column in columns)
    ]
    manifests = [run.manifest for run in analysis.runs] or [s.manifest for s in analysis.senders]
    manifests = manifests or ([analysis.plain.manifest] if analysis.plain else [])
    engines = dict.fromkeys(f"{m.engine} {m.engine_version}".strip() for m in manifests)
    targets = dict.fromkeys(_name(m.target) for m in manifests if m.target.name)
    drafters = dict.fromkeys(_name(m.drafter) for m in manifests if m.drafter and m.drafter.name)
    models = listed([*drafters])
    return Section(
        id="provenance",
        name="Provenance",
        conclusion=f"{listed([*engines])}: {listed([*targets])} with {models or 'no drafter'}.",
        below=[
            *again,
            table(
                ["", *(run.label for run in analysis.runs)],
                rows,
                words=1 + len(analysis.runs),
                caption="Where these figures come from",
            ),
        ],
    )


def _name(model: Model) -> str:
    """Return a model's name; of a folder on the server, its last part."""
    return Path(model.name).name if model.name.startswith("/") else model.name


def provenance_parts(run: RunSummary) -> dict[str, str]:
    """Return what identifies the run and how it was recorded, by name."""
    manifest, recording = run.manifest, run.recording
    about = "about " if recording.looked_at is not None else ""
    flags = [name for name, value in sorted(manifest.norm_flags.items()) if value]
    sizes = {
        "tensor": manifest.tensor_parallel,
        "data": manifest.data_parallel,
        "pipeline": manifest.pipeline_parallel,
    }
    return {
        "engine": f"{manifest.engine} {manifest.engine_version}",
        "runner": manifest.runner,
        "the drafter runs": manifest.mode,
        "recorded": manifest.recording,
        "method": manifest.method,
        "target": _model(manifest.target),
        "drafter": _model(manifest.drafter),
        "norm flags": ", ".join(flags) or "none",
        "captured target layers": _captured(run),
        "drafter's tokens": _DRAFTED.get(manifest.draft_sampling or "", NOTHING),
        "rule of verification": manifest.verification or NOTHING,
        "K": f"{manifest.k}",
        "requests": _requests_words(run),
        "hardware": manifest.hardware or NOTHING,
        "attention backend": manifest.attention_backend,
        "masses by": _STRATEGIES.get(manifest.attention_strategy, manifest.attention_strategy),
        "sink set": _sink(manifest),
        "parallel": ", ".join(
            [f"{kind} parallel {size}" for kind, size in sizes.items() if size > 1]
        )
        or NOTHING,
        "meaning of depth": NOTHING if manifest.query_kind == BY_DEPTH else manifest.query_kind,
        "sampling": _sampling(manifest),
        "first chain, computed twice": _witnessed(manifest),
        "chains": f"{recording.chains:,} recorded, {about}{recording.verified_chains:,} verified",
        "rows dropped": f"{recording.dropped:,}",
        "errors caught in hooks": f"{recording.errors:,}",
        "probe's memory on the device": NOTHING
        if manifest.device_bytes is None
        else f"at most {manifest.device_bytes / 1e6:.1f} MB on each rank's device",
        "probe cost, all in": percent(recording.overhead_fraction),
        "written by": f"driftscope {manifest.driftscope_version}",
    }


def _model(model: Model | None) -> str:
    if model is None:
        return NOTHING
    weights = f", weights {model.weights_digest}" if model.weights_digest else ""
    config = f"config {model.config_digest}{weights}"
    return f"{model.name} ({model.architecture}, {model.dtype}, {config})"


def _requests_words(run: RunSummary) -> str:
    """Return the requests, and what they are worth if they are not independent of each other."""
    known = run.independence
    if known is None or not known.repeated or known.design_effect is None:
        return requests_of(run)
    return f"{requests_of(run)}; design effect {number(known.design_effect)}"


def _captured(run: RunSummary) -> str:
    """Return the captured layers, and who chose them if the run reports it."""
    manifest, states = run.manifest, run.hidden.aux_rms
    if manifest.aux_layers:
        chosen = _CHOSEN.get(manifest.aux_layers_source or "", "")
        return ", ".join(map(str, manifest.aux_layers)) + chosen
    if not states:
        return "none"
    return f"{len(states)}, indices not recorded"


def _witnessed(manifest: Manifest) -> str:
    """Return what the start-up witness found, which computed the first chain a second time."""
    if manifest.witness != AGREES:
        return manifest.witness or NOTHING
    return f"{AGREES}; fed to the next depth: {manifest.fed_state or 'not known'}"


def _sink(manifest: Manifest) -> str:
    slots = manifest.sink_slots
    if manifest.sink_source == SINK_SOUGHT:
        return "search not finished"
    if not slots:
        return f"no sink found ({manifest.sink_source})"
    if slots == (0,):
        return f"the first slot ({manifest.sink_source})"
    which = f"slots {', '.join(map(str, slots))}"
    if slots == tuple(range(len(slots))):
        which = f"the first {count(len(slots), 'slot')}"
    return f"{which} ({manifest.sink_source})"


def _sampling(manifest: Manifest) -> str:
    every = manifest.every
    if manifest.budget is not None:
        return f"sampled so that the probe keeps within {percent(manifest.budget)} of the TPOT"
    return "every draft step recorded" if every == 1 else f"one draft step in {every} recorded"
