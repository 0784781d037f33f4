"""A recorded run in the formats of other tools, and as rollups.

Speculation profile 1.0, acceptance by position, for simulators and next to a
checkpoint: fields and conventions of specdec_bench in NVIDIA's Model-Optimizer
(Model-Optimizer#2247, #2313, #2315, #2316); Dynamo's simulator reads the conditional rates, and
vLLM's synthetic acceptance the marginal ones. Cost table of SGLang 0.5.23:
srt/speculative/dspark_components/dspark_sps.py.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from driftscope.analysis.advice import TRIMMED
from driftscope.analysis.cost import StepCell
from driftscope.analysis.figures.results import Acceptance
from driftscope.analysis.number_words import count, percent
from driftscope.analysis.query.row_filters import BY_LABEL
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.boundary.files import STDOUT, write_file
from driftscope.boundary.text import dumps
from driftscope.errors import NoDataError, UsageError
from driftscope.trace.manifest import BY_DEPTH, Manifest, Model
from driftscope.vocabulary import Interchange

SCHEMA_VERSION = "1.0"
TOLERANCE = 0.02
"""Largest difference of the two means for which the format's check passes."""
DIGITS = 6
CHAIN, EACH_K = "chain_analytic", "measured_per_k"
"""`accept_length_model`: whether the rates also describe every smaller K."""


def profile_of(run: RunSummary) -> dict[str, Any]:
    """Return the profile of a run, ready for JSON.

    Raises NoDataError for a run that drafted several K: its rates by position are over different
    rounds, so that no one profile describes it.
    """
    accepted, k = run.acceptance, run.k
    if accepted.by_k:
        lengths = ", ".join(str(at.k) for at in accepted.by_k)
        raise NoDataError(
            f"{run.label}: drafted {lengths} tokens, and a speculation profile describes one K; "
            f"record a run of one, or keep its rounds with --where 'k = {accepted.by_k[-1].k}'"
        )
    marginal = list(accepted.counted)
    return {
        "schema_version": SCHEMA_VERSION,
        "measured": True,
        "method": run.manifest.method,
        "draft_checkpoint": _model(run.manifest.drafter),
        "target_model": _model(run.manifest.target),
        "num_speculative_tokens": k,
        "block_size": None,
        "max_supported_k": k,
        "verification_method": "longest_prefix",
        "conditional_accept_rates": _rounded(_conditional(marginal)),
        "marginal_accept_rates": _rounded(marginal),
        "mean_accept_length": round(accepted.mean_length, DIGITS),
        "mean_accept_length_per_request": _number(accepted.mean_length_by_request),
        "accept_length_model": CHAIN if run.manifest.query_kind == BY_DEPTH else EACH_K,
        "accept_length_by_k": {str(k): round(accepted.mean_length, DIGITS)},
        # Lengths include the target's own token: length 1 is a round of which nothing was accepted.
        "acceptance_length_histogram": {
            str(tokens + 1): rounds for tokens, rounds in enumerate(accepted.histogram) if rounds
        },
        "per_category": _by_label(run),
        "measurement_conditions": _conditions(run),
        "validation": _validation(accepted, marginal),
    }


def sps_table_of(run: RunSummary) -> dict[str, Any]:
    """Return the steps per second by tokens verified in a step, as SGLang's DSpark planner reads it
    from --speculative-dspark-sps-table-path (`SpsCostTable`).

    Raises NoDataError for another engine's run, because its steps cost something else, for a run
    whose drafts were trimmed, because its steps verified fewer tokens than they drafted, and for
    one of fewer than two sizes, which SGLang takes for no table.
    """
    if run.manifest.engine != "sglang":
        raise NoDataError(
            f"{run.label}: its steps are {run.manifest.engine}'s, and SGLang's planner reads "
            "this table; record the SGLang server that is to be planned"
        )
    if run.fallback.cut_share >= TRIMMED:
        raise NoDataError(
            f"{run.label}: {percent(run.fallback.cut_share)} of its drafts were cut, so that the "
            "tokens of a step are not known; record without trimming"
        )
    by_tokens: dict[int, list[StepCell]] = {}
    for cell in run.cells:
        by_tokens.setdefault(cell.batch * (cell.k + 1), []).append(cell)
    if len(by_tokens) < _FEWEST_SIZES:
        raise NoDataError(
            f"{run.label}: steps of {count(len(by_tokens), 'size')} were measured often enough, "
            "and a table needs two; record traffic with several requests at once"
        )
    sizes = sorted(by_tokens)
    steps = [
        sum(cell.steps for cell in by_tokens[size])
        / sum(cell.steps * cell.step_s for cell in by_tokens[size])
        for size in sizes
    ]
    return {
        "sample_batch_tokens": sizes,
        "sample_steps_per_sec": _rounded(steps),
        "max_batch_tokens": sizes[-1],
    }


