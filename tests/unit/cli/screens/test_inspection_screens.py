"""The terminal says what Ctrl-C left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.inspections import broken

from driftscope.cli.screens.inspection import print_inspection
from driftscope.inspect.trial.result import STOPPED, NotApplicable


def _printed(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_what_was_not_tried_is_listed_once_for_each_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inspection = broken(tmp_path)
    assert inspection.trial is not None
    print_inspection(inspection)
    assert "Ctrl-C" not in _printed(capsys)
    left_out = (
        NotApplicable(id="drafters_template", reason="none was saved"),
        *(NotApplicable(id=each, reason=STOPPED) for each in ("rope_theta", "fc_norm")),
    )
    trial = replace(inspection.trial, not_applicable=left_out, stopped=True)
    print_inspection(replace(inspection, trial=trial))
    printed = _printed(capsys)
    assert "not tried: drafters_template: none was saved" in printed
    assert "not tried: rope_theta, fc_norm: stopped by Ctrl-C" in printed
    assert "stopped by Ctrl-C: another repair may help more" in printed
