"""Real vLLM accepts what `inspect` measures offline, on the same prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import TARGET, changed
from support.engine_process.job import Job, K, Outcome, run_jobs
from support.inspected_prompts import served_length
from typer.testing import CliRunner

from driftscope.cli.app import app
from driftscope.errors import EXIT_OK
from driftscope.inspect.reference.config import EOS_ID
from driftscope.inspect.trial.target import ANSWER_TOKENS
from driftscope_lab.trio import CONDITIONS, load_prompts, trio_path

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
DRAFTERS = "eagle3", "eagle31"
SERVED = (("eagle3", "v1"), ("eagle31", "v1"), ("eagle31", "v2"))
"""Drafters and the runners that they are served with: both draft the same tokens."""
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
        # Without a tokenizer, vLLM knows no end token of its own.
        sampling={"max_tokens": ANSWER_TOKENS, "ignore_eos": False, "stop_token_ids": [EOS_ID]},
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Outcome]:
    """Outcome by drafter and runner; BROKEN has the shipped drafter with one flag changed."""
    folder: Path = tmp_path_factory.mktemp("served")
    broken = changed(folder / BROKEN, config=lambda fields: fields.update({BROKEN: False}))
    jobs = {f"{drafter} {runner}": _job(drafter, runner) for drafter, runner in SERVED}
    jobs[f"{BROKEN} v1"] = _job(str(broken), "v1")
    done = run_jobs(jobs, folder / "engines")
    return {(name.split()[0], name.split()[1]): outcome for name, outcome in done.items()}


@pytest.fixture(scope="module")
def inspections(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Document of `driftscope inspect` by drafter, on the prompts that the engines are sent."""
    folder: Path = tmp_path_factory.mktemp("inspected")
    prompts = folder / "prompts.jsonl"
    texts = [p.text(CONDITIONS[at % 2]) for at, p in enumerate(load_prompts()[:REQUESTS])]
    rows = [json.dumps({"id": at, "body": {"prompt": text}}) for at, text in enumerate(texts)]
    prompts.write_text("\n".join(rows))
    return {drafter: _inspected(drafter, prompts, folder) for drafter in DRAFTERS}


def _inspected(drafter: str, prompts: Path, folder: Path) -> Path:
    options = ["--target", TARGET, "--prompts", prompts, "--k", K, "--json"]
    done = CliRunner().invoke(
        app, ["inspect", *(str(each) for each in (trio_path() / drafter, *options))]
    )
    assert done.exit_code == EXIT_OK, done.output
    document = folder / f"{drafter}.json"
    document.write_text(done.stdout)
    return document


def _compared(document: Path, outcome: Outcome) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["compare", str(document), str(outcome.run), "--json"])
    assert done.exit_code == EXIT_OK, done.output
    comparison: dict[str, Any] = json.loads(done.stdout)
    return comparison


@pytest.mark.parametrize(("drafter", "runner"), SERVED)
def test_vllm_accepts_what_the_inspection_promises(
    served: dict[tuple[str, str], Outcome], inspections: dict[str, Path], drafter: str, runner: str
) -> None:
    document = json.loads(inspections[drafter].read_text())
    comparison = _compared(inspections[drafter], served[drafter, runner])
    length = comparison["differences"][0]
    promised = document["trial"]["acceptance"]["mean_length_interval"]
    assert document["trial"]["prompts"] == REQUESTS
    assert promised["low"] <= length["served"] <= promised["high"]
    offline = document["trial"]["acceptance"]["mean_length"]
    assert abs(served_length(served[drafter, runner]) - offline) < CLOSE
    assert abs(length["difference"]) < CLOSE
    assert comparison["verdict"].startswith("no difference from the inspection is shown")


def test_a_server_with_another_flag_accepts_less_than_promised(
    served: dict[tuple[str, str], Outcome], inspections: dict[str, Path]
) -> None:
    comparison = _compared(inspections["eagle31"], served[BROKEN, "v1"])
    assert "accepts less than the inspection promises" in comparison["verdict"]