_FEWEST_SIZES = 2


def _model(model: Model | None) -> dict[str, Any] | None:
    """Return a model by the last two parts of its name: a published file names no folder."""
    if model is None or not model.name:
        return None
    return {"name": "/".join(model.name.replace("\\", "/").strip("/").split("/")[-2:])}


def _conditional(marginal: list[float]) -> list[float]:
    """Return the rate at each position given all before it; 0 after a position that none
    reached, as the format has it."""
    before = [1.0, *marginal[:-1]]
    return [
        rate / earlier if earlier > 0 else 0.0
        for rate, earlier in zip(marginal, before, strict=True)
    ]


def _by_label(run: RunSummary) -> dict[str, Any] | None:
    lengths = {part.label: part.mean_length for part in run.segments if part.by == BY_LABEL}
    known = {label: length for label, length in lengths.items() if length is not None}
    if len(known) < 2:
        return None
    return {label: {"mean_accept_length": round(length, DIGITS)} for label, length in known.items()}


def _conditions(run: RunSummary) -> dict[str, Any]:
    """Return what the figures were measured on."""
    manifest: Manifest = run.manifest
    return {
        "engine": manifest.engine,
        "engine_version": manifest.engine_version,
        "runner": manifest.runner,
        "draft_sampling": manifest.draft_sampling,
        "tensor_parallel": manifest.tensor_parallel,
        "data_parallel": manifest.data_parallel,
        "requests": run.requests,
        "rounds": run.rounds,
        "measured_by": f"driftscope {manifest.driftscope_version}",
    }


def _validation(accepted: Acceptance, marginal: list[float]) -> dict[str, Any]:
    implied = 1.0 + sum(marginal)
    off = abs(implied - accepted.mean_length)
    falls = all(a >= b for a, b in pairwise(marginal))
    return {
        "mean_consistency": {
            "implied_mean_accept_length": round(implied, DIGITS),
            "reported_mean_accept_length": round(accepted.mean_length, DIGITS),
            "abs_delta": round(off, DIGITS),
            "tolerance": TOLERANCE,
            "passed": off <= TOLERANCE,
        },
        "marginal_monotonicity": {"passed": falls, "violations": []},
    }


def _rounded(values: list[float]) -> list[float]:
    return [round(value, DIGITS) for value in values]


def _number(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def write_as(
    form: Interchange,
    run: Path,
    output: Path,
    *,
    where: str | None = None,
    label: str | None = None,
) -> list[str]:
    """Write the run in this format to the file `output`, or as rollups to the folder or URI
    `output`; return what was written.

    `where`: the rounds to keep, a condition of `analyze --where`; `label`: name of the replica in
    rollups, by default that of the run's directory. Raises NoDataError for a run that the format
    cannot describe, UsageError, the reader's errors, TraceError for a store, and OSError.
    """
    from driftscope.analysis.query.row_filters import Filter
    from driftscope.pipeline import Inputs, measure

    only = Filter(where=where)
    if form is Interchange.ROLLUP:
        from driftscope.analysis.rollups import rollup_of
        from driftscope.trace.rollups import write_rollups

        if output == STDOUT or output.is_file():
            raise UsageError(f"-o {output}: rollups are several files; give a folder or a URI")
        return write_rollups(output, *rollup_of(run, label or run.resolve().name, only))
    if label is not None:
        raise UsageError(f"--label: names the replica in rollups; {form} has none")
    measured = measure(Inputs(sources=[run], labels=[run.name], only=only))
    if not measured.runs:
        raise NoDataError(
            f"{run}: a run without speculation, or of no probe, which has no rounds by position; "
            "give the run recorded in a server that speculates"
        )
    make = sps_table_of if form is Interchange.SPS_TABLE else profile_of
    write_file(output, (dumps(make(measured.runs[0]), indent=1) + "\n").encode())
    return [str(output)]
