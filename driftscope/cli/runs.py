"""The `driftscope ls`, `rm` and `prune` commands: the runs on this machine."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftscope.boundary.text import shown
from driftscope.cli import options

if TYPE_CHECKING:
    from driftscope.trace.runs import RunEntry

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)i?B?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_DIGITS = 15
"""Longest number that is accepted, in characters."""
Folders = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FOLDER",
        help="Folders to search, four levels deep; default: driftscope-runs and driftscope-pays.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")]
Json = Annotated[bool, typer.Option("--json", help="Print the runs as JSON.")]


def ls(
    folders: Folders = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, help="Largest number of runs to list, newest first.")
    ] = 20,
    findings: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Number of newest runs that are analysed for their main finding; 0: none.",
        ),
    ] = 5,
    as_json: Json = False,
) -> None:
    """List runs, newest first: start, target, drafter, K, rounds, state, size and main finding.

    `latest` stands for the newest run of a probe wherever a command takes a run.
    """
    from driftscope.boundary.json_document import RUNS, text

    everything = _entries(folders)
    entries = everything[:limit]
    found = _main_findings(entries[:findings])
    if as_json:
        facts = [run_as_dict(entry, found.get(entry.path)) for entry in entries]
        typer.echo(text(RUNS, {"runs": facts}, digits=None), nl=False)
        return
    if not entries:
        sys.stderr.write(
            f"{_no_runs(folders)}; `driftscope pays` and `driftscope serve` record some, "
            "`driftscope ls FOLDER` looks elsewhere\n"
        )
        return
    _show(entries, found)
    if left_out := len(everything) - len(entries):
        sys.stderr.write(f"and {left_out:,} more: --limit {len(everything)}\n")
    if found and (later := len(entries) - findings) > 0:
        sys.stderr.write(f"{later} not analysed: --findings {len(entries)}\n")


def rm(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run directories.", autocompletion=options.runs),
    ],
    unclosed: Annotated[
        bool,
        typer.Option(
            "--unclosed", help="Also remove runs that no process closed, as after a kill."
        ),
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove run directories, after a question.

    Only real run directories are removed, never through a symbolic link. A run that is being
    recorded is refused, and so is a directory with files that a recorder does not write.
    """
    from driftscope.cli.options import named_run
    from driftscope.trace.runs import check_removable, entry_of

    named = (run if run.is_symlink() else named_run(run) or run for run in runs)
    chosen = list(dict.fromkeys(named))
    for run in chosen:
        check_removable(run, unclosed=unclosed)
    _remove([entry_of(run) for run in chosen], yes=yes, unclosed=unclosed, as_json=as_json)


