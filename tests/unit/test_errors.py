"""Messages of errors, and which missing module is due to half an install."""

from __future__ import annotations

import pytest

from driftscope import distributions
from driftscope.distributions import half_missing, needs_analysis
from driftscope.errors import MAX_MESSAGE, UsageError

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


def test_a_message_that_quotes_a_long_input_keeps_its_begin_and_end() -> None:
    message = str(UsageError(f"--where: {'x' * 100_000} is no column; see docs/conditions.md"))
    assert message.startswith("--where: xxx")
    assert message.endswith("is no column; see docs/conditions.md")
    assert len(message) < MAX_MESSAGE + 50


def test_a_short_message_is_kept_as_it_is() -> None:
    assert str(UsageError("give two files")) == "give two files"
