"""The runs that a command was given, and how it reads them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from driftscope.analysis.query.row_filters import Filter
from driftscope.cli.shared.analysis_options import DUCKDB, maker_of
from driftscope.cli.shared.progress_bar import steps
from driftscope.pipeline import (
    BY_LABEL,
    EVERYTHING,
    Analysis,
    Inputs,
    MeasuredRuns,
    conclude,
    measure,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoice:
    """Arguments and options of a command that say which runs it reads, and how."""

    paths: tuple[Path, ...]
    """Run directories."""
    labels: tuple[str, ...]
    baseline: Path | None = None
    only: Filter = EVERYTHING
    baseline_only: Filter = EVERYTHING
    by: str = BY_LABEL
    engine: str = DUCKDB
    cluster: str | None = None
    """Column that the user chose as the unit of inference, see `Inputs.cluster`."""

    def measured(self, *, quiet: bool = True) -> MeasuredRuns:
        """Read the runs, with a progress bar unless `quiet`. Raises DriftscopeError."""
        return measure(self.inputs(), partial(steps, what="analysing", quiet=quiet))

    def inputs(self) -> Inputs:
        """Return what the pipeline reads."""
        return Inputs(
            sources=self.paths,
            labels=self.labels,
            baseline=self.baseline,
            only=self.only,
            baseline_only=self.baseline_only,
            by=self.by,
            engine=maker_of(self.engine),
            cluster=self.cluster,
        )

    def analysis(self, *, quiet: bool = True) -> Analysis:
        """Return the conclusions on the runs. Raises DriftscopeError."""
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