def prune(
    folders: Folders = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Remove runs that began longer ago, such as 30d or 12h."),
    ] = None,
    max_total: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Remove the oldest runs until all together take at most this, such as 20GB.",
        ),
    ] = None,
    keep: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Number of newest runs that are kept in any case."),
    ] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be removed, and remove nothing.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove closed runs beyond a bound of age or size, after a question.

    A run that is being recorded, that was not closed or that cannot be read is never removed. One
    that cannot be removed is left, with the reason, and the exit code is 1.
    """
    import time

    from driftscope.analysis.query.row_filters import span_s
    from driftscope.errors import UsageError
    from driftscope.trace.runs import beyond, refusal

    if older_than is None and max_total is None:
        raise UsageError("no bound: give --older-than TIME, --max-total SIZE, or both")
    older_s = None if older_than is None else span_s(older_than)
    if older_than is not None and older_s is None:
        raise UsageError(f"--older-than {older_than!r}: give a span such as 12h or 30d")
    total = None
    if max_total is not None:
        match = _SIZE.fullmatch(max_total.strip())
        if match is None or len(match[1]) > _DIGITS:
            raise UsageError(f"--max-total {max_total!r}: give a size such as 500MB or 20GB")
        total = int(float(match[1]) * _UNITS[match[2].lower()])
    entries = _entries(folders)
    chosen = beyond(entries, time.time(), older_s=older_s, total_octets=total, keep=keep)
    left = {entry.path: words for entry in chosen if (words := refusal(entry.path))}
    if not chosen and not as_json:
        words = f"{_summed(entries)}, none closed and beyond it" if entries else _no_runs(folders)
        sys.stderr.write(f"nothing to remove: {words}\n")
        return
    _remove(
        [entry for entry in chosen if entry.path not in left],
        left=left,
        yes=yes,
        dry_run=dry_run,
        as_json=as_json,
    )


def _no_runs(folders: Sequence[Path] | None) -> str:
    from driftscope.trace.runs import DEFAULT_FOLDERS

    return f"no runs in {', '.join(map(str, folders or DEFAULT_FOLDERS))}"


def _entries(folders: Sequence[Path] | None) -> list[RunEntry]:
    from driftscope.errors import NotATraceError
    from driftscope.trace.runs import DEFAULT_FOLDERS, entry_of, runs_of

    for folder in folders or ():
        if not folder.is_dir():
            raise NotATraceError(f"{folder}: no such folder; give a folder that holds runs")
    return [entry_of(run) for run in runs_of(folders or DEFAULT_FOLDERS)]


def _remove(
    entries: Sequence[RunEntry],
    *,
    yes: bool,
    unclosed: bool = False,
    left: Mapping[Path, str] = MappingProxyType({}),
    dry_run: bool = False,
    as_json: bool,
) -> None:
    """List the runs, ask, remove them, and print what was done.

    Raises typer.Exit with 1 if a run is left: one of `left`, which holds the reasons, or one that
    could not be removed.
    """
    from driftscope.boundary.files import first_line
    from driftscope.boundary.json_document import RUNS, text
    from driftscope.errors import EXIT_ERROR, TraceError, UsageError
    from driftscope.trace.runs import remove

    if entries and not as_json:
        _show(entries, {}, stderr=True)
    if entries and not (yes or dry_run):
        if as_json or not sys.stdin.isatty():
            raise UsageError("nobody can be asked here: give --yes")
        typer.confirm(f"Remove {_summed(entries)}?", abort=True, err=True)
    reasons = dict(left)
    done: list[RunEntry] = []
    for entry in entries:
        try:
            if not dry_run:
                remove(entry.path, unclosed=unclosed)
            done.append(entry)
        except (TraceError, OSError) as error:
            named = isinstance(error, TraceError)
            reasons[entry.path] = str(error) if named else f"{entry.path}: {first_line(error)}"
    if as_json:
        facts = {"runs": [run_as_dict(entry) for entry in done], "left": list(reasons.values())}
        typer.echo(text(RUNS, facts, digits=None), nl=False)
    else:
        verb = "would remove" if dry_run else "removed"
        sys.stderr.write(f"{verb}: {_summed(done)}\n")
    for words in reasons.values():
        sys.stderr.write(shown(f"driftscope: left: {words}") + "\n")
    if reasons:
        raise typer.Exit(EXIT_ERROR)


MAX_OCTETS = 64 << 20
"""Size in bytes above which a run is not analysed for a list: `driftscope analyze` takes seconds
for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MainFinding:
    """Subject of the run's first screen: a finding, or else the headline."""

    id: str
    severity: str
    title: str

    def words(self) -> str:
        """Return severity and title as one line."""
        return f"{self.severity}: {self.title}" if self.severity else self.title


def _main_findings(entries: Sequence[RunEntry]) -> dict[Path, MainFinding]:
    """Return the main finding of each run that has rounds and is small enough to be analysed.

    There is none where only `driftscope-probe` is installed.
    """
    from driftscope.distributions import analysis_installed

    eligible = [
        entry
        for entry in entries
        if (entry.rounds or (entry.requests and not entry.is_replay)) and entry.octets <= MAX_OCTETS
    ]
    if not eligible or not analysis_installed():
        return {}
    return {entry.path: _finding(entry.path) for entry in eligible}


def _finding(run: Path) -> MainFinding:
    from driftscope.errors import NoDataError
    from driftscope.pipeline import Inputs, analyze

    try:
        analysis = analyze(Inputs(sources=[run], labels=[run.name]))
    except NoDataError:
        return MainFinding(id="", severity="", title="too little data")
    except Exception as error:  # whatever one run raises, the others are listed
        kind = type(error).__name__
        return MainFinding(id="", severity="", title=f"not analysed ({kind}); analyze it says why")
    main = analysis.screen.subject or analysis.screen.lead
    if main.severity is not None:
        return MainFinding(id=main.id, severity=main.severity, title=main.title)
    return MainFinding(id="", severity="", title=analysis.screen.headline)


