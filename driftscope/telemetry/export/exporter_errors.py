"""What OpenTelemetry's exporters say of their failures, kept for one message of ours."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import textwrap
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from driftscope.boundary.secret_text import redacted
from driftscope.boundary.server_url import BadUrlError, ServerUrl
from driftscope.boundary.terminal_text import shown

LOGGER = "opentelemetry"
LONGEST = 300
"""Characters of it that are shown."""
_HEADERS = re.compile(r"OTEL_EXPORTER_OTLP_(\w+_)?HEADERS")
_ENDPOINTS = re.compile(r"OTEL_EXPORTER_OTLP_(\w+_)?ENDPOINT|DRIFTSCOPE_OTLP")
RETRYING = " encountered while exporting"
"""What follows the cause, and says no more of it."""


class ExporterErrorHandler(logging.Handler):
    """The first thing said; those after it only count attempts."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        """As logging's."""
        cause = record.getMessage().partition(RETRYING)[0]
        cause = shown(redacted(" ".join(cause.split()), secrets_in(os.environ)))
        self.first = self.first or textwrap.shorten(cause, LONGEST, placeholder=" ...")


def secrets_in(environ: Mapping[str, str]) -> list[str]:
    """What the variables of headers and endpoints hold, such as keys and passwords: a collector may
    repeat one in its error."""
    urls = [value for name, value in environ.items() if _ENDPOINTS.fullmatch(name)]
    given = [value for name, value in environ.items() if _HEADERS.fullmatch(name)]
    pairs = (pair.partition("=")[2].strip() for value in given for pair in value.split(","))
    keys = [unquote(value).rpartition(" ")[2] for value in pairs if value]
    return [*keys, *(secret for url in urls for secret in _secrets_of(url))]


def _secrets_of(url: str) -> tuple[str, ...]:
    try:
        return ServerUrl.parsed(url.strip()).secrets
    except BadUrlError:
        return ()


@contextlib.contextmanager
def capture_exporter_errors() -> Iterator[ExporterErrorHandler]:
    """Its log goes to what is yielded and nowhere else."""
    logger, handler = logging.getLogger(LOGGER), ExporterErrorHandler()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
