"""Findings about kinds of text, and the case in which one would mislead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.simulate import Truth

from benchmarks.calibration.causes import TEXT_BASE, case_of_text
from driftscope.findings.rules_circumstances import boundary_dip, region_costs

pytestmark = pytest.mark.slow


def of(json_share: float, shift: float) -> Truth:
    """Return answers of prose and this share of JSON, which is harder by `shift`."""
    return replace(TEXT_BASE, regions={"prose": (1 - json_share, 0.0), "json": (json_share, shift)})


def test_a_kind_that_is_the_exception_and_accepts_less_is_named() -> None:
    found = region_costs(case_of_text(of(0.25, -1.6)))
    assert found is not None
    assert found.statement.startswith("in JSON (")
    assert found.evidence["share_of_rounds"] < 0.5
    assert found.severity == "info"


def test_the_most_frequent_kind_may_be_the_one_that_accepts_less() -> None:
    found = region_costs(case_of_text(of(0.1, 1.6)))
    assert found is not None
    assert found.statement.startswith("in prose (")
    assert found.evidence["share_of_rounds"] > 0.5
    assert found.severity == "info"


def test_a_kind_with_too_few_rounds_changes_little() -> None:
    assert region_costs(case_of_text(of(0.01, -1.6))) is None


def test_begins_of_blocks_are_named_if_they_accept_less() -> None:
    found = boundary_dip(case_of_text(replace(of(0.5, 0.0), boundary=-1.6)))
    assert found is not None
    assert found.evidence["kept"] < 0.75
    assert boundary_dip(case_of_text(of(0.5, 0.0))) is None
