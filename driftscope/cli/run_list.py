"""The main finding of each run that `driftscope ls` lists."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from driftscope.analysis.query.row_filters import span_s
from driftscope.boundary.text import shown
from driftscope.distributions import analysis_installed
from driftscope.errors import DriftscopeError, NoDataError, UsageError
from driftscope.trace.runs import RunEntry

MAX_OCTETS = 64 << 20
"""Size in bytes above which a run is not analysed for a list: `driftscope analyze` takes seconds
for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MainFinding:
    """The first of a run's ranked findings, or the headline of a run without one."""

    id: str
    severity: str
    title: str

    def words(self) -> str:
        """Return severity and title as one line."""
        return f"{self.severity}: {self.title}" if self.severity else self.title


def main_findings(entries: Sequence[RunEntry]) -> dict[Path, MainFinding]:
    """Return the main finding of each run that has rounds and is small enough to be analysed.

    There is none where only `driftscope-probe` is installed.
    """
    eligible = [each for each in entries if each.rounds and each.octets <= MAX_OCTETS]
    if not eligible or not analysis_installed():
        return {}
    return {each.path: made for each in eligible if (made := _finding(each.path)) is not None}


def _finding(run: Path) -> MainFinding | None:
    from driftscope.pipeline import Inputs, analyze

    try:
        analysis = analyze(Inputs(sources=[run], labels=[run.name]))
    except NoDataError:
        return MainFinding(id="", severity="", title="too little data")
    except (DriftscopeError, OSError) as error:
        sys.stderr.write(f"driftscope: {run}: not analysed ({type(error).__name__})\n")
        return None
    if analysis.findings:
        first = analysis.findings[0]
        return MainFinding(id=first.id, severity=first.severity or "", title=first.title)
    return MainFinding(id="", severity="", title=analysis.screen.headline)


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)i?B?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_DIGITS = 15
"""Longest number that is accepted, in characters."""


def seconds_of(text: str) -> float:
    """Return the seconds of a span such as "30d"; raises UsageError."""
    if (seconds := span_s(text)) is None:
        raise UsageError(f"--older-than {text!r}: give a span such as 12h or 30d")
    return seconds


def octets_of(text: str) -> int:
    """Return the bytes of a size such as "20GB" or "500M"; raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or len(match[1]) > _DIGITS:
        raise UsageError(f"--max-total {text!r}: give a size such as 500MB or 20GB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


NAME_WIDTH = 14
"""Columns of a model's name; the middle of a longer one is left out."""
HEADS = ("started", "target", "drafter", "K", "rounds", "state", "size")
_WIDTHS = (16, NAME_WIDTH, NAME_WIDTH, 3, 9, 10, 8)
_RIGHT = ("K", "rounds", "size")
_UNKNOWN = "-"
_SIZE_UNITS = ("B", "kB", "MB", "GB", "TB")
_STEP = 1000


def show(
    entries: Sequence[RunEntry],
    findings: Mapping[Path, MainFinding],
    *,
    left_out: int = 0,
    stderr: bool = False,
) -> None:
    """Print the runs to stdout, or to stderr; say where runs come from if there is none."""
    out = sys.stderr if stderr else sys.stdout
    if not entries:
        sys.stderr.write("no runs here; `driftscope serve` and `driftscope demo` record some\n")
        return
    out.write(_line(HEADS))
    for entry in entries:
        out.write(_line(_cells(entry)))
        finding = findings.get(entry.path)
        words = entry.problem or (finding.words() if finding else "")
        out.write(shown(f"  {entry.path}{f'  {words}' if words else ''}") + "\n")
    if left_out:
        sys.stderr.write(f"and {left_out:,} more: --limit {len(entries) + left_out}\n")


def as_dict(entry: RunEntry, finding: MainFinding | None = None) -> dict[str, Any]:
    """Return one run as plain values for JSON."""
    manifest = entry.manifest
    return {
        "path": str(entry.path),
        "created_s": entry.created_s,
        "kind": _kind(entry),
        "target": None if manifest is None else manifest.target.name,
        "drafter": None if manifest is None else manifest.drafter.name,
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


def _kind(entry: RunEntry) -> str:
    if entry.is_ablation:
        return "ablation"
    return "replay" if entry.is_replay else "probe"


def summed(entries: Sequence[RunEntry]) -> str:
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
    manifest = entry.manifest
    started = datetime.fromtimestamp(entry.created_s).strftime("%Y-%m-%d %H:%M")
    counted = _UNKNOWN if entry.rounds is None else f"{entry.rounds:,}"
    if entry.requests is not None:
        counted = f"{entry.requests:,} sent"
    if manifest is None:
        return started, _UNKNOWN, _UNKNOWN, _UNKNOWN, counted, entry.state, size(entry.octets)
    drafter = "(replay)" if entry.is_replay else _name(manifest.drafter.name) or manifest.method
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


def _line(cells: Sequence[str]) -> str:
    aligned = [
        cell.rjust(width) if head in _RIGHT else cell.ljust(width)
        for cell, head, width in zip(cells, HEADS, _WIDTHS, strict=True)
    ]
    return " ".join(aligned).rstrip() + "\n"
