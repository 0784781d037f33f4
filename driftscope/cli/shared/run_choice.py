"""The runs that a command was given, and how it reads them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from driftscope.analysis.query.row_filters import Filter
from driftscope.cli.shared.analysis_options import DUCKDB, maker_of
from driftscope.cli.shared.progress_bar import steps
from driftscope.errors import UsageError
from driftscope.pipeline import (
    BY_LABEL,
    EVERYTHING,
    Analysis,
    Inputs,
    MeasuredRuns,
    conclude,
    measure,
)
from driftscope_reports.html.embedded_data import read_report

REPORTS = (".html", ".htm")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoice:
    """Arguments and options of a command that say which runs it reads, and how."""

    paths: tuple[Path, ...]
    """Run directories, and reports whose data is read back."""
    labels: tuple[str, ...]
    baseline: Path | None = None
    only: Filter = EVERYTHING
    baseline_only: Filter = EVERYTHING
    by: str = BY_LABEL
    engine: str = DUCKDB
    cluster: str | None = None
    """Column that the user chose as the unit of inference, see `Inputs.cluster`."""

    def __post_init__(self) -> None:
        """Raise UsageError if only a part of a report is wanted."""
        if self.only != EVERYTHING and any(map(is_report, self.paths)):
            raise UsageError("--where, --since: a report has no rows that could be chosen")

    def measured(self, *, quiet: bool = True) -> MeasuredRuns:
        """Read the runs, with a progress bar unless `quiet`. Raises DriftscopeError."""
        return measure(self.inputs(), partial(steps, what="analysing", quiet=quiet))

    def inputs(self) -> Inputs:
        """Return what the pipeline reads. Raises DriftscopeError for a report that it cannot."""
        return Inputs(
            sources=[read_report(path) if is_report(path) else path for path in self.paths],
            labels=self.labels,
            baseline=self.baseline,
            only=self.only,
            baseline_only=self.baseline_only,
            by=self.by,
            engine=maker_of(self.engine),
            cluster=self.cluster,
        )

    def analysis(self, *, quiet: bool = True) -> Analysis:
        """Return the conclusions on the runs. A single report without a baseline gives the analysis
        that it was made from. Raises DriftscopeError."""
        if len(self.paths) == 1 and self.baseline is None and is_report(self.paths[0]):
            return read_report(self.paths[0])
        measured = self.measured(quiet=quiet)
        return conclude(measured.runs, measured.replays, measured.baseline)

    def command_line(self, output: Path) -> str:
        """Return the command line that writes the report `output` again."""
        words = ["driftscope", "analyze", *map(str, self.paths)]
        words += [word for label in self.labels for word in ("--label", label)]
        options = {
            "--baseline": self.baseline,
            "--where": self.only.where,
            "--since": self.only.since,
            "--by": self.by if self.by != BY_LABEL else None,
            "--cluster": self.cluster,
        }
        for name, value in options.items():
            words += [] if value is None else [name, str(value)]
        return shlex.join([*words, "-o", str(output)])


def is_report(path: Path) -> bool:
    """Whether `path` names a report rather than a run directory."""
    return path.suffix.lower() in REPORTS and not path.is_dir()
