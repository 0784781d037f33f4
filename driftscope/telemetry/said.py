"""What OpenTelemetry's exporters say of their failures, kept for one message of ours."""

from __future__ import annotations

import contextlib
import logging
import textwrap
from collections.abc import Iterator

LOGGER = "opentelemetry"
LONGEST = 300
"""Characters of it that are shown."""
RETRYING = " encountered while exporting"
"""What follows the cause, and says no more of it."""


class Said(logging.Handler):
    """The first thing said; those after it only count attempts."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        """As logging's."""
        cause = record.getMessage().partition(RETRYING)[0]
        self.first = self.first or textwrap.shorten(cause, LONGEST, placeholder=" ...")


@contextlib.contextmanager
def kept() -> Iterator[Said]:
    """Its log goes to what is yielded and nowhere else."""
    logger, handler = logging.getLogger(LOGGER), Said()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
