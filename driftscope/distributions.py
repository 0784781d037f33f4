"""Says what to install where only a part of driftscope is there.

`driftscope-probe`, the distribution of a serving image, holds the core without what its analysis
depends on; `driftscope` holds the reports and depends on the rest. The lab (small trained models,
and their prompts) is `driftscope-lab`, so that a serving image does not carry
12 MB of models that it never runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec

from driftscope.errors import UsageError

REPORTS = "driftscope_reports"
"""Package that only the distribution `driftscope` has."""
ALONE = (
    "driftscope-probe alone is installed, which records runs; for this command "
    "pip install driftscope, here or on the machine where you read the runs"
)


def analysis_installed() -> bool:
    """Return whether the distribution `driftscope` is installed."""
    return find_spec(REPORTS) is not None


def half_missing(error: ModuleNotFoundError) -> str | None:
    """Return what to install if `error` is due to an install without the analysis; None if it is a
    defect."""
    defect = not error.name or error.name.startswith("driftscope.")
    return None if defect or analysis_installed() else ALONE


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


LAB = "driftscope_lab"
TRIO = "trio"
"""Name of the shipped small models where a command takes a model."""
SMOLLM2 = "smollm2"
"""Name of SmolLM2-135M-Instruct, which is fetched once."""
CACHE = "DRIFTSCOPE_CACHE"
"""Environment variable with the folder in which fetched models are kept."""
LAB_TARGETS = (TRIO, SMOLLM2)
LAB_DRAFTERS = ("eagle3", "eagle31", "smollm2-eagle3", "smollm2-eagle31")
"""Names of the shipped drafters: the trio's, and SmolLM2's."""


@contextlib.contextmanager
def needs_lab() -> Iterator[None]:
    """Raise UsageError with what to install where an import of the lab fails in this block."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != LAB:
            raise
        raise UsageError(
            "the shipped small models are not installed: pip install driftscope-lab, "
            "or `pip install ./lab` in a checkout of driftscope"
        ) from error


class MissingExtraError(UsageError):
    """A package of an extra is not installed."""


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Raise MissingExtraError with the extra's name if an import inside the block fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0].startswith("driftscope"):
            raise
        raise MissingExtraError(
            f"{error.name} is not installed: pip install 'driftscope[{extra}]'"
        ) from error
