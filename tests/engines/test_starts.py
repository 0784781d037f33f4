"""A start whose probe is broken serves the tokens of an engine without the plugin, and says why."""

from __future__ import annotations

import pytest
from verification.starts.rows import ROWS, SHORT
from verification.starts.table import Started, Starts

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Started]:
    rows = {name: ROWS[name] for name in SHORT}
    return dict(Starts(tmp_path_factory.mktemp("starts")).run(rows))


@pytest.mark.parametrize("name", SHORT)
def test_it_serves_the_same_and_says_why(started: dict[str, Started], name: str) -> None:
    one, row = started[name], ROWS[name]
    assert one.served, one.log[-3000:]
    assert one.same
    (line,) = one.lines
    assert row.said in line
    assert (one.rounds > 0) == row.records
