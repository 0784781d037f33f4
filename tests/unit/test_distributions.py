"""Which missing module is due to half an install; the installs themselves: tests/commands."""

from __future__ import annotations

import pytest

from driftscope import distributions
from driftscope.distributions import half_missing, needs_analysis
from driftscope.errors import UsageError

NOWHERE = "driftscope.nowhere"
OURS = ModuleNotFoundError(name=NOWHERE)


def test_a_missing_module_is_a_defect_where_all_is_installed() -> None:
    assert half_missing(OURS) is None
    with pytest.raises(ModuleNotFoundError), needs_analysis():
        raise OURS


def test_without_the_analysis_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributions, "ANALYSIS", NOWHERE)
    assert "pip install" in (half_missing(OURS) or "")
    with pytest.raises(UsageError, match="pip install"), needs_analysis():
        raise OURS


@pytest.mark.parametrize("name", ["torch", "", None])
def test_a_package_of_others_is_none_of_it(
    monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    monkeypatch.setattr(distributions, "ANALYSIS", NOWHERE)
    assert half_missing(ModuleNotFoundError(name=name)) is None