NAME_WIDTH = 14
"""Columns of a model's name; the middle of a longer one is left out."""
HEADS = ("started", "target", "drafter", "K", "rounds", "state", "size")
_LINE = f"{{:16}} {{:{NAME_WIDTH}}} {{:{NAME_WIDTH}}} {{:>3}} {{:>9}} {{:10}} {{:>8}}"
_UNKNOWN = "-"
_SIZE_UNITS = ("B", "kB", "MB", "GB", "TB")
_STEP = 1000


def _show(
    entries: Sequence[RunEntry],
    findings: Mapping[Path, MainFinding],
    *,
    stderr: bool = False,
) -> None:
    """Print the runs to stdout, or to stderr."""
    from driftscope.trace.manifest import WAS_SIMULATED
    from driftscope.trace.runs import quoted

    out = sys.stderr if stderr else sys.stdout
    out.write(f"{_LINE.format(*HEADS).rstrip()}\n")
    for entry in entries:
        out.write(f"{_LINE.format(*_cells(entry)).rstrip()}\n")
        finding = findings.get(entry.path)
        words = entry.problem or (finding.words() if finding else "")
        if not words and entry.manifest is not None and entry.manifest.is_simulated:
            words = WAS_SIMULATED
        out.write(shown(f"  {quoted(entry.path)}{f'  {words}' if words else ''}") + "\n")


def run_as_dict(entry: RunEntry, finding: MainFinding | None = None) -> dict[str, Any]:
    """Return one run as plain values for JSON."""
    manifest = entry.manifest
    return {
        "path": str(entry.path),
        "created_s": entry.created_s,
        "kind": ("replay" if entry.is_replay else "probe"),
        "target": None if manifest is None else manifest.target.name,
        "drafter": manifest.drafter.name if manifest and manifest.drafter else None,
        "method": None if manifest is None else manifest.method,
        "k": None if manifest is None else manifest.k,
        "rounds": entry.rounds,
        "requests": entry.requests,
        "state": entry.state,
        "bytes": entry.octets,
        "problem": entry.problem or None,
        "finding": None
        if finding is None
        else {"id": finding.id, "severity": finding.severity, "title": finding.title},
    }


def _summed(entries: Sequence[RunEntry]) -> str:
    """Return the number of runs and their size, as words."""
    runs = "1 run" if len(entries) == 1 else f"{len(entries):,} runs"
    return f"{runs} ({size(sum(entry.octets for entry in entries))})"


def size(octets: int) -> str:
    """Return a size in three digits, such as "1.2 MB"."""
    value, unit = float(octets), 0
    while value >= _STEP and unit < len(_SIZE_UNITS) - 1:
        value, unit = value / _STEP, unit + 1
    return f"{value:.3g} {_SIZE_UNITS[unit]}"


def _cells(entry: RunEntry) -> tuple[str, ...]:
    from driftscope.trace.manifest import INGESTED

    manifest = entry.manifest
    started = datetime.fromtimestamp(entry.created_s).strftime("%Y-%m-%d %H:%M")
    counted = _UNKNOWN if entry.rounds is None else f"{entry.rounds:,}"
    if entry.requests is not None:
        counted = f"{entry.requests:,} sent"
    if manifest is None:
        return started, _UNKNOWN, _UNKNOWN, _UNKNOWN, counted, entry.state, size(entry.octets)
    if entry.is_replay or manifest.drafter is None:
        drafter = "(none)"
        if entry.is_replay:
            drafter = "(ingested)" if INGESTED in manifest.workload else "(replay)"
    else:
        drafter = _name(manifest.drafter.name) or manifest.method
    return (
        started,
        _name(manifest.target.name),
        drafter,
        f"{manifest.k}" if manifest.k else _UNKNOWN,
        counted,
        entry.state,
        size(entry.octets),
    )


def _name(name: str) -> str:
    """Return the last part of a model's name or path, shortened in the middle."""
    last = shown(name.rstrip("/").rpartition("/")[2])
    if len(last) <= NAME_WIDTH:
        return last
    half = (NAME_WIDTH - 1) // 2
    return f"{last[: NAME_WIDTH - 1 - half]}…{last[-half:]}"
