"""What OpenTelemetry's exporters say of their failures, kept for one message of ours."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

LOGGER = "opentelemetry"
LONGEST = 300
"""Characters of it that are shown."""


class Said(logging.Handler):
    """The first thing said; those after it only count attempts."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        """As logging's."""
        self.first = self.first or " ".join(record.getMessage().split())[:LONGEST]


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
