"""The path from runs to conclusions, which every command, the gate and the notebook take.

    open -> narrow -> cohort -> sums -> summary    for each run, baseline too: `measure`
    findings -> warnings -> first screen                      for all of them together: `conclude`

Queries run only for these; the rest is arithmetic on small tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from driftscope.analysis.closeup import OpenedRequest
from driftscope.analysis.compare import Comparison, compare_times
from driftscope.analysis.compare import compare as compare_sums
from driftscope.analysis.compare_masses import compare_masses
from driftscope.analysis.figures.requests import requests_of
from driftscope.analysis.figures.rounds import Side, duration, side_without_rounds
from driftscope.analysis.figures.run_sums import (
    ALL_ROUNDS,
    Slice,
    Sums,
    cohort_of,
    collect,
    lifetimes,
    longer,
)
from driftscope.analysis.number_words import listed
from driftscope.analysis.query.query_engine import DuckDB, QueryEngine, floats
from driftscope.analysis.query.record_views import Tables, narrow, open_run, tables_of
from driftscope.analysis.query.row_filters import BY_LABEL, Filter
from driftscope.analysis.replays import (
    CONTENDER,
    SERVER_RUN,
    ReplaySummary,
    external_id,
    is_replay,
    summarise_replay,
    summarise_rollups,
)
from driftscope.analysis.rollups import Rollups, open_rollups
from driftscope.analysis.summary.computation import summary_of
from driftscope.analysis.summary.run_summary import (
    RunSummary,
    baseline_of,
    is_plain,
    speculates,
)
from driftscope.errors import NoDataError, UsageError
from driftscope.findings.catalogue import Analysis, Baseline, conclude
from driftscope.trace.manifest import MANIFEST, WAS_SIMULATED, read_manifest
from driftscope.trace.reader import Trace, read_trace
from driftscope.trace.runs import is_rollups
from driftscope.trace.texts import KeptText, read_texts

__all__ = [
    "BY_LABEL",
    "Analysis",
    "Baseline",
    "Inputs",
    "MeasuredRuns",
    "analyze",
    "compare",
    "conclude",
    "measure",
    "summarise",
]

Run: TypeAlias = Path | Trace
"""A run directory or a folder of rollups, or a run's rows in memory."""
Source: TypeAlias = Run | Rollups
Labelled: TypeAlias = tuple[Source, str]
BASELINE = "baseline"
"""Label of the run that others are compared with."""
EVERYTHING = Filter()
_NO_ROUNDS = "a condition is about rounds: both runs need speculation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Runs to analyse, and how to read them."""

    sources: Sequence[Source]
    labels: Sequence[str]
    """Name of each source; names differ."""
    baseline: Source | None = None
    """Run that the others are compared with; it need not speculate."""
    only: Filter = EVERYTHING
    """Rows to keep of each run; the baseline keeps all of its rows, but for `baseline_only`."""
    baseline_only: Filter = EVERYTHING
    """Rows to keep of the baseline."""
    by: str = BY_LABEL
    """Property that splits a run into segments: a key of `row_filters.BY`, or a span of time."""
    engine: Callable[[], QueryEngine] = DuckDB
    """Maker of the engine that runs the queries of one run."""
    cluster: str | None = None
    """Column of requests that says which of them are not independent, see
    `driftscope.analysis.figures.requests`; None: the first that the recording knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRuns:
    """Everything that was read from the inputs."""

    runs: tuple[RunSummary, ...] = ()
    replays: tuple[ReplaySummary, ...] = ()
    baseline: Baseline | None = None
    sums: Mapping[str, Sums] = field(default_factory=dict)
    """Sums by label of the runs that were read here; their query engines are closed."""


def analyze(
    inputs: Inputs, progress: Callable[[Sequence[Labelled]], Iterable[Labelled]] = iter
) -> Analysis:
    """Return the conclusions on the inputs. Raises what `measure` raises."""
    measured = measure(inputs, progress)
    return conclude(measured.runs, measured.replays, measured.baseline)


def measure(
    inputs: Inputs, progress: Callable[[Sequence[Labelled]], Iterable[Labelled]] = iter
) -> MeasuredRuns:
    """Read every source; `progress` yields them one by one and may show how far it is.

    A run without speculation is the baseline of the others, wherever it stands among them.

    Raises NotATraceError, SchemaVersionError, DamagedTraceError, MixedTraceError, NoDataError or,
    for a filter, a way to split or a second baseline, UsageError.
    """

    def opened(run: Source, only: Filter) -> Source:
        if not isinstance(run, Path) or not is_rollups(run):
            return run
        if only != EVERYTHING:
            raise UsageError(
                f"{run}: rollups have no rows to choose from; give the folder of one day, or "
                "choose them with `driftscope export --format rollup --where`"
            )
        return open_rollups(run)

    baseline = inputs.baseline
    inputs = replace(
        inputs,
        sources=[opened(run, inputs.only) for run in inputs.sources],
        baseline=None if baseline is None else opened(baseline, inputs.baseline_only),
    )
    servers = _servers_of_replays(inputs.sources)
    later = _later_rounds(inputs.sources)
    labelled = list(zip(inputs.sources, inputs.labels, strict=True))
    again = [run for runs in later.values() for run in runs]
    first = [(run, label) for run, label in labelled if not any(run is one for one in again)]
    parts = [_measured(source, label, inputs, servers, later) for source, label in progress(first)]
    if inputs.baseline is not None:
        parts.append(_baseline(inputs.baseline, inputs))
    baselines = [part for part in parts if part.baseline is not None]
    if len(baselines) > 1:
        labels = listed([part.baseline.label for part in baselines if part.baseline])
        raise UsageError(
            f"{labels}: several runs to compare with, and a run without speculation is one; give "
            "one of them, or compare two with `driftscope compare`"
        )
    runs, replays = _with_texts(
        tuple(run for part in parts for run in part.runs),
        tuple(replay for part in parts for replay in part.replays),
    )
    return MeasuredRuns(
        runs=runs,
        replays=replays,
        baseline=baselines[0].baseline if baselines else None,
        sums={label: sums for part in parts for label, sums in part.sums.items()},
    )


def _with_texts(
    runs: tuple[RunSummary, ...], replays: tuple[ReplaySummary, ...]
) -> tuple[tuple[RunSummary, ...], tuple[ReplaySummary, ...]]:
    """Return the runs with the texts, which the replays kept, of the requests that can be opened,
    and the replays with a problem where texts cannot be read."""
    texts, checked = dict[str, KeptText](), list[ReplaySummary]()
    wanted = {_response(opened) for run in runs if run.closeup for opened in run.closeup.opened}
    for replay in replays:
        for folder in replay.texts if wanted else ():
            found, problem = read_texts(folder, wanted)
            texts |= found
            replay = replace(replay, problems=(*replay.problems, *filter(None, [problem])))
        checked.append(replay)
    with_texts = [
        replace(
            run,
            closeup=run.closeup
            and replace(
                run.closeup,
                opened=tuple(
                    replace(opened, text=texts.get(_response(opened)))
                    for opened in run.closeup.opened
                ),
            ),
        )
        for run in runs
    ]
    return (tuple(with_texts) if texts else runs), tuple(checked)


def _response(opened: OpenedRequest) -> str:
    """Return the id that the client of a request received; its name ends with the replica's."""
    return external_id(opened.request.partition(" ")[0])


