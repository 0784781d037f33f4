"""What a vLLM in another process answers becomes results, or a reason why nothing is known."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.every_drafter import write

from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.checks.result import Inspected
from driftscope.inspect.drafter_classes import Coverage
from driftscope.inspect.engine_loading import EngineAnswer, EngineProcess
from driftscope.inspect.inspection import inspect_files

NAME = "EagleMiniCPMForCausalLM"
"""A class of which nothing is known here."""
NOTHING: dict[str, Any] = {"refusals": [], "unfilled": {}, "cut": {}, "class": "Minicpm"}


def _refused(stage: str, *, certain: bool, place: str = "models/a.py:1 load") -> dict[str, Any]:
    refusal = {"reason": "ValueError: no", "place": place, "tensor": "a.b", "certain": certain}
    return {**NOTHING, "stage": stage, "refusals": [refusal]}


def _answering(answer: dict[str, Any]) -> EngineProcess:
    lines = f"print({json.dumps(json.dumps({'version': '9.9'}))}, flush=True)"
    said = f"print({json.dumps(json.dumps(answer))}, flush=True)"
    return EngineProcess(command=(sys.executable, "-c", f"{lines}\nwhile input():\n    {said}"))


def _asked(folder: Path, process: EngineProcess, *, with_target: bool) -> EngineAnswer:
    drafter, target = write(folder, NAME, {"model.fc.weight": (64, 128)})
    opened = open_target(str(target)) if with_target else None
    with process:
        return process.ask(Inspected(drafter=open_drafter(str(drafter)), target=opened))


@pytest.mark.parametrize("with_target", [True, False])
def test_a_tensor_that_vllm_refuses_is_an_error_with_its_reason(
    tmp_path: Path, *, with_target: bool
) -> None:
    answer = _refused("weights", certain=True)
    found = _asked(tmp_path, _answering(answer), with_target=with_target)
    (error,) = found.results
    assert (error.id, error.there) == ("refused_by_engine", "ValueError: no")
    assert "a.b" in error.title and error.rule == "vLLM 9.9, models/a.py:1 load"


def test_a_refusal_that_may_be_the_stand_in_targets_is_no_error(tmp_path: Path) -> None:
    answer = _refused("model", certain=True)
    alone = _asked(tmp_path / "alone", _answering(answer), with_target=False)
    assert alone.results == () and "with --target" in alone.unknown
    both = _asked(tmp_path / "both", _answering(answer), with_target=True)
    assert [found.id for found in both.results] == ["refused_by_engine"] and not both.unknown


def test_what_this_machine_cannot_build_stays_unknown(tmp_path: Path) -> None:
    found = _asked(tmp_path, _answering(_refused("model", certain=False)), with_target=True)
    assert found.results == () and "models/a.py:1 load: ValueError: no" in found.unknown


def test_parameters_without_numbers_and_tensors_that_are_cut_are_errors(tmp_path: Path) -> None:
    answer = {**NOTHING, "stage": "loaded", "unfilled": {"a": [1, 2]}, "cut": {"b": [3, 4]}}
    found = _asked(tmp_path, _answering(answer), with_target=True)
    assert {each.id: each.there.partition(": ")[2] for each in found.results} == {
        "wrong_shape": "b 3 of 4",
        "missing_tensor": "a 1 of 2",
    }


@pytest.mark.parametrize("program", ["raise SystemExit(1)", "import time; time.sleep(60)"])
def test_a_vllm_that_does_not_answer_leaves_the_layout_unknown(
    program: str, tmp_path: Path
) -> None:
    drafter, target = write(tmp_path, NAME, {"model.fc.weight": (64, 128)})
    with EngineProcess(command=(sys.executable, "-c", program), most_seconds=1) as process:
        inspection = inspect_files(str(drafter), str(target), engine=process)
    assert inspection.coverage is Coverage.UNKNOWN and inspection.loaded_by == ""
    assert inspection.unknown is not None
    assert "gave no answer" in inspection.unknown.not_recognised[-1]


def test_a_class_that_vllm_loads_is_checked_and_its_numbers_too(tmp_path: Path) -> None:
    drafter, target = write(tmp_path, NAME, {"model.fc.weight": (64, 128)})
    with _answering({**NOTHING, "stage": "loaded"}) as process:
        inspection = inspect_files(str(drafter), str(target), engine=process)
    assert (inspection.coverage, inspection.loaded_by) == (Coverage.CHECKED, "vLLM 9.9")
    assert inspection.checks > 1 and inspection.sizes.parameters == 64 * 128
