"""Runs that a newer minor version wrote: their figures are those of what this version knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.newer import VERSION, make_newer
from support.runs import Spec, write_run

from driftscope.json_report import to_json
from driftscope.pipeline import Inputs, analyze
from driftscope.trace.reader import read_trace


def _report(run: Path) -> dict[str, Any]:
    analysis = analyze(Inputs(sources=[read_trace(run)], labels=["run"]))
    report: dict[str, Any] = json.loads(to_json(analysis))
    return report


def test_the_report_is_the_same(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Spec(requests=30, undrafted=("k_zero",)))
    before = _report(run)
    after = _report(make_newer(run))
    assert before["runs"][0]["rounds"] > 0
    assert read_trace(run).manifest.schema_version == VERSION
    assert _without_version(after) == _without_version(before)


def _without_version(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_version(v) for k, v in value.items() if k != "schema_version"}
    return [_without_version(v) for v in value] if isinstance(value, list) else value
