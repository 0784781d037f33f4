"""Print the JSON Schema of the documents that other tools build on.

    python -m driftscope.json_schema > docs/report.schema.json

Documents of analyze, compare, check and advise follow from their records: what a key means is what
the record says about its field. The schema names what is always there; documents may have more
keys. Draft 2020-12.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import typing
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from driftscope.ablate.result import Ablation
from driftscope.analysis.advice import Advice
from driftscope.analysis.figures.attention_drift import AttentionDrift
from driftscope.boundary.json_document import (
    ABLATION,
    ADVICE,
    CHECK,
    COMPARISON,
    FILES,
    INGESTED,
    INSPECTION,
    INSPECTION_COMPARISON,
    PROBE,
    REPLAY,
    REPORT,
    RUNS,
    SCHEMA_VERSION,
    WATCH,
    layout,
    written_names,
    written_property,
)
from driftscope.ingest.base import IngestedFigures
from driftscope.inspect.compare_run import InspectionComparison
from driftscope.inspect.inspection import InspectionDocument
from driftscope.json_report import ComparisonDocument, GateDocument, ReportDocument
from driftscope.telemetry.watch import View
from driftscope.workloads.client.replay import Done

Schema = dict[str, Any]
RECORDS: Mapping[str, type] = {
    REPORT: ReportDocument,
    COMPARISON: ComparisonDocument,
    CHECK: GateDocument,
    INSPECTION: InspectionDocument,
    INSPECTION_COMPARISON: InspectionComparison,
    ABLATION: Ablation,
    REPLAY: Done,
    WATCH: View,
}
"""Record of each kind of document that follows from one."""


class _Written(GenerateJsonSchema):
    """The schema of records as `driftscope.boundary.json_document.plain` writes them: with every
    field, with written properties, and with null for a number that is not finite."""

    def float_schema(self, schema: Any) -> Schema:  # noqa: ARG002
        return {"type": ["number", "null"]}

    def nullable_schema(self, schema: Any) -> Schema:
        written = super().nullable_schema(schema)
        one = written["anyOf"][0] if "anyOf" in written else written
        return one if "null" in one.get("type", ()) else written

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def dataclass_schema(self, schema: Any) -> Schema:
        kind, written = schema["cls"], super().dataclass_schema(schema)
        properties = written.setdefault("properties", {})
        for name in set(written_names(kind)) - properties.keys():
            hint = typing.get_type_hints(getattr(kind, name).get)["return"]
            properties[name] = self.generate_inner(TypeAdapter(hint).core_schema)
        for name, meaning in _meanings(kind).items():
            if name in properties:
                properties[name] = {**properties[name], "description": meaning}
        for described in properties.values():
            described.pop("default", None)
        written["required"] = sorted(written_names(kind))
        return written


@cache
def _meanings(kind: type) -> dict[str, str]:
    """Return what a record's docstrings say about its fields and written properties, by name."""
    found: dict[str, str] = {}
    for base in kind.__mro__[:-1]:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        body = getattr(tree, "body", [])
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                found.setdefault(ast.unparse(field.target), ast.literal_eval(text.value))
        for name, value in vars(base).items():
            if isinstance(value, written_property):
                found.setdefault(name, value.__doc__ or "")
    return {name: " ".join(text.split()) for name, text in found.items()}


TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
COUNTS: Schema = {"type": "object", "additionalProperties": COUNT}
_DEFINITIONS = "#/$defs/{model}"


def _object(properties: Mapping[str, Schema]) -> Schema:
    return {
        "type": "object",
        "required": sorted(properties),
        "properties": dict(properties),
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_REPLICA: Schema = _object(
    {"replica": TEXT, "rounds": COUNT, "length": {"type": ["number", "null"]}}
)
BESIDE: Mapping[str, Mapping[str, Schema]] = {
    WATCH: {"over": {"type": "boolean"}, "engine": TEXT, "replicas": _list(_REPLICA)}
}
"""Keys of a kind of document beside those of its record."""
INGESTED_FIGURES: Schema = {"$ref": _DEFINITIONS.format(model=IngestedFigures.__name__)}
CONTENTS: Mapping[str, Schema] = {
    INGESTED: _object(
        {
            "files": _list(
                _object({"file": TEXT, "format": TEXT, "figures": _list(INGESTED_FIGURES)})
            )
        }
    ),
    ADVICE: _object({"run": TEXT, "ran_k": COUNT, "command": {"type": ["string", "null"]}}),
    PROBE: _object({"run": TEXT, "processes": _list(_object({"source": TEXT}))}),
    RUNS: _object(
        {
            "runs": _list(
                _object(
                    {
                        "path": TEXT,
                        "created_s": {"type": "number"},
                        "kind": {"enum": ["probe", "replay"]},
                        "target": {"type": ["string", "null"]},
                        "drafter": {"type": ["string", "null"]},
                        "k": {"type": ["integer", "null"]},
                        "rounds": {"type": ["integer", "null"]},
                        "state": TEXT,
                        "bytes": COUNT,
                        "finding": {"type": ["object", "null"]},
                    }
                )
            )
        }
    ),
    FILES: _object({"written": _list(TEXT)}),
}
"""Properties of each kind of document, apart from its kind and version."""


@cache
def _records() -> tuple[dict[str, Schema], Schema]:
    """Return the schema of each record's document, by kind, and the definitions that they use."""
    adapters = {**RECORDS, ADVICE: Advice, "drift": AttentionDrift, "part": IngestedFigures}
    mode: Literal["validation"] = "validation"
    inputs = [(kind, mode, TypeAdapter[Any](record)) for kind, record in adapters.items()]
    schemas, shared = TypeAdapter.json_schemas(
        inputs, schema_generator=_Written, ref_template=_DEFINITIONS
    )
    definitions = shared["$defs"]
    found = {}
    for kind in adapters:
        schema = schemas[kind, mode]
        reference = schema.get("$ref", "").removeprefix(_DEFINITIONS.format(model=""))
        found[kind] = definitions[reference] if reference else schema
    return found, definitions


def _document_schema(kind: str) -> Schema:
    content = _records()[0][kind] if kind in RECORDS else CONTENTS[kind]
    more: Mapping[str, Schema] = {
        "kind": {"const": kind},
        "schema_version": {"const": SCHEMA_VERSION},
        **BESIDE.get(kind, {}),
    }
    return {
        "type": "object",
        "title": f"driftscope {kind}",
        "required": sorted({*more, *content["required"]}),
        "properties": {**more, **content["properties"]},
    }


def schema_of(kind: str) -> Schema:
    """Return the JSON Schema of a kind of document."""
    return {**_document_schema(kind), "$defs": _records()[1]}


def page() -> str:
    """Return the published schema: one of the kinds."""
    return layout(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "Documents of driftscope",
            "oneOf": [_document_schema(kind) for kind in (*RECORDS, *CONTENTS)],
            "$defs": _records()[1],
        }
    )


if __name__ == "__main__":
    sys.stdout.write(page())
