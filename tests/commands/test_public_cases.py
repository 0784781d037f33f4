"""Every public case that takes less than a minute is right; `make cases` has all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from verification.cases.__main__ import answer, prepared
from verification.cases.catalogue import CASES, Case

pytestmark = [pytest.mark.process, pytest.mark.slow]
QUICK = [case for case in CASES if not case.slow]


@pytest.fixture(scope="module")
def folder_and_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("cases")
    with prepared(folder) as url:
        yield folder, url


@pytest.mark.parametrize("case", QUICK, ids=[case.number for case in QUICK])
def test_a_case_is_right(case: Case, folder_and_url: tuple[Path, str]) -> None:
    assert answer(case, *folder_and_url).faults == ()
