"""Where the figures come from."""

from __future__ import annotations

from driftscope.analysis.analyze import Analysis
from driftscope.analysis.summary import RunSummary
from driftscope.analysis.words import NOTHING, count, percent
from driftscope.trace.manifest import BY_DEPTH, Manifest, Model
from driftscope.trace.records import SINK_SOUGHT, Strategy
from driftscope_reports.markup import Markup, el
from driftscope_reports.section import Section
from driftscope_reports.tables import table

_STRATEGIES = {
    Strategy.KEYS: "a softmax over the keys read back",
    Strategy.LSE: "the kernel's log-sum-exp",
    Strategy.NONE: "nothing: not taken",
}


def provenance(analysis: Analysis) -> Markup:
    """Engine, models, settings, losses and cost, one column per run."""
    rows = [[name, *cells] for name, *cells in zip(_NAMES, *map(parts, analysis.runs), strict=True)]
    return table(
        ["", *(run.label for run in analysis.runs)], rows, words=1 + len(analysis.runs),
        caption="Where these figures come from",
    )  # fmt: skip


def section(analysis: Analysis, command: str | None) -> Section:
    """Provenance as the last section, with the command that remakes the file."""
    made = el("p", "Made again with ", el("code", command)) if command else None
    return Section(id="provenance", name="Provenance", body=el("div", provenance(analysis), made))


_NAMES = (
    "engine", "runner", "execution", "recording", "method", "target", "drafter", "norm flags",
    "captured target layers", "K", "attention", "masses by", "sink set", "parallel", "depth",
    "sampling", "chains", "dropped", "errors", "overhead", "written by",
)  # fmt: skip
"""What `parts` says, in its order."""


def line(run: RunSummary) -> str:
    """Everything that identifies the run, in one line."""
    return "; ".join(part for part in parts(run) if part != NOTHING)


def parts(run: RunSummary) -> list[str]:
    """The same piece by piece, as many as `_NAMES`."""
    manifest, recording = run.manifest, run.recording
    flags = [name for name, value in sorted(manifest.norm_flags.items()) if value]
    return [
        f"{manifest.engine} {manifest.engine_version}",
        f"runner {manifest.runner}",
        f"drafter runs {manifest.mode}",
        f"recorded by {manifest.recording}",
        f"method {manifest.method}",
        f"target {_model(manifest.target)}",
        f"drafter {_model(manifest.drafter)}",
        f"norm flags {', '.join(flags) or 'none'}",
        f"captured target layers {', '.join(map(str, manifest.aux_layers)) or 'none'}",
        f"K = {manifest.k}",
        f"attention {manifest.attention_backend}",
        f"masses by {_STRATEGIES.get(manifest.attention_strategy, manifest.attention_strategy)}",
        f"sink set: {_sink(manifest)}",
        ", ".join(_parallel(manifest)) or NOTHING,
        NOTHING if manifest.query_kind == BY_DEPTH else f"depth stands for {manifest.query_kind}",
        _sampling(manifest),
        f"{count(recording.chains, 'recorded chain')}, {recording.verified_chains:,} verified",
        f"{count(recording.dropped, 'row')} dropped",
        f"{count(recording.errors, 'error')} caught in hooks",
        f"time in the probe {percent(recording.overhead_fraction)}",
        f"driftscope {manifest.driftscope_version}",
    ]


def _model(model: Model) -> str:
    return f"{model.name} ({model.architecture}, {model.dtype}, config {model.config_digest})"


def _sink(manifest: Manifest) -> str:
    slots = manifest.sink_slots
    if manifest.sink_source == SINK_SOUGHT:
        return "looked for, not decided yet"
    if not slots:
        return f"no sink found ({manifest.sink_source})"
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
