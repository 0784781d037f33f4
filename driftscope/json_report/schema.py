"""Print the JSON Schema of the documents that other tools build on.

    python -m driftscope.json_report.schema > docs/report.schema.json

The schema names what is always there; documents may have more keys. Draft 2020-12.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from driftscope.analysis.statistics.drift import Answer as DriftAnswer
from driftscope.analysis.statistics.drift import Source
from driftscope.findings.finding import Answer, Severity, Topic, Trust
from driftscope.findings.first_screen import State
from driftscope.json_report.document import (
    ABLATION,
    ADVICE,
    CHECK,
    COMPARISON,
    FILES,
    INGESTED,
    INSPECTION,
    PROBE,
    PROMISE,
    REPLAY,
    REPORT,
    RUNS,
    VERSIONS,
    WATCH,
    layout,
)
from driftscope.vocabulary import RMS_BY_DEPTH, Growth

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": ["number", "null"]}
FLAG: Schema = {"type": "boolean"}
COUNTS: Schema = {"type": "object", "additionalProperties": COUNT}
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
_DRIFT = _object(
    {
        "answer": {"enum": [each.value for each in DriftAnswer]},
        "source": {"enum": [each.value for each in Source]},
        "clusters": COUNT,
        "chains": COUNT,
        **{
            key: kind
            for name in ("shift", "first_step", "trend", "sink_kept")
            for key, kind in ((name, NUMBER), (f"{name}_interval", INTERVAL))
        },
        "near_shift": BY_DEPTH,
        "near_shift_interval": INTERVALS,
        "own_excess": BY_DEPTH,
        "own_excess_interval": INTERVALS,
        "distances": {"type": ["object", "null"]},
    },
    nullable=True,
)
"""Attention drift; null without attention masses at two depths."""
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
            {
                **dict.fromkeys(("sink", "prompt", "generated", "self"), BY_DEPTH),
            }
        ),
        "attention_drift": _DRIFT,
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
                "by_reason": COUNTS,
            }
        ),
        "cohort": _object(
            {
                "enough": FLAG,
                "left_out": COUNT,
                "served": _object({"requests": COUNT, "rounds": COUNT, "mean_length": NUMBER}),
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
CLAIM = _object(
    {
        "topic": {"enum": [topic.value for topic in Topic]},
        "run": TEXT,
        "question": TEXT,
        "answer": {"enum": [answer.value for answer in Answer]},
        "sentence": TEXT,
        "estimate": NUMBER,
        "estimate_interval": INTERVAL,
    }
)
ACTION = _object({"sentence": TEXT, "why": TEXT})
FIRST_SCREEN = _object(
    {
        "state": {"enum": [state.value for state in State]},
        "headline": TEXT,
        "claims": _list(CLAIM),
        "cause": TEXT,
        "action": ACTION,
        "actions": _list(ACTION),
        "figures": _list(
            _object({"value": TEXT, "unit": TEXT, "reference": TEXT, "meaning": TEXT})
        ),
    },
    nullable=True,
)
CHECKED = _object(
    {
        **dict.fromkeys(("id", "title", "expected", "rule", "there"), TEXT),
        "level": {"enum": ["error", "warning", "note"]},
        "change": {"type": ["string", "null"]},
        "certainty": {"enum": ["certain", "likely", "possible"]},
    }
)
TRIED_ACCEPTANCE = _object(
    {
        "mean_length": NUMBER,
        "mean_length_interval": INTERVAL,
        "marginal": BY_DEPTH,
        "marginal_interval": INTERVALS,
        "rounds": COUNT,
    }
)
ALL_POSITIONS = _object(
    {
        **dict.fromkeys(("accepted_difference", "probability_difference"), NUMBER),
        **dict.fromkeys(("accepted_interval", "probability_interval"), INTERVAL),
        "probability_p": NUMBER,
    },
    nullable=True,
)
"""Gains over all positions of the answers; null where they were not counted."""
INSIDE = _object(
    {
        "attention_drift": _DRIFT,
        "growth": NUMBER,
        "growth_interval": INTERVAL,
        "growth_answer": {"enum": [*(each.value for each in Growth), None]},
        "confidence": BY_DEPTH,
        "right": BY_DEPTH,
        "right_interval": INTERVALS,
    }
)
"""The inside of a drafter along the chains of a trial."""
TRIAL = _object(
    {
        "prompts": COUNT,
        "k": COUNT,
        "acceptance": TRIED_ACCEPTANCE,
        "figures": {"type": "object", "additionalProperties": BY_DEPTH},
        "inside": INSIDE,
        "tried": _list(
            _object(
                {
                    "id": TEXT,
                    "change": TEXT,
                    "fields": {"type": "object"},
                    "weights": FLAG,
                    "prompts": COUNT,
                    "acceptance": TRIED_ACCEPTANCE,
                    "difference": NUMBER,
                    "difference_interval": INTERVAL,
                    "p": NUMBER,
                    "all_positions": ALL_POSITIONS,
                }
            )
        ),
        "renderings": _list(
            _object(
                {
                    "id": TEXT,
                    "change": TEXT,
                    "prompts": COUNT,
                    "acceptance": TRIED_ACCEPTANCE,
                    "difference": NUMBER,
                    "difference_interval": INTERVAL,
                    "p": NUMBER,
                    "target_surer": NUMBER,
                    "target_surer_interval": INTERVAL,
                }
            )
        ),
        "not_applicable": _list(_object({"id": TEXT, "reason": TEXT})),
    },
    nullable=True,
)
"""A drafter that was run beside its target; null if it was not."""
INSPECTED = _object(
    {
        "drafter": TEXT,
        "target": {"type": ["string", "null"]},
        "format": TEXT,
        "checked": FLAG,
        "checks": COUNT,
        "exit_code": COUNT,
        "stopped": FLAG,
        "results": _list(CHECKED),
        "trial": TRIAL,
        "sizes": _object({"parameters": COUNT, "bytes": COUNT, "share": NUMBER}),
    }
)
COMPARED = _object(
    {
        "first": TEXT,
        "second": TEXT,
        "where": {"type": ["string", "null"]},
        "verdict": TEXT,
        "differences": _list(DIFFERENCE),
    }
)
PART = _object(
    {
        "value": NUMBER,
        "interval": INTERVAL,
        "orders": {"type": ["array", "null"], "items": {"type": "number"}},
    }
)
ABLATED = _object(
    {
        "drafter": TEXT,
        "target": TEXT,
        "k": COUNT,
        "prompts": COUNT,
        "positions": COUNT,
        "lacking_tokens": NUMBER,
        "lacking_by_region": _list(
            _object({"region": TEXT, "tokens": COUNT, "lacking": NUMBER, "interval": INTERVAL})
        ),
        "not_applicable": {"type": "object", "additionalProperties": TEXT},
        "decomposition": _object(
            {
                "first": NUMBER,
                "last": NUMBER,
                **dict.fromkeys(("loss", "tokens", "states", "rest"), PART),
            },
            nullable=True,
        ),
        "effects": _list(
            _object(
                {
                    "id": TEXT,
                    "changes": TEXT,
                    "words": TEXT,
                    "paired_by": {"enum": ["position", "prompt"]},
                    "prompts": COUNT,
                    "acceptance": TRIED_ACCEPTANCE,
                    "agreement": BY_DEPTH,
                    "conditional": BY_DEPTH,
                    "figures": {"type": "object", "additionalProperties": BY_DEPTH},
                    "difference": NUMBER,
                    "difference_interval": INTERVAL,
                }
            )
        ),
    }
)
"""A drafter under interventions, beside its target."""
COUNT_OR_NULL: Schema = {"type": ["integer", "null"]}
INGESTED_FIGURES = _object(
    {
        "part": TEXT,
        "period": TEXT,
        **dict.fromkeys(("k", "requests", "rounds", "drafted", "accepted"), COUNT_OR_NULL),
        "mean_length": NUMBER,
        "mean_length_interval": INTERVAL,
        "mean_length_by_request": NUMBER,
        "token_rate": NUMBER,
        "marginal": BY_DEPTH,
        "ttft_s": NUMBER,
        "tpot_s": NUMBER,
        "output_tokens_per_s": NUMBER,
        "assumptions": _list(TEXT),
        "contradictions": _list(TEXT),
    }
)
"""Figures of another tool's file; null for what it does not hold."""
RULE = _object(
    {
        "rule": TEXT,
        "run": TEXT,
        "outcome": {"enum": ["held", "broken", "undecided"]},
        "because": {"type": ["string", "null"]},
    }
)
CONTENTS: Mapping[str, Schema] = {
    REPORT: _object(
        {
            "driftscope_version": TEXT,
            "verdict": TEXT,
            "first_screen": FIRST_SCREEN,
            "findings": _list(FINDING),
            "warnings": _list(TEXT),
            "runs": _list(RUN),
        }
    ),
    COMPARISON: COMPARED,
    CHECK: _object({"exit_code": COUNT, "rules": _list(RULE)}),
    INSPECTION: INSPECTED,
    ABLATION: ABLATED,
    INGESTED: _object(
        {
            "files": _list(
                _object({"file": TEXT, "format": TEXT, "figures": _list(INGESTED_FIGURES)})
            )
        }
    ),
    PROMISE: _object(
        {
            "drafter": TEXT,
            "run": TEXT,
            "k": COUNT,
            "verdict": TEXT,
            "notes": _list(TEXT),
            "differences": _list(
                _object(
                    {
                        "depth": {"type": ["integer", "null"]},
                        "promised": NUMBER,
                        "served": NUMBER,
                        "difference": NUMBER,
                        "interval": INTERVAL,
                    }
                )
            ),
        }
    ),
    ADVICE: _object({"run": TEXT, "ran_k": COUNT, "command": {"type": ["string", "null"]}}),
    PROBE: _object({"target": TEXT, "processes": _list(_object({"source": TEXT}))}),
    REPLAY: _object(
        {
            "run": TEXT,
            "planned": COUNT,
            "ended": COUNTS,
            "stopped": FLAG,
            "notes": _list(TEXT),
            "lost": COUNTS,
        }
    ),
    WATCH: _object(
        {
            "rounds": COUNT,
            "requests": COUNT,
            "chains": COUNT,
            "k": COUNT,
            "length": NUMBER,
            "tpot_s": NUMBER,
            "ttft_s": NUMBER,
            "dropped": COUNT,
            "overhead": NUMBER,
            "all_in": NUMBER,
            "down": TEXT,
            "depths": _list({"type": "object"}),
            "over": FLAG,
        }
    ),
    RUNS: _object(
        {
            "runs": _list(
                _object(
                    {
                        "path": TEXT,
                        "created_s": {"type": "number"},
                        "kind": {"enum": ["probe", "replay", "ablation"]},
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
    FILES: _object({"written": _list(TEXT), "sent": COUNTS}),
}
"""Properties of each kind of document, apart from its kind and version."""


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
