"""A server that accepts what was measured offline does not differ; one that accepts less does."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from support.inspections import inspection_document
from support.runs import Spec, write_run

from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.boundary.json_document import INSPECTION, INSPECTION_COMPARISON, text
from driftscope.errors import MixedTraceError, UnknownKindError, UsageError
from driftscope.inspect.compare_run import (
    compare_inspections,
    compare_run,
    read_inspection,
    to_json,
)
from driftscope.json_schema import schema_of
from driftscope.pipeline import Inputs, analyze

RATES = (0.8, 0.6, 0.4, 0.3)
K = len(RATES)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    path = tmp_path_factory.mktemp("run") / "run"
    write_run(path, Spec(k=K, conditional=RATES, requests=40, rounds=10))
    return analyze(Inputs(sources=[path], labels=["live"])).runs[0]


def test_a_run_of_equal_rates_rarely_differs(tmp_path: Path, run: RunSummary) -> None:
    apart = 0
    for seed in range(40):
        inspected = read_inspection(inspection_document(tmp_path, RATES, seed=seed))
        apart += "no difference" not in compare_run(inspected, run).verdict
    assert apart <= 8  # 2 are expected; all 40 share the chance error of one run


def test_a_run_that_accepts_less_is_found_with_its_size(tmp_path: Path, run: RunSummary) -> None:
    inspected = read_inspection(inspection_document(tmp_path, (0.9, 0.85, 0.8, 0.8)))
    found = compare_run(inspected, run)
    assert found.verdict.startswith("live accepts less than the inspection promises")
    length, *depths = found.differences
    assert length.difference == pytest.approx(
        run.acceptance.mean_length - inspected.acceptance.mean_length
    )
    assert length.interval is not None and length.interval.high < 0
    assert [depth.depth for depth in depths] == [1, 2, 3, 4]
    assert all(depth.interval is not None for depth in depths)
    less = read_inspection(inspection_document(tmp_path, (0.3, 0.2, 0.1, 0.1)))
    assert compare_run(less, run).verdict.startswith("live accepts more")


def test_the_document_follows_its_schema(tmp_path: Path, run: RunSummary) -> None:
    inspected = read_inspection(inspection_document(tmp_path, RATES))
    document = json.loads(to_json(compare_run(inspected, run)))
    jsonschema.validate(document, schema_of(INSPECTION_COMPARISON))
    assert any("prompts" in note for note in document["notes"])


@pytest.mark.parametrize(
    "content",
    [
        "no json",
        "[]",
        "{}",
        text("report", {}),
        text(INSPECTION, {"drafter": "a", "trial": None}),
        text(INSPECTION, {"drafter": "a", "trial": {"k": 2}}),
        text(INSPECTION, {"drafter": "a", "trial": {"k": "x", "acceptance": {}}}),
    ],
)
def test_another_document_is_one_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    error = UnknownKindError if content in ("no json", "[]", "{}") else UsageError
    with pytest.raises(error, match=r"a\.json"):
        read_inspection(path)


def test_two_inspections_are_compared_and_both_need_one_k(tmp_path: Path) -> None:
    good, bad, short = (
        read_inspection(inspection_document(tmp_path, rates))
        for rates in ((0.9, 0.85), (0.5, 0.4), (0.9,))
    )
    found = compare_inspections(good, bad)
    assert "accepts less than drafter" in found.verdict and "engine" not in found.verdict
    assert found.differences[0].difference == pytest.approx(
        bad.acceptance.mean_length - good.acceptance.mean_length
    )
    with pytest.raises(MixedTraceError, match="K = 2 and 1"):
        compare_inspections(good, short)
