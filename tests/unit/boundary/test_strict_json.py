"""JSON that strict parsers read."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftscope.boundary.strict_json import dumps, finite

ROOT = Path(__file__).parents[3]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


@given(VALUES)
def test_what_is_written_a_strict_parser_reads(value: Any) -> None:
    read = json.loads(dumps(value), parse_constant=_refuse)
    assert read == finite(value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_finite_number_is_null(number: float) -> None:
    assert dumps({"a": [number, 1.5], "b": (number,)}, sort_keys=True) == (
        '{"a": [null, 1.5], "b": [null]}'
    )


def test_everything_goes_through_here() -> None:
    """No other module of driftscope or its reports calls json.dumps."""
    sources = [*(ROOT / "driftscope").rglob("*.py"), *(ROOT / "reports").rglob("*.py")]
    own = ROOT / "driftscope" / "boundary" / "strict_json.py"
    calls = re.compile(r"(?<![\w.])json\.dumps?\(")
    found = [p for p in sources if p != own and calls.search(p.read_text(encoding="utf-8"))]
    assert not found
