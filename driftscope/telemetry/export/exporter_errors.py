"""Capture the errors that OpenTelemetry's exporters log, for a single driftscope message."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import textwrap
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from driftscope.boundary.http_peer import BadUrlError, ServerUrl
from driftscope.boundary.text import redacted, shown

LOGGER = "opentelemetry"
LONGEST = 300
"""Most characters of the error that are shown."""
_HEADERS = re.compile(r"OTEL_EXPORTER_OTLP_(\w+_)?HEADERS")
_ENDPOINTS = re.compile(r"OTEL_EXPORTER_OTLP_(\w+_)?ENDPOINT|DRIFTSCOPE_OTLP")
RETRYING = " encountered while exporting"
"""Text that follows the cause in the exporters' log lines and adds nothing to it."""


class ExporterErrorHandler(logging.Handler):
    """Log handler that keeps the first message; later ones only count attempts."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first message, redacted and shortened."""
        cause = record.getMessage().partition(RETRYING)[0]
        cause = shown(redacted(" ".join(cause.split()), secrets_in(os.environ)))
        self.first = self.first or textwrap.shorten(cause, LONGEST, placeholder=" ...")


def secrets_in(environ: Mapping[str, str]) -> list[str]:
    """Return secrets such as keys and passwords from header and endpoint variables. A collector may
    repeat one of them in its error."""
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
    """Redirect OpenTelemetry's log to the handler that is yielded, and nowhere else."""
    logger, handler = logging.getLogger(LOGGER), ExporterErrorHandler()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
