"""Finds, describes and removes runs.

    found(Path("RUN"))              RUN itself
    found(Path("latest"))           the newest run of a probe in DEFAULT_FOLDERS
    found(Path("FOLDER/latest"))    the newest run of a probe in FOLDER
    found(Path("FOLDER"))           NotATraceError, which offers the runs in FOLDER
    found(Path("ROLLUPS"))          ROLLUPS itself: a folder of rollups, or a URI
    search(folder)                  run directories, by the names of their files alone
    entry_of(run)                   the facts that a list of runs shows, without an analysis
    remove(run)                     real directories only, never through a link, none in use

A shell asks `search` at every press of Tab, so Arrow is imported only to count rounds.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from driftscope.boundary.files import PARTIAL, first_line, read_json
from driftscope.errors import DamagedTraceError, NotATraceError, TraceError, UsageError
from driftscope.trace.control import CONTROL
from driftscope.trace.manifest import CLIENT, Manifest, read_manifest
from driftscope.trace.records import RECORDS
from driftscope.trace.status import FAULT, MAX_FAULTS, Status, read_faults, read_statuses
from driftscope.trace.texts import TEXTS
from driftscope.vocabulary import MANIFEST, RunState

LATEST = "latest"
"""Name that stands for the newest run."""
DEFAULT_FOLDERS = (Path("driftscope-runs"), Path("driftscope-pays"))
"""Folders that `serve`, `replay`, `pays` and `demo` write to."""
ROLLUP = ".rollup.parquet"
"""Ending of the names of rollups, see `driftscope.trace.rollups`."""
_URI = re.compile(r"([a-z][a-z0-9+.-]+):/+(.*)", re.DOTALL)
_SERVER = re.compile(r"https?://|[\w.-]+:\d+(/|$)")
DEPTH = 4
"""Levels below a folder that are searched: `pays` writes FOLDER/TIME/LABEL/server."""
MAX_FOLDERS = 10_000
"""Directories that one search opens at most."""


def search(folder: Path) -> Iterator[Path]:
    """Yield the runs in `folder` and up to DEPTH levels below it, in no order.

    A folder that is a run itself is yielded alone. Symbolic links are not followed, and folders
    that cannot be read are passed over.
    """
    level = [folder] if folder.is_dir() else []
    opened = 0
    for _ in range(DEPTH + 1):
        below: list[Path] = []
        for inside in level:
            if (opened := opened + 1) > MAX_FOLDERS:
                return
            names = _entries(inside)
            if MANIFEST in names or any(is_status(name) for name in names):
                yield inside
            else:
                below += [inside / name for name, is_folder in names.items() if is_folder]
        level = below


def _entries(folder: Path) -> dict[str, bool]:
    """Return the names in a folder, each with whether it is a folder itself and no link."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    except OSError:
        return {}


def is_status(name: str) -> bool:
    """Return whether `name` is that of a status, or of the fault of a start that failed."""
    return name.startswith(("status-", "fault-")) and name.endswith(".json")


_PID = re.compile(r"-(\d+)(?:\.\d+)?$")
"""End of a source's name: the process's number, and a count if several had the same number."""
_START_FIELD = 19
"""Index of the start time among the fields of /proc/PID/stat after the name in brackets."""
_TOLERANCE_S = 2.0
"""Inaccuracy, in seconds, of a start time that is counted in clock ticks since the boot."""


def alive(source: str, written_s: float) -> bool:
    """Return whether the process of `source`, such as "worker0-4711", runs on this machine.

    A process that began after `written_s`, a Unix time at which the source wrote, has only got the
    same number.
    """
    match = _PID.search(source)
    if match is None:
        return False
    began_s = _began_s(int(match[1]))
    return began_s is not None and began_s <= written_s + _TOLERANCE_S


