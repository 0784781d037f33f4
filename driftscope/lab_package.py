"""Says how to get the lab: small trained models, their prompts and the demonstration.

The lab is a package of its own, `driftscope_lab`, so that a serving image does not carry 12 MB of
models that it never runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from driftscope.errors import UsageError

LAB = "driftscope_lab"
TRIO = "trio"
"""Name of the shipped small models where a command takes a model."""


@contextlib.contextmanager
def needs_lab() -> Iterator[None]:
    """Raise UsageError with what to install where an import of the lab fails in this block."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != LAB:
            raise
        raise UsageError(
            "the demonstration and its small models are not installed: pip install driftscope-lab, "
            "or `pip install ./lab` in a checkout of driftscope"
        ) from error
