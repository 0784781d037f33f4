"""Sections on single requests, on replays as the client measured them, and on provenance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from driftscope.analysis.closeup import NAMED_EACH, NamedRequest
from driftscope.analysis.number_words import (
    NOTHING,
    count,
    listed,
    milliseconds,
    number,
    percent,
    times,
)
from driftscope.analysis.replays import BOUNDS, Cell, ReplaySummary
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
from driftscope_reports.tables import (
    CELL_COLUMNS,
    SENDER_COLUMNS,
    SUM_COLUMNS,
    VERSUS_COLUMNS,
    Columns,
    head_of,
    rows_of,
)

_WORDS = 3
_COLUMNS: Columns = (  # of a run's index, the run and a request of it
    ("request", lambda shown: _request_name(*shown)),
    ("label", lambda shown: shown[2].label),
    ("run", lambda shown: shown[1].label),
    ("tokens per round", lambda shown: number(shown[2].mean_length)),
    ("rounds", lambda shown: f"{shown[2].rounds:,}"),
    ("growth", lambda shown: times(shown[2].growth)),
    ("on the chain, depth K", lambda shown: percent(shown[2].self_mass)),
    ("prompt", lambda shown: _count(shown[2].prompt_tokens)),
    ("output", lambda shown: _count(shown[2].output_tokens)),
    ("time per token", lambda shown: milliseconds(shown[2].tpot_s)),
    ("time to first", lambda shown: milliseconds(shown[2].ttft_s)),
    ("temperature", lambda shown: number(shown[2].temperature)),
    ("accepted by round", lambda shown: part("code", shown[2].accepted)),
)


def requests(analysis: Analysis) -> Section:
    """Return a table of the worst and the best, which the page's script can search and expand."""
    runs = analysis.runs
    named = [
        (i, run, request)
        for i, run in enumerate(runs)
        if run.closeup
        for request in run.closeup.named
    ]
    if not named:
        return Section(
            id="requests", name="Requests", missing="Not applicable: no request has a round."
        )
    lengths = sorted(request.mean_length for *_, request in named)
    rows = rows_of(_COLUMNS, named)
    # Columns that tell something: not a single run's name or a single label repeated.
    kept = []
    for at, (head, _) in enumerate(_COLUMNS):
        cells = {row[at] for row in rows}
        if len(cells) > 1 if head in ("label", "run", "temperature") else cells != {NOTHING}:
            kept.append(at)
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
    texts = any(opened.text for run in runs if run.closeup for opened in run.closeup.opened)
    text = "Token ids were recorded." if recorded else "No text and no token ids were recorded."
    if texts:
        text = "Prompts and answers were kept, and opened requests show them."
    return Section(
        id="requests",
        name="Requests",
        conclusion=f"Single requests yield {number(lengths[0])} to {number(lengths[-1])} tokens "
        "per round.",
        lead=f"{which} by tokens per round, worst first. Underlined requests can be opened. {text}",
        below=[
            part("search"),
            table(
                [_COLUMNS[at][0] for at in kept],
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
    stories_shown = []
    for run in runs:
        opened = [
            {field.name: getattr(request, field.name) for field in fields(request)}
            | {"masses": dict(request.masses), "text": request.text and asdict(request.text)}
            for request in (run.closeup.opened if run.closeup else ())
        ]
        stories_shown.append({"label": run.label, "k": run.k, "opened": opened})
    return stories_shown


def _request_name(index: int, run: RunSummary, request: NamedRequest) -> str:
    """Return the name of a request, a button if it can be opened."""
    opened = [shown.request for shown in run.closeup.opened] if run.closeup else []
    name = request.request
    return part("open_button", name, index, opened.index(name)) if name in opened else name


def _count(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


# ---- replays

_MEMORY: Columns = (
    ("replay", lambda run: run.label),
    ("KV cache, tokens", lambda run: _count(_server(run).get("kv_tokens"))),
    ("requests at full length", lambda run: _at_full_length(_server(run))),
    ("drafter's weights", lambda run: _mib(run.manifest.workload.get("drafter_bytes"))),
    ("peak GPU memory", lambda run: _mib(run.gpu_used_bytes)),
    ("GPU power", lambda run: f"{run.gpu_power_w:,.0f} W" if run.gpu_power_w else NOTHING),
    ("matched with the probe", lambda run: _count(run.joined or None)),
    ("first token outside the engine", lambda run: milliseconds(run.outside_s)),
)


def replays(analysis: Analysis) -> Section | None:
    """Return tables of every replay; None without one."""
    if not analysis.senders:
        return None
    cells = [cell for run in analysis.senders for cell in run.cells]
    outcomes = [name for name in OUTCOME_WORDS if any(name in cell.outcomes for cell in cells)]
    of_fleets = any(run.rollups for run in analysis.senders)
    columns = (*CELL_COLUMNS, *SENDER_COLUMNS)
    known = [run.planned for run in analysis.senders if run.planned is not None]
    answered = sum(run.ended.get("answered", 0) for run in analysis.senders)
    sentences = [f"The client recorded {answered:,} answers to {sum(known):,} requests."]
    if any(cell.totals for cell in cells):
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
            _of_cells(
                analysis,
                [(h.replace("baseline", "the others") if of_fleets else h, c) for h, c in columns],
                "Replays by condition and load",
            ),
            _of_cells(analysis, SUM_COLUMNS, "Sums of other tools' files", lambda c: c.totals),
            _of_cells(
                analysis,
                (*CELL_COLUMNS[:2], *((OUTCOME_WORDS[n], partial(_share, n)) for n in outcomes)),
                "Outcomes of the answers",
                lambda cell: cell.outcomes,
            ),
            table(
                head_of(VERSUS_COLUMNS),
                rows_of(VERSUS_COLUMNS, analysis.versus),
                words=3,
                caption="Replays of the same prompts",
            )
            if analysis.versus
            else None,
            table(
                head_of(_MEMORY),
                rows_of(_MEMORY, analysis.senders),
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


def _of_cells(
    analysis: Analysis,
    columns: Columns,
    caption: str,
    chosen: Callable[[Cell], object] = bool,
) -> Markup | None:
    """Return a table of those conditions of the replays that are `chosen`; None without one."""
    rows = [
        [run.label, *row]
        for run in analysis.senders
        for row in rows_of(columns, filter(chosen, run.cells))
    ]
    if not rows:
        return None
    return table(["replay", *head_of(columns)], rows, words=2, caption=caption, sortable=True)


def _share(name: str, cell: Cell) -> str:
    counts = cell.outcomes.get(name)
    return NOTHING if counts is None else f"{percent(counts[0] / counts[1])} of {counts[1]:,}"


def _server(run: ReplaySummary) -> dict[str, Any]:
    return run.manifest.workload.get("server") or {}


def _at_full_length(server: dict[str, Any]) -> str:
    tokens, longest = server.get("kv_tokens"), server.get("max_model_len")
    return number(tokens / longest, 1) if tokens and longest else NOTHING


def _mib(size: int | None) -> str:
    return f"{size / 2**20:,.1f} MiB" if size else NOTHING


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
    # The captured layers, and who chose them if the run reports it.
    captured = ", ".join(map(str, manifest.aux_layers))
    captured += _CHOSEN.get(manifest.aux_layers_source or "", "") if captured else ""
    states = run.hidden.aux_rms
    captured = captured or (f"{len(states)}, indices not recorded" if states else "none")
    sampling = f"one draft step in {manifest.every} recorded"
    if manifest.budget is not None:
        sampling = f"sampled so that the probe keeps within {percent(manifest.budget)} of the TPOT"
    elif manifest.every == 1:
        sampling = "every draft step recorded"
    # The requests, and what they are worth if they are not independent of each other.
    known, asked = run.independence, requests_of(run)
    if known is not None and known.repeated and known.design_effect is not None:
        asked += f"; design effect {number(known.design_effect)}"
    if manifest.witness != AGREES:
        witnessed = manifest.witness or NOTHING
    else:
        witnessed = f"{AGREES}; fed to the next depth: {manifest.fed_state or 'not known'}"
    return {
        "engine": f"{manifest.engine} {manifest.engine_version}",
        "runner": manifest.runner,
        "the drafter runs": manifest.mode,
        "recorded": manifest.recording,
        "method": manifest.method,
        "target": _model(manifest.target),
        "drafter": _model(manifest.drafter),
        "norm flags": ", ".join(flags) or "none",
        "captured target layers": captured,
        "drafter's tokens": _DRAFTED.get(manifest.draft_sampling or "", NOTHING),
        "rule of verification": manifest.verification or NOTHING,
        "K": f"{manifest.k}",
        "requests": asked,
        "hardware": manifest.hardware or NOTHING,
        "attention backend": manifest.attention_backend,
        "masses by": _STRATEGIES.get(manifest.attention_strategy, manifest.attention_strategy),
        "sink set": _sink(manifest),
        "parallel": ", ".join(
            [f"{kind} parallel {size}" for kind, size in sizes.items() if size > 1]
        )
        or NOTHING,
        "meaning of depth": NOTHING if manifest.query_kind == BY_DEPTH else manifest.query_kind,
        "sampling": sampling,
        "first chain, computed twice": witnessed,
        "chains": f"{recording.chains:,} recorded, {about}{recording.verified_chains:,} verified",
        "rows dropped": f"{recording.dropped:,}",
        "errors caught in hooks": f"{recording.errors:,}",
        "probe's memory on the device": NOTHING
        if manifest.device_bytes is None
        else f"{manifest.device_bytes / 1e6:.1f} MB of buffers on each rank's device",
        "probe cost, all in": percent(recording.overhead_fraction),
        "written by": f"driftscope {manifest.driftscope_version}",
    }


def _model(model: Model | None) -> str:
    if model is None:
        return NOTHING
    weights = f", weights {model.weights_digest}" if model.weights_digest else ""
    config = f"config {model.config_digest}{weights}"
    return f"{model.name} ({model.architecture}, {model.dtype}, {config})"


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
