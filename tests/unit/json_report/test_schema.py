"""Documents follow the schema that is published, and the schema refuses what is none."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.analyses import pair
from support.runs import Spec, write_run

from driftscope.analysis.gate import Judgement, Outcome, rule_of
from driftscope.cli import run_list
from driftscope.cli.run_list import MainFinding
from driftscope.json_report import check, comparison, operation, schema
from driftscope.json_report.document import CHECK, COMPARISON, FILES, REPORT, RUNS
from driftscope.json_report.report import to_dict
from driftscope.pipeline import Analysis
from driftscope.trace.runs import entry_of

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "docs" / "report.schema.json"


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return pair(tmp_path_factory.mktemp("pair"))


def _valid(content: Any, kind: str) -> None:
    jsonschema.Draft202012Validator(schema.schema_of(kind)).validate(content)


def test_the_published_schema_is_current() -> None:
    how = "python -m driftscope.json_report.schema > docs/report.schema.json"
    assert PUBLISHED.read_text(encoding="utf-8") == schema.page(), how
    jsonschema.Draft202012Validator.check_schema(json.loads(schema.page()))


def test_a_report_follows_it(analysis: Analysis) -> None:
    content = to_dict(analysis)
    _valid(content, REPORT)
    jsonschema.Draft202012Validator(json.loads(schema.page())).validate(content)


@pytest.mark.parametrize(
    "path",
    [("kind",), ("runs", 0, "acceptance", "marginal"), ("findings", 0, "severity")],
    ids=str,
)
def test_what_lacks_a_key_or_has_another_type_is_refused(
    analysis: Analysis, path: tuple[str | int, ...]
) -> None:
    content = copy.deepcopy(to_dict(analysis))
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
    _valid(json.loads(comparison.to_json(compared)), COMPARISON)


@pytest.mark.parametrize("outcome", Outcome)
def test_judgements_follow_it(outcome: Outcome) -> None:
    rule = rule_of("acceptance.mean_length > 2")
    judged = Judgement(rule=rule, run="run", outcome=outcome, values={})
    _valid(json.loads(check.to_json([judged], exit_code=3)), CHECK)


def test_a_list_of_runs_follows_it(tmp_path: Path) -> None:
    entry = entry_of(write_run(tmp_path / "run", Spec(requests=2)))
    finding = MainFinding(id="sink_lost", severity="medium", title="The sink is lost")
    listed = [run_list.as_dict(entry, finding), run_list.as_dict(entry)]
    _valid(json.loads(operation.runs_to_json(listed)), RUNS)


def test_written_files_follow_it() -> None:
    _valid(json.loads(operation.files_to_json(["a", "b"], {"spans": 3})), FILES)
