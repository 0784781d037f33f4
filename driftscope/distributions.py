"""Says what to install where only half of driftscope is: a serving image has the probe's half.

`driftscope-probe` is the probe, the recorder, the telemetry and the command line. `driftscope` adds
the analysis, the reports and the replay client, and depends on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from driftscope.errors import UsageError

ANALYSIS = "driftscope.pipeline"
"""Module that only the distribution `driftscope` has."""
ALONE = (
    "driftscope-probe alone is installed, which records runs; for this command "
    "pip install driftscope, here or on the machine where you read the runs"
)
APART = (
    "driftscope and driftscope-probe are installed in different folders; install both in one "
    "environment: pip install --force-reinstall --no-deps driftscope driftscope-probe"
)


def analysis_installed() -> bool:
    """Return whether the analysis can be imported."""
    return find_spec(ANALYSIS) is not None


def half_missing(error: ModuleNotFoundError) -> str | None:
    """Return what to install if `error` is due to an install without the analysis; None if it is a
    defect."""
    ours = (error.name or "").partition(".")[0].startswith("driftscope")
    if not ours or analysis_installed():
        return None
    try:
        version("driftscope")
    except PackageNotFoundError:
        return ALONE
    return APART


@contextlib.contextmanager
def needs_analysis() -> Iterator[None]:
    """Raise UsageError with what to install if an import in this block needs the analysis."""
    try:
        yield
    except ModuleNotFoundError as error:
        line = half_missing(error)
        if line is None:
            raise
        raise UsageError(line) from error