def _began_s(pid: int) -> float | None:
    """Return the Unix time at which a process began; None if there is none of this number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        ticks = int(fields.rpartition(")")[2].split()[_START_FIELD])
    except (OSError, ValueError, IndexError):
        return None
    boot_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return boot_s + ticks / os.sysconf("SC_CLK_TCK")


FRESH_S = 60.0
"""Age in seconds of a status file below which its process counts as alive wherever it runs: a
process that records rewrites it every few seconds."""
_VERIFIED = "verified"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """One line of `driftscope ls`."""

    path: Path
    created_s: float
    """Unix time at which the run began."""
    state: str
    """One of RunState."""
    octets: int
    """Size of its files in bytes."""
    manifest: Manifest | None = None
    """None: it has none, or it cannot be read."""
    rounds: int | None = None
    """Rounds (drafts that were verified) of a probe's run; None: unknown, or a replay."""
    requests: int | None = None
    """Requests of a replay, sent or not, or of a run without a drafter; None for other runs, and
    for sums."""
    problem: str = ""
    """Reason why there is no run, or why it cannot be read; "": there is one."""

    @property
    def is_replay(self) -> bool:
        """Whether a sender of prompts recorded it."""
        return self.manifest is not None and self.manifest.engine == CLIENT


def entry_of(run: Path) -> RunEntry:
    """Return the facts of `run`; a run that cannot be read has a `problem`. Raises nothing."""
    octets, changed_s = _size(run)
    try:
        statuses = read_statuses(run)
        manifest = read_manifest(run) if (run / MANIFEST).exists() else None
    except (TraceError, OSError) as error:
        return RunEntry(
            path=run,
            created_s=changed_s,
            state=RunState.UNREADABLE,
            octets=octets,
            problem=str(error),
        )
    replayed = manifest is not None and manifest.engine == CLIENT
    faults = () if manifest else read_faults(run)
    if not (manifest or statuses or faults):
        return RunEntry(
            path=run,
            created_s=changed_s,
            state=RunState.UNREADABLE,
            octets=octets,
            problem="no file of a recorder can be read",
        )
    plain = manifest is not None and manifest.drafter is None
    rounds = None if manifest is None or replayed or plain else _rounds_of(run)
    requests = _requests_of(manifest, statuses) if manifest and (replayed or plain) else None
    state = _state(run, manifest, statuses, requests if plain else rounds)
    return RunEntry(
        path=run,
        created_s=changed_s if manifest is None else manifest.created_s,
        state=state,
        octets=octets,
        manifest=manifest,
        rounds=rounds,
        problem=faults[0].reason if faults else "",
        requests=requests,
    )


def is_live(run: Path, statuses: Sequence[Status]) -> bool:
    """Return whether a process may still write to `run`.

    A process that has not closed its status is alive if this machine has it, or if it wrote less
    than FRESH_S ago. A run without a status file is alive while its manifest is that young.
    """
    now = time.time()
    if not statuses:
        return now - _modified_s(run / MANIFEST) < FRESH_S
    return any(
        not status.closed and (alive(status.source, status.flushed_s) or _fresh(run, status, now))
        for status in statuses
    )


def _fresh(run: Path, status: Status, now: float) -> bool:
    written_s = max(status.flushed_s, _modified_s(run / f"status-{status.source}.json"))
    return now - written_s < FRESH_S


def _state(
    run: Path, manifest: Manifest | None, statuses: Sequence[Status], counted: int | None
) -> str:
    if is_live(run, statuses):
        return RunState.RECORDING if manifest else RunState.STARTING
    if manifest is None:
        return RunState.NEVER_BEGAN
    if not statuses or not all(status.closed for status in statuses):
        return RunState.NOT_CLOSED
    return RunState.EMPTY if counted == 0 else RunState.CLOSED


def _requests_of(manifest: Manifest, statuses: Sequence[Status]) -> int | None:
    """Return the requests of a replay or of a run without a drafter; None for sums of another
    tool's file."""
    record = "client" if manifest.engine == CLIENT else "request"
    sent = sum(status.rows.get(record, 0) for status in statuses)
    return None if not sent and "ingested" in manifest.workload else sent


