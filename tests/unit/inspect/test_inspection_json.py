"""Documents of inspections follow their schemas and hold what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from support.inspections import broken, pair

from driftscope.inspect.inspection_json import pair_to_json, to_json
from driftscope.json_report.document import INSPECTED_PAIR, INSPECTION
from driftscope.json_report.schema import schema_of


def test_an_inspection_holds_every_repair(tmp_path: Path) -> None:
    inspection = broken(tmp_path)
    document = json.loads(to_json(inspection, 3))
    jsonschema.validate(document, schema_of(INSPECTION))
    assert inspection.trial is not None
    assert [each["id"] for each in document["trial"]["tried"]] == [
        each.repair.id for each in inspection.trial.tried
    ]
    assert "state" not in document["trial"]["tried"][0]


def test_a_pair_holds_both_and_their_differences(tmp_path: Path) -> None:
    made = pair(tmp_path)
    document = json.loads(pair_to_json(made, 0, strict=False))
    jsonschema.validate(document, schema_of(INSPECTED_PAIR))
    assert made.trial is not None
    lengths = [each["mean_length"] for each in document["trial"]["acceptance"]]
    assert lengths == pytest.approx([each.length for each in made.trial.as_served])
    assert document["trial"]["comparison"]["parts_from"] == 1
