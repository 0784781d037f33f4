"""The main finding of each run that `driftscope ls` lists."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from driftscope.distributions import analysis_installed
from driftscope.errors import DriftscopeError, NoDataError
from driftscope.trace.runs.run_entry import RunEntry

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
        return MainFinding(id=first.id, severity=first.severity.value, title=first.title)
    return MainFinding(id="", severity="", title=" ".join(analysis.verdict[:1]))
