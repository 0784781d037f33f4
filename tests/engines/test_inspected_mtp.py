"""The reference drafts of MiMo's MTP head what real vLLM drafts, and `inspect` promises what it
accepts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import mtp_checkpoint
from support.engine_process.job import PROMPTS, Job, Outcome, run_jobs
from support.inspected_prompts import inspected, served_length
from verification.truth import RECORD, V2, compare

from driftscope.inspect.reference.config import EOS_ID
from driftscope.inspect.trial.target import ANSWER_TOKENS
from driftscope_lab.trio import trio_path
from engines.test_truth import assert_true

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.nightly]
RUNNERS = "v1", "v2"
CLOSE = 1e-3
"""Largest difference of acceptance lengths over the same rounds: the document is rounded."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = mtp_checkpoint(tmp_path_factory.mktemp("mtp") / "mimo", normed=False)
    for file in (trio_path() / "target").glob("*token*"):
        shutil.copy(file, path / file.name)
    return path


@pytest.fixture(scope="module")
def served(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    sampling = {"max_tokens": ANSWER_TOKENS, "ignore_eos": False, "stop_token_ids": [EOS_ID]}
    one_batch: dict[str, Any] = {name: V2[name] for name in ("sizes", "llm")}
    jobs = {
        runner: Job(
            drafter=str(checkpoint),
            target=str(checkpoint),
            method="mtp",
            runner=runner,
            probe=RECORD,
            sampling=sampling,
            **one_batch,
        )
        for runner in RUNNERS
    }
    return run_jobs(jobs, tmp_path_factory.mktemp("served"))


def _as_published(checkpoint: Path, path: Path) -> Path:
    """Return a copy with the model type of MiMo, which vLLM knows from the repository's code only,
    and for which transformers takes the tokenizer as it is, not as Qwen2's."""
    shutil.copytree(checkpoint, path)
    fields = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**fields, "model_type": "mimo"}))
    return path


@pytest.mark.parametrize("runner", RUNNERS)
def test_every_measured_quantity_equals_the_reference(
    served: dict[str, Outcome], runner: str
) -> None:
    assert_true(compare(served[runner]))


@pytest.mark.parametrize("runner", RUNNERS)
def test_vllm_accepts_what_the_inspection_promises(
    checkpoint: Path, served: dict[str, Outcome], runner: str, tmp_path: Path
) -> None:
    published = _as_published(checkpoint, tmp_path / "published")
    trial = inspected(published, published, tmp_path)["trial"]
    assert trial["prompts"] == PROMPTS
    assert trial["acceptance"]["mean_length"] > 1.5, "otherwise the test shows little"
    assert abs(served_length(served[runner]) - trial["acceptance"]["mean_length"]) < CLOSE
