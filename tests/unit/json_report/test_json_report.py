"""Documents are the records: their keys, their schema, and reading them back."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import TypeAdapter
from support.analyses import PAIR, analysis_of, leaves, pair
from support.command import strict_json
from support.runs import Spec, write_run

import driftscope
from driftscope.analysis.gate import Judgement, RuleResult, rule_of
from driftscope.boundary.json_document import (
    CHECK,
    COMPARISON,
    FILES,
    REPORT,
    RUNS,
    files_text,
    plain,
    text,
)
from driftscope.cli.runs import MainFinding, run_as_dict
from driftscope.json_report import (
    ReportDocument,
    check_to_json,
    comparison_to_json,
    to_dict,
    to_json,
)
from driftscope.json_schema import page, schema_of
from driftscope.pipeline import Analysis, conclude
from driftscope.trace.runs import entry_of

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "docs" / "report.schema.json"
GOLDEN = Path(__file__).parent / "data" / "pair.json"
"""Made by running this file as a script; read the difference before committing."""


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return pair()


@pytest.fixture(scope="module")
def report(analysis: Analysis) -> dict[str, Any]:
    return to_dict(analysis)


def _valid(content: Any, kind: str) -> None:
    jsonschema.Draft202012Validator(schema_of(kind)).validate(content)


def test_golden(report: dict[str, Any]) -> None:
    golden = json.loads(GOLDEN.read_text())
    golden["driftscope_version"] = driftscope.__version__
    ours, wanted = (dict(leaves(content, "report")) for content in (report, golden))
    assert ours == pytest.approx(wanted, rel=1e-6), "but for the last digits of the platform"


def test_a_run_says_how_it_was_recorded(tmp_path: Path) -> None:
    spec = replace(PAIR["eagle3"], every=4, dropped={"queue_full": 3, "disk_error": 2})
    run = to_dict(analysis_of(tmp_path, {"a": spec}))["runs"][0]
    assert (run["manifest"]["engine"], run["manifest"]["engine_version"]) == ("vllm", "0.32.0")
    assert (run["recording"]["sampling"], run["recording"]["dropped"]) == (0.25, 5)


def test_what_is_no_number_is_null(analysis: Analysis) -> None:
    run = analysis.runs[0]
    hidden = replace(run.hidden, fed_rms=(1.0, math.nan, math.inf, 2.0), growth=None)
    odd = replace(run, hidden=hidden, attention=replace(run.attention, sink_mass=None))
    content = strict_json(to_json(conclude([odd])))
    assert content["runs"][0]["hidden"]["fed_rms"] == [1.0, None, None, 2.0]
    assert content["runs"][0]["attention"]["sink_mass"] is None
    _valid(content, REPORT)


def test_a_document_is_read_back_into_its_record(report: dict[str, Any]) -> None:
    known = json.loads(json.dumps(report))
    assert plain(TypeAdapter(ReportDocument).validate_python(known)).items() <= report.items()


def test_the_published_schema_is_current() -> None:
    how = "python -m driftscope.json_schema > docs/report.schema.json"
    assert PUBLISHED.read_text(encoding="utf-8") == page(), how
    jsonschema.Draft202012Validator.check_schema(json.loads(page()))


def test_a_report_follows_it(report: dict[str, Any]) -> None:
    _valid(report, REPORT)
    jsonschema.Draft202012Validator(json.loads(page())).validate(report)


@pytest.mark.parametrize(
    "path",
    [("kind",), ("runs", 0, "acceptance", "marginal"), ("findings", 0, "severity")],
    ids=str,
)
def test_what_lacks_a_key_or_has_another_type_is_refused(
    report: dict[str, Any], path: tuple[str | int, ...]
) -> None:
    content = copy.deepcopy(report)
    inner: Any = content
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = {"not": "this"}
    with pytest.raises(jsonschema.ValidationError):
        _valid(content, REPORT)
    del inner[path[-1]]
    with pytest.raises(jsonschema.ValidationError):
        _valid(content, REPORT)


def test_a_comparison_follows_it(analysis: Analysis) -> None:
    (compared,) = [case.comparison for case in analysis.cases if case.comparison]
    content = json.loads(comparison_to_json(compared))
    _valid(content, COMPARISON)
    assert content["differences"][0]["differs"] is compared.differences[0].differs


@pytest.mark.parametrize("outcome", RuleResult)
def test_judgements_follow_it(outcome: RuleResult) -> None:
    rule = rule_of("acceptance.mean_length > 2")
    judged = Judgement(rule=rule, run="run", outcome=outcome, values={})
    _valid(json.loads(check_to_json([judged], exit_code=3)), CHECK)


def test_a_list_of_runs_follows_it(tmp_path: Path) -> None:
    entry = entry_of(write_run(tmp_path / "run", Spec(requests=2)))
    finding = MainFinding(id="sink_lost", severity="medium", title="The sink is lost")
    listed = {"runs": [run_as_dict(entry, finding), run_as_dict(entry)]}
    _valid(json.loads(text(RUNS, listed, digits=None)), RUNS)


def test_written_files_follow_it() -> None:
    _valid(json.loads(files_text([Path("a"), "b"])), FILES)


if __name__ == "__main__":
    GOLDEN.write_text(to_json(pair()))
