"""The `driftscope ls`, `rm` and `prune` commands: the runs on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftscope.cli import options

if TYPE_CHECKING:
    from driftscope.trace.runs import RunEntry

Folders = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FOLDER",
        help="Folders to search, three levels deep; default: driftscope-runs, driftscope-bench and "
        "driftscope-demo.",
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
    from driftscope.cli import run_list
    from driftscope.cli.run_list import main_findings

    everything = _entries(folders)
    entries = everything[:limit]
    found = main_findings(entries[:findings])
    if as_json:
        facts = [run_list.as_dict(each, found.get(each.path)) for each in entries]
        typer.echo(text(RUNS, {"runs": facts}, digits=None), nl=False)
        return
    run_list.show(entries, found, left_out=len(everything) - len(entries))


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
    from driftscope.cli.options import named_run_or_ablation
    from driftscope.trace.runs import check_removable, entry_of

    chosen = [run if run.is_symlink() else named_run_or_ablation(run) or run for run in runs]
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

    A run that is being recorded, that was not closed or that cannot be read is never removed.
    """
    import time

    from driftscope.cli.run_list import octets_of, seconds_of
    from driftscope.errors import UsageError
    from driftscope.trace.runs import Bounds, beyond

    if older_than is None and max_total is None:
        raise UsageError("no bound: give --older-than TIME, --max-total SIZE, or both")
    bounds = Bounds(
        older_s=None if older_than is None else seconds_of(older_than),
        total_octets=None if max_total is None else octets_of(max_total),
        keep=keep,
    )
    chosen = beyond(_entries(folders), bounds, time.time())
    _remove(chosen, yes=yes, dry_run=dry_run, as_json=as_json)


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
    dry_run: bool = False,
    as_json: bool,
) -> None:
    """List the runs, ask, remove them, and print what was done."""
    import sys

    from driftscope.boundary.json_document import RUNS, text
    from driftscope.cli import run_list
    from driftscope.errors import UsageError
    from driftscope.trace.runs import remove

    if not as_json:
        run_list.show(entries, {}, stderr=True)
    if entries and not (yes or dry_run):
        if as_json or not sys.stdin.isatty():
            raise UsageError("nobody can be asked here: give --yes, or --dry-run with prune")
        typer.confirm(f"Remove {run_list.summed(entries)}?", abort=True, err=True)
    for entry in () if dry_run else entries:
        remove(entry.path, unclosed=unclosed)
    if as_json:
        removed = {"runs": [run_list.as_dict(entry) for entry in entries]}
        typer.echo(text(RUNS, removed, digits=None), nl=False)
    else:
        verb = "would remove" if dry_run else "removed"
        sys.stderr.write(f"{verb}: {run_list.summed(entries)}\n")