def compare(
    first: Run,
    second: Run,
    labels: tuple[str, str],
    *,
    engine: Callable[[], QueryEngine] = DuckDB,
    cluster: str | None = None,
    only: Filter = EVERYTHING,
) -> Comparison:
    """Compare two runs request by request: by acceptance or, if one does not speculate, by time.
    `cluster` is that of `Inputs`, and `only` the rows to keep of both.

    Raises what `measure` raises, and UsageError for rows of a run that does not speculate.
    """
    runs = (_open(run, engine, cluster) for run in (first, second))
    with closing(next(runs)) as a, closing(next(runs)) as b:
        for label, tables in zip(labels, (a, b), strict=True):
            if tables.manifest.is_simulated:
                raise NoDataError(f"{label}: {WAS_SIMULATED}; it is compared with nothing")
        if speculates(a) and speculates(b):
            sums = _whole(_sums_of_kept_rows(a, only)), _whole(_sums_of_kept_rows(b, only))
            compared = compare_sums(*sums, labels)
            return replace(compared, where=only.where, masses=compare_masses(*sums))
        if only != EVERYTHING:
            raise UsageError(_NO_ROUNDS)
        manifests = a.manifest, b.manifest
        return compare_times((_side(a), _side(b)), manifests, labels)


def _side(run: Tables) -> Side:
    """Return a run of which one of two does not speculate, in the form in which they are
    compared."""
    return (
        _sums_of_kept_rows(run).side if speculates(run) else side_without_rounds(requests_of(run))
    )


def summarise(
    run: Run | Tables | Sums, label: str, *, only: Filter = EVERYTHING, by: str = BY_LABEL
) -> RunSummary:
    """Return the summary of one run, whose engine stays open."""
    if isinstance(run, Path | Trace):
        run = _open(run, DuckDB)
    sums = run if isinstance(run, Sums) else _sums_of_kept_rows(run, only)
    return summary_of(label, sums, by)


