"""Every public case that takes less than a minute is right; `make cases` has all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from verification.cases.__main__ import answer, prepared
from verification.cases.catalogue import CASES

pytestmark = [pytest.mark.process, pytest.mark.slow]
AT_NIGHT = ("30", "31", "32", "33", "34", "35")
"""Checkpoints that vLLM itself is asked about: `tests/engines/test_inspected.py` has every class
with the same mistakes in one process of vLLM, where each of these cases starts its own."""
QUICK = [
    pytest.param(name, marks=[pytest.mark.nightly] * name.startswith(AT_NIGHT))
    for name, case in CASES.items()
    if not case.slow
]


@pytest.fixture(scope="module")
def folder_and_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("cases")
    with prepared(folder) as url:
        yield folder, url


@pytest.mark.parametrize("name", QUICK)
def test_a_case_is_right(name: str, folder_and_url: tuple[Path, str]) -> None:
    assert answer(CASES[name], *folder_and_url)[1] == []