def _rounds_of(run: Path) -> int | None:
    """Return the rows in which a draft was verified; None if they cannot be read."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from driftscope.trace.segments import SEALED, open_parquet, read_stream, segments

    rounds = 0
    try:
        for path in segments(run, "verify"):
            if path.suffix == SEALED:
                with open_parquet(path) as file:
                    column = file.read(columns=[_VERIFIED]).column(_VERIFIED)
            else:
                table = read_stream(path).table
                empty = pa.chunked_array([], pa.int64())
                column = table.column(_VERIFIED) if table.num_columns else empty
            rounds += pc.sum(pc.greater(column, 0)).as_py() or 0
    except (OSError, ValueError, RuntimeError, KeyError, TypeError):
        return None
    return rounds


def _size(run: Path) -> tuple[int, float]:
    """Return the bytes of the run's files and the time of its last change."""
    octets, changed_s = 0, 0.0
    try:
        with os.scandir(run) as entries:
            for entry in entries:
                known = entry.stat(follow_symlinks=False)
                octets += known.st_size
                changed_s = max(changed_s, known.st_mtime)
    except OSError:
        pass
    return octets, changed_s


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


OFFERED = 5
"""Runs that an error message offers at most."""


def runs_of(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return what `search` finds in all of `folders`, newest first; each run once."""
    runs = {run for folder in folders for run in search(folder)}
    return tuple(sorted(runs, key=lambda run: (-_created_s(run), str(run))))


def newest(folders: Sequence[Path]) -> Path | None:
    """Return the newest run of a probe in `folders`, or the newest replay if there is
    none."""
    runs = runs_of(folders)
    of_probes = (run for run in runs if _field(run, "engine") != CLIENT)
    return next(of_probes, runs[0] if runs else None)


def uri_of(path: Path) -> str | None:
    """Return the URI that a path stands for, such as s3://bucket/folder, of which a Path keeps one
    slash; None for any other path."""
    match = _URI.fullmatch(str(path))
    return match and f"{match[1]}://{'/' if match[1] == 'file' else ''}{match[2]}"


def is_rollups(path: Path) -> bool:
    """Whether a path names rollups: a URI, or a folder that is no run and has such files up to two
    levels below it."""
    if uri_of(path):
        return True
    here = path.is_dir() and not (path / MANIFEST).exists()
    patterns = (f"*{ROLLUP}", f"*/*{ROLLUP}", f"*/*/*{ROLLUP}")
    return here and any(next(path.glob(pattern), None) is not None for pattern in patterns)


def resolve_run(path: Path) -> Path:
    """Return the run or the file that a user named; see the table at the top.

    Raises NotATraceError with the runs to choose from. A file is returned as it is.
    """
    if path.name == LATEST and not path.exists():
        bare = path == Path(LATEST)
        folders = DEFAULT_FOLDERS if bare else (path.parent,)
        if (run := newest(folders)) is not None:
            return run
        where = f"{', '.join(map(str, DEFAULT_FOLDERS))} below this folder" if bare else path.parent
        raise NotATraceError(f"{path}: there is no run in {where}; give a run directory")
    address = uri_of(path) or str(path)
    if not path.exists() and _SERVER.match(address):
        raise NotATraceError(
            f"{address}: is the address of a server, not a run directory; `driftscope watch "
            f"{address}` shows a live server, `driftscope pays {address}` measures it"
        )
    if (path / MANIFEST).exists() or (path.exists() and not path.is_dir()) or is_rollups(path):
        return path
    if not path.exists():
        nearest = _offer(path.parent)
        raise NotATraceError(
            f"{path}: no such directory; a server makes it when its models are loaded"
            f"{f'. Runs beside it: {nearest}' if nearest else ''}"
        )
    offer = _offer(path)
    if not offer:
        read_manifest(path)  # raises, with what is known of a start that failed
    raise NotATraceError(
        f"{path}: has no {MANIFEST}, so it is not a driftscope run; it holds runs, newest first: "
        f"{offer}; give one of them{'' if path == Path() else f', or {quoted(path / LATEST)}'}"
    )


def labels_of(runs: Sequence[Path], given: Sequence[str] | None) -> list[str]:
    """Return the given labels, or the directories' names: with the folder that they lie in where
    they are equal, and numbered where these are, too.

    Raises UsageError if labels are given and are not one distinct label per run.
    """
    if not given:
        paths = [run.resolve() for run in runs]
        names = [path.name or str(run) for run, path in zip(runs, paths, strict=True)]
        longer = [f"{path.parent.name}/{path.name}" for path in paths]
        often = Counter(names)
        are_distinct = len(set(longer)) == len(longer)
        return _distinct(
            [
                long if are_distinct and often[name] > 1 else name
                for name, long in zip(names, longer, strict=True)
            ]
        )
    if len(given) != len(runs):
        raise UsageError(
            f"--label: give one for each of the runs ({len(runs)}), or none; not {len(given)}"
        )
    if len(set(given)) < len(given):
        raise UsageError("--label: two runs have the same label; give each its own")
    return list(given)


def _distinct(names: Sequence[str]) -> list[str]:
    """Make names distinct: "run", "run" -> "run", "run (2)"."""
    counts: Counter[str] = Counter()
    out: list[str] = []
    for name in names:
        counts[name] += 1
        label = name if counts[name] == 1 else f"{name} ({counts[name]})"
        while label in out:
            counts[name] += 1
            label = f"{name} ({counts[name]})"
        out.append(label)
    return out


def quoted(path: Path) -> str:
    """Return a path as a shell takes it when it is pasted."""
    return shlex.quote(str(path))


def _offer(folder: Path) -> str:
    """Return the newest runs in `folder`, as words; "" if it has none."""
    runs = [run for run in runs_of([folder]) if run != folder]
    left = len(runs) - OFFERED
    more = [f"and {left} more (driftscope ls {quoted(folder)})"] if left > 0 else []
    return ", ".join([*map(quoted, runs[:OFFERED]), *more])


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


_OURS = re.compile(
    rf"{re.escape(MANIFEST)}|{re.escape(CONTROL)}|{re.escape(TEXTS)}|(?:status|fault|telemetry)-[^/]*\.json"
    rf"|(?:{'|'.join(RECORDS)})-(?P<source>[^/]+)-\d{{4,}}\.(?:arrows|parquet)"
    rf"|\.[^/]+{re.escape(PARTIAL)}"
)
"""Names of the files that a recorder writes."""
_RECORDER = re.compile(r"(?:worker|engine|reference|client)[\w.]*-[\w.-]+")
"""Names of the sources that recorders have, in a run that has lost their statuses."""


def beyond(
    entries: Sequence[RunEntry],
    now_s: float,
    *,
    older_s: float | None = None,
    total_octets: int | None = None,
    keep: int = 0,
) -> tuple[RunEntry, ...]:
    """Return those of `entries`, newest first, that began more than `older_s` ago or, the oldest
    first, exceed `total_octets` bytes together; the `keep` newest are never among them.

    A run that is being written, that was not closed or that cannot be read is never among them, but
    its size counts.
    """
    chosen, kept_octets = [], 0
    for at, entry in enumerate(entries):
        old = older_s is not None and now_s - entry.created_s > older_s
        large = total_octets is not None and kept_octets + entry.octets > total_octets
        if at >= keep and entry.state in RunState.REMOVABLE and (old or large):
            chosen.append(entry)
        else:
            kept_octets += entry.octets
    return tuple(chosen)


def check_removable(run: Path, *, unclosed: bool = False) -> None:
    """Raise TraceError if `run` is not a run directory that may be removed.

    `unclosed`: also allow a run that no process closed, such as that of a killed server.
    """
    if run.is_symlink():
        raise NotATraceError(f"{run}: is a symbolic link, which is not followed; give the run")
    if not run.is_dir():
        raise NotATraceError(f"{run}: no such run directory")
    names = {path.name for path in run.iterdir()}
    if MANIFEST not in names and not any(map(is_status, names)):
        raise NotATraceError(f"{run}: has no {MANIFEST}, so it is not a driftscope run")
    try:
        statuses = read_statuses(run)
    except DamagedTraceError as error:
        raise TraceError(f"{error}; remove the directory by hand if you are sure") from error
    sources = {status.source for status in statuses}
    foreign = sorted(name for name in names if not _is_ours(run / name, sources))
    if foreign:
        raise NotATraceError(
            f"{run}: holds {foreign[0]!r}, which a recorder does not write; move it away first"
        )
    faults = sorted(name for name in names if name.startswith(FAULT))
    if len(read_faults(run)) < min(len(faults), MAX_FAULTS):
        raise NotATraceError(
            f"{run}: holds {faults[0]!r} or others that are no faults of a start; move them away "
            "first"
        )
    if not statuses:
        _check_proof(run, names)
    _check_over(run, statuses, unclosed=unclosed)


def refusal(run: Path) -> str:
    """Return why a closed run may not be removed; "" if it may."""
    try:
        check_removable(run)
    except (TraceError, OSError) as error:
        return str(error) if isinstance(error, TraceError) else f"{run}: {first_line(error)}"
    return ""


def _check_proof(run: Path, names: Set[str]) -> None:
    """Raise TraceError unless the manifest, or each fault of a start that failed, can be read:
    other tools write a manifest.json, too."""
    if MANIFEST in names:
        try:
            read_manifest(run)
        except TraceError as error:
            raise NotATraceError(
                f"{error}, and no status says that it is a run; remove the directory by hand if "
                "you are sure"
            ) from error
    elif len(read_faults(run)) < len(names - {CONTROL}):
        raise NotATraceError(
            f"{run}: holds no status that can be read, so it is not a driftscope run; remove the "
            "directory by hand if you are sure"
        )


def remove(run: Path, *, unclosed: bool = False) -> None:
    """Remove a run directory with its files, after `check_removable`.

    The directory is opened without following a link, and files are removed inside what was opened,
    the manifest last. Raises TraceError and OSError.
    """
    check_removable(run, unclosed=unclosed)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(run, flags)
    try:
        with os.scandir(descriptor) as entries:
            names = sorted((entry.name for entry in entries), key=lambda name: name == MANIFEST)
        for name in names:
            if not _OURS.fullmatch(name):
                raise TraceError(f"{run}: {name!r} was added meanwhile; it is only removed in part")
            os.unlink(name, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    run.rmdir()


def _is_ours(path: Path, sources: Collection[str]) -> bool:
    """Whether a recorder wrote a file; `sources` are those that have a status."""
    match = _OURS.fullmatch(path.name)
    if match is None or not stat.S_ISREG(path.lstat().st_mode):
        return False
    source = match["source"]
    return source is None or source in sources or bool(_RECORDER.fullmatch(source))


def _check_over(run: Path, statuses: Sequence[Status], *, unclosed: bool) -> None:
    """Raise TraceError for a run in use, and for one that was not closed unless it is allowed."""
    if is_live(run, statuses):
        raise TraceError(f"{run}: is still being recorded; stop the server first")
    # A directory with nothing but the fault of a start never became a run.
    begun = bool(statuses) or (run / MANIFEST).exists()
    closed = bool(statuses) and all(status.closed for status in statuses)
    if begun and not closed and not unclosed:
        raise TraceError(
            f"{run}: was not closed; its server may have been killed, or may be idle on another "
            "machine: give --unclosed if you are sure that it has ended"
        )
