"""Real vLLM accepts what `inspect` measures offline, and every class of it is inspected rightly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import TARGET, changed, fields
from support.engine_process.job import Job, Outcome, run_jobs
from support.every_drafter import ALL, checkpoint_tensors, write
from support.inspected_prompts import ENDED, inspected_by_command, served_length
from typer.testing import CliRunner
from verification.drafters import Row, rows
from verification.inspected import false_alarms

from driftscope.cli.app import app
from driftscope.errors import EXIT_OK
from driftscope.inspect.checkpoints import open_drafter
from driftscope.inspect.checks.result import CheckLevel, Inspected
from driftscope.inspect.drafter_classes import Coverage
from driftscope.inspect.engine_loading import EngineProcess
from driftscope.inspect.inspection import Soundness, inspect_files
from driftscope_lab.trio import trio_path
from driftscope_probes.server.doctor import drafter_classes, package_folder

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
DRAFTERS = "eagle3", "eagle31"
SERVED = (("eagle3", "v1"),)
AT_NIGHT = (("eagle31", "v1"), ("eagle31", "v2"))
"""Drafters and the runners that they are served with. Both runners draft the same tokens."""
REQUESTS = 16
"""Number of prompts: one batch, because Triton's interpreter, in which V2 runs on a CPU, takes as
long for a step of two requests as for one of sixteen."""
CLOSE = 1e-3
"""Largest difference of the acceptance lengths over the same rounds: the document is rounded."""
BROKEN = "norm_output"


def _job(drafter: str, runner: str) -> Job:
    return Job(
        drafter=drafter,
        runner=runner,
        probe={"EVERY": "1"},
        sizes=(REQUESTS,),
        requests=REQUESTS,
        llm={"max_num_seqs": REQUESTS},
        sampling=ENDED,
    )


@pytest.fixture(scope="module")
def served(
    at_night: bool, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], Outcome]:
    """Outcome by drafter and runner; BROKEN has the shipped drafter with one flag changed."""
    folder: Path = tmp_path_factory.mktemp("served")
    broken = changed(folder / BROKEN, config=fields(**{BROKEN: False}))
    pairs = (*SERVED, *AT_NIGHT) if at_night else SERVED
    jobs = {f"{drafter} {runner}": _job(drafter, runner) for drafter, runner in pairs}
    jobs[f"{BROKEN} v1"] = _job(str(broken), "v1")
    done = run_jobs(jobs, folder / "engines")
    return {(name.split()[0], name.split()[1]): outcome for name, outcome in done.items()}


@pytest.fixture(scope="module")
def inspections(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Document of `driftscope inspect` by drafter, on the prompts that the engines are sent."""
    folder: Path = tmp_path_factory.mktemp("inspected")
    documents = {drafter: folder / f"{drafter}.json" for drafter in DRAFTERS}
    for drafter, path in documents.items():
        found = inspected_by_command(trio_path() / drafter, TARGET, folder, REQUESTS)
        path.write_text(json.dumps(found))
    return documents


def _compared(document: Path, outcome: Outcome) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["compare", str(document), str(outcome.run), "--json"])
    assert done.exit_code == EXIT_OK, done.output
    comparison: dict[str, Any] = json.loads(done.stdout)
    return comparison


@pytest.mark.parametrize(
    ("drafter", "runner"),
    [*SERVED, *(pytest.param(*pair, marks=pytest.mark.nightly) for pair in AT_NIGHT)],
)
def test_vllm_accepts_what_the_inspection_promises(
    served: dict[tuple[str, str], Outcome], inspections: dict[str, Path], drafter: str, runner: str
) -> None:
    document = json.loads(inspections[drafter].read_text())
    assert document["answer"] == Soundness.NOT_COMPARED
    comparison = _compared(inspections[drafter], served[drafter, runner])
    length = comparison["differences"][0]
    promised = document["trial"]["acceptance"]["mean_length_interval"]
    assert document["trial"]["prompts"] == REQUESTS
    assert promised["low"] <= length["served"] <= promised["high"]
    offline = document["trial"]["acceptance"]["mean_length"]
    assert served_length(served[drafter, runner]) == pytest.approx(offline, abs=CLOSE)
    assert abs(length["difference"]) < CLOSE
    assert comparison["verdict"].startswith("no difference from the inspection is shown")


def test_a_server_with_another_flag_accepts_less_than_promised(
    served: dict[tuple[str, str], Outcome], inspections: dict[str, Path]
) -> None:
    comparison = _compared(inspections["eagle31"], served[BROKEN, "v1"])
    assert "accepts less than the inspection promises" in comparison["verdict"]


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
    assert list(table) == sorted(drafter_classes(package_folder("vllm") or Path()))
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
    layers = sorted({stored.rpartition(".")[0] for stored in tensors})
    quantised = {**INT8, "ignore": layers if left_out else []}
    changed(drafter, drafter, config=fields(quantization_config=quantised))
    inspection = inspect_files(str(drafter), engine=vllm)
    bad = {found.id for found in inspection.results if found.level is not CheckLevel.NOTE}
    assert inspection.coverage is Coverage.CHECKED
    assert bad == (set() if left_out else {"missing_tensor", "mtp_heads_not_quantized"})


def test_a_class_that_vllm_does_not_register_is_refused_with_its_reason(
    vllm: EngineProcess, tmp_path: Path
) -> None:
    drafter, target = write(tmp_path, "LlamaForCausalLMEagle3", {"fc.weight": (1,)})
    changed(drafter, drafter, config=fields(architectures=["Eagle3NewForCausalLM"]))
    inspection = inspect_files(str(drafter), str(target), engine=vllm)
    (error,) = (found for found in inspection.results if found.level is CheckLevel.ERROR)
    assert "Eagle3NewForCausalLM" in error.found and "not supported" in error.found


@pytest.mark.nightly
def test_healthy_drafters_of_every_kind_are_not_faulted(tmp_path: Path) -> None:
    made = list(false_alarms.rows(tmp_path, 0, len(false_alarms.KINDS)))
    sentence, holds = false_alarms.verdict(made)
    assert holds, sentence
