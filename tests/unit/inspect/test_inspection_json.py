"""Documents of inspections follow their schemas and hold what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
from support.inspections import broken

from driftscope.boundary.json_document import INSPECTION
from driftscope.inspect.inspection import to_json
from driftscope.json_schema import schema_of


def test_an_inspection_holds_every_repair(tmp_path: Path) -> None:
    inspection = broken(tmp_path)
    document = json.loads(to_json(inspection, 3))
    jsonschema.validate(document, schema_of(INSPECTION))
    assert inspection.trial is not None
    assert [each["repair"]["id"] for each in document["trial"]["tried"]] == [
        each.repair.id for each in inspection.trial.tried
    ]
