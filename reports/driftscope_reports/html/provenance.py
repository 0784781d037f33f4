"""Provenance of the figures."""

from __future__ import annotations

from driftscope.analysis.figures.results import Recording
from driftscope.analysis.number_words import NOTHING, count, listed, percent
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.pipeline import Analysis
from driftscope.trace.manifest import (
    AUX_FROM_CONFIG,
    AUX_FROM_ENGINE,
    BY_DEPTH,
    GREEDY,
    PROBABILISTIC,
    Manifest,
    Model,
)
from driftscope.vocabulary import SINK_SOUGHT, Strategy
from driftscope_reports.html.parts.tables import table
from driftscope_reports.markup import Markup, el
from driftscope_reports.model import Section
from driftscope_reports.page import part

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


def provenance(analysis: Analysis) -> Markup:
    """Return engine, models, settings, losses and cost, one column per run."""
    columns = [parts(run) for run in analysis.runs]
    rows = [
        [name, *(column[name] for column in columns)]
        for name in (columns[0] if columns else ())
        if any(column[name] != NOTHING for column in columns)
    ]
    return table(
        ["", *(run.label for run in analysis.runs)],
        rows,
        words=1 + len(analysis.runs),
        caption="Where these figures come from",
    )


def section(analysis: Analysis, command: str | None) -> Section:
    """Return provenance as the last section, with the command that reproduces the file."""
    made = [el("p", "Made again with:"), part("to_copy", command)] if command else None
    return Section(
        id="provenance",
        name="Provenance",
        conclusion=_conclusion(analysis),
        body=el("div", made, provenance(analysis)),
    )


def _conclusion(analysis: Analysis) -> str:
    """Return engine, target and drafters in one line."""
    manifests = [run.manifest for run in analysis.runs] or [s.manifest for s in analysis.senders]
    engines = dict.fromkeys(f"{each.engine} {each.engine_version}".strip() for each in manifests)
    drafters = dict.fromkeys(each.drafter.name for each in manifests if each.drafter.name)
    targets = dict.fromkeys(each.target.name for each in manifests if each.target.name)
    return f"{listed([*engines])}: {listed([*targets])} with {listed([*drafters]) or 'no drafter'}."


def parts(run: RunSummary) -> dict[str, str]:
    """Return what identifies the run and how it was recorded, by name."""
    manifest, recording = run.manifest, run.recording
    flags = [name for name, value in sorted(manifest.norm_flags.items()) if value]
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
        "K": f"{manifest.k}",
        "attention backend": manifest.attention_backend,
        "masses by": _STRATEGIES.get(manifest.attention_strategy, manifest.attention_strategy),
        "sink set": _sink(manifest),
        "parallel": ", ".join(_parallel(manifest)) or NOTHING,
        "meaning of depth": NOTHING if manifest.query_kind == BY_DEPTH else manifest.query_kind,
        "sampling": _sampling(manifest),
        "chains": f"{recording.chains:,} recorded, {_verified(recording)} verified",
        "rows dropped": f"{recording.dropped:,}",
        "errors caught in hooks": f"{recording.errors:,}",
        "probe cost, all in": percent(recording.overhead_fraction),
        "written by": f"driftscope {manifest.driftscope_version}",
    }


def _model(model: Model) -> str:
    weights = f", weights {model.weights_digest}" if model.weights_digest else ""
    config = f"config {model.config_digest}{weights}"
    return f"{model.name} ({model.architecture}, {model.dtype}, {config})"


def _captured(run: RunSummary) -> str:
    """Return the captured layers, and who chose them if the run reports it."""
    manifest, states = run.manifest, run.hidden.aux_rms
    if manifest.aux_layers:
        chosen = _CHOSEN.get(manifest.aux_layers_source or "", "")
        return ", ".join(map(str, manifest.aux_layers)) + chosen
    if not states:
        return "none"
    return f"{len(states)}, indices not recorded"


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


def _parallel(manifest: Manifest) -> list[str]:
    sizes = {
        "tensor": manifest.tensor_parallel,
        "data": manifest.data_parallel,
        "pipeline": manifest.pipeline_parallel,
    }
    return [f"{kind} parallel {size}" for kind, size in sizes.items() if size > 1]


def _sampling(manifest: Manifest) -> str:
    every = manifest.every
    if manifest.budget is not None:
        return f"sampled so that the probe keeps within {percent(manifest.budget)} of the TPOT"
    return "every draft step recorded" if every == 1 else f"one draft step in {every} recorded"


def _verified(recording: Recording) -> str:
    about = "about " if recording.looked_at is not None else ""
    return f"{about}{recording.verified_chains:,}"
