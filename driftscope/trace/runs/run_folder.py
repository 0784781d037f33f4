"""Finds runs: those below a folder, and the one that a user names.

    found(Path("RUN"))              RUN itself
found(Path("latest"))           the newest run of a probe in DEFAULT_FOLDERS
found(Path("FOLDER/latest"))    the newest run of a probe in FOLDER
found(Path("FOLDER"))           NotATraceError, which offers the runs in FOLDER
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from driftscope.boundary.files import read_json
from driftscope.errors import NotATraceError
from driftscope.trace.format.manifest import ABLATION, CLIENT, MANIFEST, read_manifest
from driftscope.trace.runs.run_search import DEFAULT_FOLDERS, LATEST, search

OFFERED = 5
"""Runs that an error message offers at most."""


def runs_in(folder: Path) -> tuple[Path, ...]:
    """Return the runs in `folder` and up to DEPTH levels below it, newest first.

    A folder that is a run itself is returned alone. Symbolic links are not followed. Folders that
    cannot be read are passed over.
    """
    return _newest_first(search(folder))


def runs_of(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the runs in all of `folders`, newest first; each run once."""
    return _newest_first(dict.fromkeys(run for folder in folders for run in search(folder)))


def newest(folders: Sequence[Path]) -> Path | None:
    """Return the newest run of a probe in `folders`, or the newest replay if there is none.
    Ablations are passed over."""
    runs = [run for run in runs_of(folders) if not is_ablation_run(run)]
    return next((run for run in runs if not is_replay_run(run)), runs[0] if runs else None)


def found(path: Path) -> Path:
    """Return the run or the file that a user named; see the table at the top.

    Raises NotATraceError with the runs to choose from. A file is returned as it is.
    """
    if path.name == LATEST and not path.exists():
        return _latest(path)
    if (path / MANIFEST).exists() or (path.exists() and not path.is_dir()):
        return path
    if not path.exists():
        beside = _offer(path.parent)
        raise NotATraceError(
            f"{path}: no such directory; if a server was to record there, it has not loaded its "
            f"drafter: see its log{f'. Runs beside it: {beside}' if beside else ''}"
        )
    offer = _offer(path)
    if not offer:
        read_manifest(path)  # raises, with what is known of a start that failed
    raise NotATraceError(
        f"{path}: has no {MANIFEST}, so it is not a driftscope run; it holds runs, newest first: "
        f"{offer}; give one of them, or {path / LATEST}"
    )


def is_replay_run(run: Path) -> bool:
    """Return whether a sender of prompts recorded the run; False for an unreadable manifest."""
    return _field(run, "engine") == CLIENT


def is_ablation_run(run: Path) -> bool:
    """Return whether `driftscope ablate` wrote the run; False for an unreadable manifest."""
    return _field(run, "mode") == ABLATION


def _latest(path: Path) -> Path:
    bare = path == Path(LATEST)
    folders = DEFAULT_FOLDERS if bare else (path.parent,)
    if (run := newest(folders)) is not None:
        return run
    where = f"{', '.join(map(str, DEFAULT_FOLDERS))} below this folder" if bare else path.parent
    raise NotATraceError(f"{path}: there is no run in {where}; give a run directory")


def _offer(folder: Path) -> str:
    """Return the newest runs in `folder`, as words; "" if it has none."""
    runs = [run for run in runs_in(folder) if run != folder]
    left = len(runs) - OFFERED
    more = [f"and {left} more (driftscope ls {folder})"] if left > 0 else []
    return ", ".join([*map(str, runs[:OFFERED]), *more])


def _newest_first(runs: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(sorted(runs, key=lambda run: (-_created_s(run), str(run))))


def _created_s(run: Path) -> float:
    """Return when the run began; for an unreadable manifest, when its folder last changed."""
    created = _field(run, "created_s")
    if isinstance(created, int | float):
        return float(created)
    try:
        return run.stat().st_mtime
    except OSError:
        return 0.0


def _field(run: Path, name: str) -> object:
    try:
        content = read_json(run / MANIFEST)
    except (OSError, ValueError):
        return None
    return content.get(name) if isinstance(content, dict) else None
