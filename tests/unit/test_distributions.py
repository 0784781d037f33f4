"""Which missing module is due to half an install; the installs themselves: tests/commands."""

from __future__ import annotations

import pytest

from driftscope import distributions
from driftscope.distributions import half_missing, needs_analysis
from driftscope.errors import UsageError

MISSING = ModuleNotFoundError(name="duckdb")


def test_a_missing_module_is_a_defect_where_all_is_installed() -> None:
    assert half_missing(MISSING) is None
    with pytest.raises(ModuleNotFoundError), needs_analysis():
        raise MISSING


def test_without_the_analysis_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributions, "REPORTS", "nowhere_at_all")
    assert "pip install" in (half_missing(MISSING) or "")
    with pytest.raises(UsageError, match="pip install"), needs_analysis():
        raise MISSING


@pytest.mark.parametrize("name", ["driftscope.nowhere", "", None])
def test_a_module_of_ours_is_a_defect(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    monkeypatch.setattr(distributions, "REPORTS", "nowhere_at_all")
    assert half_missing(ModuleNotFoundError(name=name)) is None
