"""driftscope: see why speculative decoding stops paying.

A probe inside the serving engine writes a trace; everything else reads traces.

    import driftscope
    run = driftscope.load("latest")
    run.report()
    driftscope.check("latest", require=["no_worse(acceptance.mean_length, 5%)"], baseline="old")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driftscope.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["__version__", "check", "load"]


def load(*paths: str | Path, **options: Any) -> Any:
    """Runs or a report, as `driftscope_reports.notebook.Run`: frames, figures and the report.

    `labels` names the runs. The import waits until it is called, and by name: what runs inside an
    engine imports this package and must not see a plotting library behind it. Raises UsageError
    where only `driftscope-probe` is installed.
    """
    return _of_the_analysis("driftscope_reports.notebook").load(*paths, **options)


def check(
    *runs: str | Path,
    fail_on: Sequence[str] = (),
    require: Sequence[str] = (),
    rules: str | Path | None = None,
    baseline: str | Path | None = None,
    undecided: str = "fail",
) -> None:
    """Assert a gate on runs, for tests: the rules are those of `driftscope check`.

    `undecided`: "fail" or "pass", for a rule that noise could decide either way. Raises
    AssertionError with one line for each broken or undecided rule, UsageError for a rule that
    cannot be read or where only `driftscope-probe` is installed, TraceError or NoDataError for a
    run.
    """
    __tracebackhide__ = True  # pytest then shows the line of the test
    _of_the_analysis("driftscope.cli.gate_run").assert_gate(
        runs, fail_on, require, rules=rules, baseline=baseline, undecided=undecided
    )


def _of_the_analysis(module: str) -> Any:
    from importlib import import_module

    from driftscope.distributions import needs_analysis

    with needs_analysis():
        return import_module(module)
