"""A run in a notebook: pandas frames, plotly figures and a report that displays itself."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.boundary.files import write_text
from driftscope.errors import UsageError
from driftscope.json_report import to_dict
from driftscope.pipeline import Analysis, Inputs, analyze
from driftscope.trace.reader import Trace, read_trace
from driftscope.trace.runs import labels_of, resolve_run
from driftscope_reports.charts import escaped, plain
from driftscope_reports.html import pictures, to_html
from driftscope_reports.page import colours

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_HEIGHT = 720
"""Height of a report in a cell, in pixels."""


class Report:
    """A report that a notebook shows in the cell."""

    def __init__(self, analysis: Analysis) -> None:
        self.html = to_html(analysis)
        self._headline = analysis.verdict[0]

    def __repr__(self) -> str:
        return f"<driftscope report: {self._headline}>"

    def _repr_html_(self) -> str:
        """Return the report in an iframe, which keeps the page's policy and styles separate."""
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts" '
            f'title="Drift report" style="width:100%;height:{_HEIGHT}px;border:0"></iframe>'
        )

    def save(self, path: str | Path) -> Path:
        """Write the file; raises OSError."""
        write_text(Path(path), self.html)
        return Path(path)


class Run:
    """Result of `driftscope.load`: tables of one or more runs, their figures and the report.

    run = driftscope.load("driftscope-runs/20260101-120000")
    run.drafts                        # one row per recorded chain and depth
    run.rounds                        # one row per decode step of a request
    run.figures["acceptance-marginal"]
    run.report()                      # shows itself in a notebook
    run.report().save("report.html")
    """

    def __init__(self, analysis: Analysis, traces: Mapping[str, Trace] | None = None) -> None:
        """`traces`: the rows of each run or replay, by label."""
        self.analysis = analysis
        self.traces = dict(traces or {})

    def __repr__(self) -> str:
        return f"<driftscope run: {self.analysis.verdict[0]}>"

    def _repr_html_(self) -> str:
        headline, *others = map(html.escape, self.analysis.verdict)
        lines = "".join(f"<li>{line}</li>" for line in others)
        return f"<p><b>driftscope</b>: {headline}</p><ul>{lines}</ul>"

    @property
    def verdict(self) -> str:
        """Sentences of the first screen, one a line, the headline first."""
        return "\n".join(self.analysis.verdict)

    @property
    def runs(self) -> tuple[RunSummary, ...]:
        """Summaries of the runs."""
        return self.analysis.runs

    @property
    def summary(self) -> dict[str, object]:
        """Content of the JSON report."""
        return to_dict(self.analysis)

    def report(self) -> Report:
        """Return the whole report."""
        return Report(self.analysis)

    @cached_property
    def figures(self) -> dict[str, go.Figure]:
        """Every picture of the report by its name, as plotly figures."""
        import plotly.graph_objects as go

        drawn = pictures(self.analysis)
        return {p.id: _titled(go.Figure(plain(p.chart, colours())), p.title) for p in drawn}

    @cached_property
    def findings(self) -> pd.DataFrame:
        """One row per finding, worst first."""
        import pandas as pd

        names = ("id", "severity", "runs", "title", "statement", "advice")
        rows = [[_plain(getattr(f, name)) for name in names] for f in self.analysis.findings]
        return pd.DataFrame(rows, columns=list(names))

    @cached_property
    def by_depth(self) -> pd.DataFrame:
        """Drift quantities as a table: one row per run and depth."""
        import pandas as pd

        return pd.DataFrame([row for run in self.runs for row in _depth_rows(run)])

    @property
    def drafts(self) -> pd.DataFrame:
        """Recorded chains; each cell of a column by depth holds a list."""
        return self._table("draft")

    @property
    def rounds(self) -> pd.DataFrame:
        """Decode steps of single requests: drafted, accepted, or the reason why nothing was
        drafted."""
        return self._table("verify")

    @property
    def steps(self) -> pd.DataFrame:
        """Steps of the workers, with their times."""
        return self._table("step")

    @property
    def requests(self) -> pd.DataFrame:
        """Finished requests."""
        return self._table("request")

    def _table(self, record: str) -> pd.DataFrame:
        """Return the rows of every run, labelled by the column `run`."""
        import pandas as pd

        frames = [
            getattr(trace, record).to_pandas().assign(run=label)
            for label, trace in self.traces.items()
        ]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def load(
    *paths: str | Path, labels: Sequence[str] | None = None, baseline: str | Path | None = None
) -> Run:
    """Return the runs in `paths`, compared with `baseline`.

    Each path is a run directory or "latest". Raises TraceError, NoDataError or UsageError, as
    `driftscope analyze` does.
    """
    if not paths:
        raise UsageError("load: give a run directory, or several")
    given = [resolve_run(Path(path)) for path in paths]
    traces = [read_trace(path) for path in given]
    names = labels_of(given, labels)
    reference = None if baseline is None else resolve_run(Path(baseline))
    analysis = analyze(Inputs(sources=traces, labels=names, baseline=reference))
    return Run(analysis, dict(zip(names, traces, strict=True)))


def _plain(value: object) -> object:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _depth_rows(run: RunSummary) -> list[dict[str, object]]:
    columns = {
        "marginal": run.acceptance.marginal,
        "conditional": run.acceptance.conditional,
        "counted": run.acceptance.counted,
        "sink_mass": run.attention.sink_mass,
        "prompt_mass": run.attention.prompt_mass,
        "generated_mass": run.attention.generated_mass,
        "self_mass": run.attention.self_mass,
        "in_rms": run.hidden.in_rms,
        "prenorm_rms": run.hidden.prenorm_rms,
        "postnorm_rms": run.hidden.postnorm_rms,
        "fed_rms": run.hidden.fed_rms,
        "top1": run.confidence.top1,
        "entropy": run.confidence.entropy,
    }
    return [
        {"run": run.label, "depth": d + 1}
        | {
            name: values[d] if values and d < len(values) else None
            for name, values in columns.items()
        }
        for d in range(run.k)
    ]


def _titled(made: go.Figure, title: str) -> go.Figure:
    made.update_layout(
        title={"text": escaped(title, len(title))},
        margin={"t": 60},
        paper_bgcolor="white",
        showlegend=len(made.data) > 1,
    )
    return made
