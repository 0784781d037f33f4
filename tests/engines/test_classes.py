"""Drafter classes that no list names, in real vLLM: what the probe finds out of them by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from verification.zoo.classes import CLOSE, run_classes

from driftscope.trace.manifest import AGREES, FED_AFTER, FED_BEFORE

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]
Results = dict[tuple[str, str], dict[str, Any]]
GLM, QWEN = "Glm4MoeMTPModel", "Qwen3NextMTP"
REPAIRED, BROKEN = f"{GLM}+normed", f"{QWEN}+unnormed"
"""GLM's head as vLLM 0.32.0 has it is fed the state before its final norm, Qwen's the one after it;
each has a twin with the other."""
SERVED = (GLM, REPAIRED, QWEN, BROKEN, "ExaoneMoeMTP", "EagleMistralForCausalLM")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder: Path = tmp_path_factory.mktemp("classes")
    return run_classes(SERVED, folder, ("v1",))


@pytest.mark.parametrize("name", SERVED)
def test_its_inside_is_recorded_as_a_second_computation_has_it(results: Results, name: str) -> None:
    found = results[name, "v1"]
    assert "error" not in found, found["error"]
    assert found["tokens"] == found["off"]
    assert (found["witness"], found["errors"]) == (AGREES, {})
    assert found["chains"] > 0 and found["layers"] == 1
    # What attention gave out is compared by the witness: a kernel of bfloat16 rounds its weights.
    recorded = {k: e for k, e in found["worst"].items() if k != "attention"}
    assert {k: e for k, e in recorded.items() if e > CLOSE} == {}


@pytest.mark.parametrize(
    ("name", "fed"),
    [(GLM, FED_BEFORE), (REPAIRED, FED_AFTER), (QWEN, FED_AFTER), (BROKEN, FED_BEFORE)],
)
def test_a_head_that_is_fed_before_its_norm_is_named_and_its_twin_is_not(
    results: Results, name: str, fed: str
) -> None:
    found = results[name, "v1"]
    assert found["fed"] == fed
    assert ("fed_unlike_input" in found["findings"]) is (fed == FED_BEFORE)
