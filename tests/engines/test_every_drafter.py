"""`driftscope inspect` on a tiny checkpoint of every drafter class that the installed vLLM has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.every_drafter import ALL, checkpoint_tensors, write
from verification.drafters import Row, rows

from driftscope.inspect.checkpoints import open_drafter
from driftscope.inspect.checks.result import Inspected, Level
from driftscope.inspect.drafter_classes import Coverage
from driftscope.inspect.engine_loading import EngineProcess
from driftscope.inspect.inspection import inspect_files
from driftscope_probes.server.doctor import drafter_classes, vllm_folder

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
NOT_CHECKED = {"ExtractHiddenStatesModel", "Dots3NoteMTPModel", "EagleMistralLarge3ForCausalLM"}
"""The first has no weights; the second's attention needs CUDA to be built; vLLM 0.32.0 stops at any
checkpoint of the third."""


@pytest.fixture(scope="module")
def vllm() -> Iterator[EngineProcess]:
    with EngineProcess() as process:
        yield process


@pytest.fixture(scope="module")
def table(vllm: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    return {row.name: row for row in rows(tmp_path_factory.mktemp("drafters"), vllm)}


def test_every_class_that_vllm_registers_is_in_the_table(table: dict[str, Row]) -> None:
    assert list(table) == sorted(drafter_classes(vllm_folder() or Path()))
    assert set(table) - set(ALL) == {"ExtractHiddenStatesModel"}


def test_a_healthy_checkpoint_of_any_class_has_no_error(table: dict[str, Row]) -> None:
    assert {name: row.errors for name, row in table.items() if row.errors} == {}


def test_every_class_is_checked_but_for_those_that_do_not_build_here(
    table: dict[str, Row],
) -> None:
    rest = {name for name, row in table.items() if row.coverage != Coverage.CHECKED}
    assert rest == NOT_CHECKED
    assert all(table[name].reason for name in rest)


def test_faults_of_checked_classes_are_named(table: dict[str, Row]) -> None:
    checked = [row for row in table.values() if row.coverage == Coverage.CHECKED]
    missed = {row.name: row.faults for row in checked if "missed" in row.faults.values()}
    assert missed == {}
    assert sum(row.faults["captured"] == "named" for row in checked) > 15


INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "dynamic": False},
            "input_activations": {"num_bits": 8, "type": "int", "strategy": "token"}
            | {"dynamic": True},
        }
    },
}


@pytest.mark.parametrize("name", ["Glm4MoeMTPModel", "Qwen3_5MTP"])
@pytest.mark.parametrize("left_out", [True, False])
def test_plain_heads_of_a_quantised_target_load_if_its_list_leaves_them_out(
    vllm: EngineProcess, tmp_path: Path, name: str, *, left_out: bool
) -> None:
    empty, _ = write(tmp_path / "empty", name, {"mtp.none": (1,)})
    parameters = vllm.ask(Inspected(drafter=open_drafter(str(empty)))).parameters
    tensors = checkpoint_tensors(ALL[name], parameters)
    drafter, _ = write(tmp_path / "whole", name, tensors)
    fields = json.loads((drafter / "config.json").read_text())
    layers = sorted({stored.rpartition(".")[0] for stored in tensors})
    fields["quantization_config"] = {**INT8, "ignore": layers if left_out else []}
    (drafter / "config.json").write_text(json.dumps(fields))
    inspection = inspect_files(str(drafter), engine=vllm)
    bad = {found.id for found in inspection.results if found.level is not Level.NOTE}
    assert inspection.coverage is Coverage.CHECKED
    assert bad == (set() if left_out else {"missing_tensor", "mtp_heads_not_quantized"})


def test_a_class_that_vllm_does_not_register_is_refused_with_its_reason(
    vllm: EngineProcess, tmp_path: Path
) -> None:
    drafter, target = write(tmp_path, "LlamaForCausalLMEagle3", {"fc.weight": (1,)})
    config = (drafter / "config.json").read_text()
    new = config.replace("LlamaForCausalLMEagle3", "Eagle3NewForCausalLM")
    (drafter / "config.json").write_text(new)
    inspection = inspect_files(str(drafter), str(target), engine=vllm)
    (error,) = (found for found in inspection.results if found.level is Level.ERROR)
    assert "Eagle3NewForCausalLM" in error.there and "not supported" in error.there
