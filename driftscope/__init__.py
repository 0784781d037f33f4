"""driftscope: see why speculative decoding stops paying.

A probe inside the serving engine writes a trace; everything else reads traces.

    import driftscope
    run = driftscope.load("driftscope-runs/20260101-120000")
    run.report()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["__version__", "load"]
__version__ = "0.1.0"


def load(*paths: str | Path, **options: Any) -> Any:
    """Runs or a report, as `driftscope_reports.notebook.Run`: frames, figures and the report.

    `labels` names the runs. The import waits until it is called, and by name: what runs inside an
    engine imports this package and must not see a plotting library behind it.
    """
    from importlib import import_module

    return import_module("driftscope_reports.notebook").load(*paths, **options)
