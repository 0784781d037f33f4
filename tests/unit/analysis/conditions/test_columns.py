"""The documented columns of conditions."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftscope.analysis.conditions.columns import COLUMNS, OF_REQUESTS, OF_STEPS
from driftscope.analysis.conditions.tokens import MAX_CHARS, MAX_NESTING
from driftscope.analysis.query.record_views import queried

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "conditions.md").read_text("utf-8")


@pytest.mark.parametrize("name", COLUMNS)
def test_the_page_has_every_column(name: str) -> None:
    column = COLUMNS[name]
    assert f"| `{name}` | {column.kind} | {column.meaning} |\n" in PAGE


def test_the_page_has_the_bounds() -> None:
    assert f"at most {MAX_CHARS:,} characters and brackets nested {MAX_NESTING} deep" in PAGE


def test_columns_of_requests_and_steps_are_columns() -> None:
    assert set(OF_REQUESTS) | set(OF_STEPS) <= set(COLUMNS)
    assert set(OF_REQUESTS) <= set(queried("request").names)
