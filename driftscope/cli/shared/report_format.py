"""Formats of a report."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """Format of the report."""

    HTML = "html"
    JSON = "json"
    MARKDOWN = "markdown"
