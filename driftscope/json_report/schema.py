"""Print the JSON Schema of the documents that other tools build on.

    python -m driftscope.json_report.schema > docs/report.schema.json

The schema names what is always there; documents may have more keys. Draft 2020-12.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from driftscope.analysis.findings.finding import Severity, Trust
from driftscope.json_report.document import CHECK, COMPARISON, REPORT, VERSIONS, layout
from driftscope.vocabulary import RMS_BY_DEPTH

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": ["number", "null"]}
FLAG: Schema = {"type": "boolean"}
BY_DEPTH: Schema = {"type": ["array", "null"], "items": NUMBER}
"""One number for each depth, from depth 1 on."""


def _object(properties: Mapping[str, Schema], *, nullable: bool = False) -> Schema:
    return {
        "type": ["object", "null"] if nullable else "object",
        "required": sorted(properties),
        "properties": dict(properties),
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


INTERVAL = _object({"low": {"type": "number"}, "high": {"type": "number"}}, nullable=True)
"""A 95 % interval; null where the data support none."""
INTERVALS: Schema = {"type": ["array", "null"], "items": INTERVAL}
FINDING = _object(
    {
        "id": TEXT,
        "severity": {"enum": [each.value for each in Severity]},
        "runs": _list(TEXT),
        "title": TEXT,
        "statement": TEXT,
        "evidence": {"type": "object"},
        "confidence": {"enum": [each.value for each in Trust]},
        "because": TEXT,
        "advice": {"type": ["string", "null"]},
        "causes": _list({"type": "object"}),
        "ruled_out": _list({"type": "object"}),
        "cost_tps": NUMBER,
    }
)
RUN = _object(
    {
        "label": TEXT,
        "rounds": COUNT,
        "requests": COUNT,
        "k": COUNT,
        "depths": COUNT,
        "acceptance": _object(
            {
                "mean_length": NUMBER,
                "mean_length_interval": INTERVAL,
                "marginal": BY_DEPTH,
                "marginal_interval": INTERVALS,
                "conditional": BY_DEPTH,
                "counted": BY_DEPTH,
                "histogram": _list(COUNT),
                "token_rate": NUMBER,
                "by_k": _list({"type": "object"}),
            }
        ),
        "attention": _object(
            dict.fromkeys(("sink", "prompt", "generated", "self", "excess"), BY_DEPTH)
        ),
        "hidden": _object(
            {
                **dict.fromkeys(RMS_BY_DEPTH, BY_DEPTH),
                "growth": NUMBER,
                "growth_interval": INTERVAL,
            }
        ),
        "confidence": _object({"top1": BY_DEPTH, "entropy": BY_DEPTH}),
        "latency": _object({"tpot_s": NUMBER, "tpot_s_interval": INTERVAL, "ttft_s": NUMBER}),
        "fallback": _object(
            {
                "steps": COUNT,
                "rejected_rounds": COUNT,
                "undrafted": COUNT,
                "by_reason": {"type": "object", "additionalProperties": COUNT},
            }
        ),
        "probe": _object({"engine": TEXT, "runner": TEXT, "mode": TEXT}),
        "segments": _list({"type": "object"}),
        "problems": _list(TEXT),
    }
)
DIFFERENCE = _object(
    {
        "metric": TEXT,
        "first": NUMBER,
        "second": NUMBER,
        "difference": NUMBER,
        "interval": INTERVAL,
        "differs": FLAG,
    }
)
RULE = _object({"rule": TEXT, "run": TEXT, "outcome": {"enum": ["held", "broken", "undecided"]}})
CONTENTS: Mapping[str, Schema] = {
    REPORT: _object(
        {
            "driftscope_version": TEXT,
            "verdict": TEXT,
            "findings": _list(FINDING),
            "warnings": _list(TEXT),
            "runs": _list(RUN),
        }
    ),
    COMPARISON: _object(
        {"first": TEXT, "second": TEXT, "verdict": TEXT, "differences": _list(DIFFERENCE)}
    ),
    CHECK: _object({"exit_code": COUNT, "rules": _list(RULE)}),
}
"""What a document of each kind holds besides its kind and version."""


def schema_of(kind: str) -> Schema:
    """Return the JSON Schema of a kind of document."""
    content = CONTENTS[kind]
    named: Mapping[str, Schema] = {
        "kind": {"const": kind},
        "schema_version": {"const": VERSIONS[kind]},
        **content["properties"],
    }
    return {**_object(named), "title": f"driftscope {kind}"}


def page() -> str:
    """Return the published schema: one of the kinds."""
    return layout(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "Documents of driftscope",
            "oneOf": [schema_of(kind) for kind in CONTENTS],
        }
    )


if __name__ == "__main__":
    sys.stdout.write(page())