def _measured(
    source: Source,
    label: str,
    inputs: Inputs,
    servers: Sequence[Trace],
    later: Mapping[Path, Sequence[Path]],
) -> MeasuredRuns:
    if isinstance(source, Rollups):
        return MeasuredRuns(replays=(summarise_rollups(source, label),))
    if _is_replay(source):
        rounds = map(_trace, later.get(source, ()) if isinstance(source, Path) else ())
        replay = summarise_replay(_trace(source), label, servers, tuple(rounds))
        return MeasuredRuns(replays=(replay,))
    with closing(_open(source, inputs.engine, inputs.cluster)) as tables:
        if is_plain(tables):
            return _plain(tables, label, inputs.only)
        sums = _sums_of_kept_rows(tables, inputs.only)
        return MeasuredRuns(runs=(summarise(sums, label, by=inputs.by),), sums={label: sums})


def _baseline(run: Source, inputs: Inputs) -> MeasuredRuns:
    if isinstance(run, Rollups):
        return MeasuredRuns(baseline=summarise_rollups(run, BASELINE))
    if _is_replay(run):
        servers = _servers_of_replays([run])
        return MeasuredRuns(baseline=summarise_replay(_trace(run), BASELINE, servers))
    with closing(_open(run, inputs.engine, inputs.cluster)) as tables:
        if not speculates(tables):
            return _plain(tables, BASELINE, inputs.baseline_only)
        sums = _sums_of_kept_rows(tables, inputs.baseline_only)
        return MeasuredRuns(baseline=summarise(sums, BASELINE))


def _plain(tables: Tables, label: str, only: Filter) -> MeasuredRuns:
    if only != EVERYTHING:
        raise UsageError(_NO_ROUNDS)
    return MeasuredRuns(baseline=baseline_of(tables, label))


def _open(run: Run, engine: Callable[[], QueryEngine], cluster: str | None = None) -> Tables:
    tables = tables_of(run, engine()) if isinstance(run, Trace) else open_run(run, engine())
    return replace(tables, cluster=cluster)


def _sums_of_kept_rows(tables: Tables, only: Filter = EVERYTHING) -> Sums:
    """Return the sums over the rows to keep, without the requests that the recording or its cut
    shows in part; everything after this leaves them out, too."""
    begin_s, part = -math.inf, None
    if only != EVERYTHING:
        last_s = float(floats(tables.engine.rows(duration()), "last_s")[0])
        part = Slice(
            where=only.where,
            since=only.since,
            requests=int(tables.engine.rows(lifetimes(ALL_ROUNDS)).num_rows),
        )
        tables, begin_s = narrow(tables, only.conditions(last_s)), only.begin_s(last_s)
    cohort, left_out = cohort_of(tables, begin_s)
    kept = tables if left_out is None else narrow(tables, (), left_out)
    return replace(collect(kept, cohort), slice=part)


def _whole(run: Sums) -> Sums:
    """Return the sums; raises NoDataError if most of their rounds are of requests seen in part."""
    if run.cohort is not None and not run.cohort.enough:
        raise NoDataError(
            f"{run.tables.path}: cannot tell how it compares: less than half of its rounds are of "
            f"requests that it shows whole; {longer(run.cohort)}"
        )
    return run


def _servers_of_replays(sources: Sequence[Source]) -> list[Trace]:
    """Return the probes' runs that have the requests of the replays among the sources: other
    sources, and the runs that `driftscope pays` recorded beside them."""
    replays = [run for run in sources if _is_replay(run)]
    if not replays:
        return []
    others = [run for run in sources if not isinstance(run, Rollups) and not _is_replay(run)]
    server_runs = [
        run.parent / str(name)
        for run in replays
        if isinstance(run, Path) and (name := _workload(run).get(SERVER_RUN)) is not None
    ]
    recorded = [run for run in server_runs if (run / MANIFEST).is_file()]
    paths = {run.resolve() for run in recorded}
    alone = [run for run in others if not isinstance(run, Path) or run.resolve() not in paths]
    return [_trace(run) for run in (*recorded, *alone)]


def _later_rounds(sources: Sequence[Source]) -> dict[Path, list[Path]]:
    """Return the replays in which `driftscope pays` asked a server again, by its first one."""
    first: dict[tuple[Path, str], Path] = {}
    later: dict[Path, list[Path]] = {}
    for run in sources:
        if isinstance(run, Path) and _is_replay(run) and (name := _workload(run).get(CONTENDER)):
            known = first.setdefault((run.parent.parent, str(name)), run)
            later.setdefault(known, []).extend([] if known is run else [run])
    return later


def _workload(run: Source) -> Mapping[str, Any]:
    return (read_manifest(run) if isinstance(run, Path) else run.manifest).workload


def _is_replay(run: Source) -> bool:
    return is_replay(read_manifest(run) if isinstance(run, Path) else run.manifest)


def _trace(run: Run) -> Trace:
    return run if isinstance(run, Trace) else read_trace(run)
