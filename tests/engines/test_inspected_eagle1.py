"""The reference drafts of EAGLE-1 what real vLLM drafts, and `inspect` promises what it accepts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from support.checkpoints import eagle1_drafter
from support.engine_process.job import PROMPTS, Job, Outcome, run_jobs
from support.inspected_prompts import inspected, served_length
from typer.testing import CliRunner
from verification.truth import RECORD, V2, compare

from driftscope.cli.app import app
from driftscope.errors import EXIT_GATE_FAILED, EXIT_OK
from driftscope.inspect.reference.config import EOS_ID
from driftscope.inspect.trial.target import ANSWER_TOKENS
from driftscope_lab.trio import trio_path
from engines.test_truth import assert_true

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.nightly]
RUNNERS = "v1", "v2"
CLOSE = 1e-3
"""Largest difference of acceptance lengths over the same rounds: the document is rounded."""


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eagle1_drafter(tmp_path_factory.mktemp("eagle1") / "drafter")


@pytest.fixture(scope="module")
def served(drafter: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    sampling = {"max_tokens": ANSWER_TOKENS, "ignore_eos": False, "stop_token_ids": [EOS_ID]}
    one_batch: dict[str, Any] = {name: V2[name] for name in ("sizes", "llm")}
    jobs = {
        runner: Job(
            drafter=str(drafter),
            method="eagle",
            runner=runner,
            probe=RECORD,
            sampling=sampling,
            **one_batch,
        )
        for runner in RUNNERS
    }
    return run_jobs(jobs, tmp_path_factory.mktemp("served"))


@pytest.mark.parametrize("runner", RUNNERS)
def test_every_measured_quantity_equals_the_reference(
    served: dict[str, Outcome], runner: str
) -> None:
    assert_true(compare(served[runner]))


@pytest.mark.parametrize("runner", RUNNERS)
def test_vllm_accepts_what_the_inspection_promises(
    drafter: Path, served: dict[str, Outcome], runner: str, tmp_path: Path
) -> None:
    document = inspected(drafter, trio_path() / "target", tmp_path)
    trial = document["trial"]
    assert document["exit_code"] == EXIT_OK
    assert trial["prompts"] == PROMPTS
    assert trial["acceptance"]["mean_length"] > 1.5, "otherwise the test shows little"
    assert abs(served_length(served[runner]) - trial["acceptance"]["mean_length"]) < CLOSE


def test_a_head_of_its_own_is_refused_by_vllm_and_named_by_the_inspection(
    drafter: Path, tmp_path: Path
) -> None:
    own = shutil.copytree(drafter, tmp_path / "own")
    head = load_file(trio_path() / "target" / "model.safetensors")["model.embed_tokens.weight"]
    state = load_file(own / "model.safetensors")
    save_file({**state, "lm_head.weight": head.float()}, own / "model.safetensors")
    job = Job(drafter=str(own), method="eagle", requests=2)
    with pytest.raises(RuntimeError, match="no module or parameter named 'lm_head'"):
        run_jobs({"own": job}, tmp_path / "engines")
    found = CliRunner().invoke(app, ["inspect", str(own), "--json"])
    assert found.exit_code == EXIT_GATE_FAILED
    (result,) = (each for each in json.loads(found.stdout)["results"] if each["level"] == "error")
    assert result["id"] == "unexpected_tensor"
    assert "lm_head.weight" in result["there"]
