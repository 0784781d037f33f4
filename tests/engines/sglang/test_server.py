"""SGLang's server, `doctor` and `inspect` beside it, vLLM on one drafter, and other weights."""

import functools
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import changed
from support.command import run_command
from support.engine_process import job as vllm
from support.engine_process.job import Outcome, prompts
from support.sglang_process.job import (
    ENVIRONMENT,
    MAX_TOKENS,
    ROOT,
    VERSION,
    Job,
    K,
    ask,
    environment,
    installed,
    run_job,
    serving,
    shifted_drafter,
)
from verification.truth import MASSES

from driftscope.inspect.checkpoints import open_drafter
from driftscope.inspect.checks.result import Inspected
from driftscope.inspect.engine_loading import SGLANG, EngineProcess
from driftscope.pipeline import summarise
from driftscope.trace.reader import read_trace
from driftscope_lab.trio import trio_path

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(not installed(), reason="`make sglang` builds SGLang's environment"),
    pytest.mark.nightly,
]
REQUESTS = 4
SAMPLING = {"temperature": 0, "max_new_tokens": MAX_TOKENS, "ignore_eos": True}


def answers(probe: dict[str, str], folder: Path) -> list[dict[str, object]]:
    """Return the answers of a server, to which the prompts are sent at once."""
    own = {**SAMPLING, "custom_params": {"driftscope_label": "http"}}
    with (
        serving(Job(drafter="eagle31", probe=probe), folder) as address,
        ThreadPoolExecutor(REQUESTS) as pool,
    ):
        bodies = [{"input_ids": ids, "sampling_params": own} for ids in prompts(REQUESTS)]
        return list(pool.map(lambda body: ask(address, body), bodies))


def test_the_server_serves_the_same_and_is_recorded(tmp_path: Path) -> None:
    on, off = answers({"EVERY": "1"}, tmp_path / "on"), answers({}, tmp_path / "off")
    assert [a["output_ids"] for a in on] == [a["output_ids"] for a in off]
    run = tmp_path / "on" / "run"
    trace = read_trace(run)
    served = {a["meta_info"]["id"] for a in on}  # type: ignore[index]
    labels = {row["request"]: row["label"] for row in trace.request.to_pylist()}
    assert {name for name, label in labels.items() if label == "http"} == served
    assert len(labels) == len(served), "neither the warm-up nor a health check has a row"
    assert {row["request"] for row in trace.draft.to_pylist()} >= served
    assert not any(status.errors for status in trace.statuses)
    assert not (tmp_path / "off" / "run").exists()


WORKER = "sglang.srt.speculative.eagle_worker_v2"
RUN = "import sys; from driftscope.cli.app import run; run()"


def doctor(tmp_path: Path, before: str = "") -> tuple[int, list[dict[str, Any]]]:
    """Return exit status and checks of a doctor that runs after the code `before`."""
    ended = subprocess.run(
        [ENVIRONMENT / "bin/python", "-c", before + RUN, "doctor", "--engine", "sglang", "--json"],
        env=environment(Job(drafter=""), tmp_path),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return ended.returncode, json.loads(ended.stdout)


def test_a_tested_version_is_ready(tmp_path: Path) -> None:
    status, checks = doctor(tmp_path)
    assert status == 0
    assert checks[0]["ok"] and f"SGLang {VERSION}, tested" in checks[0]["detail"]


def test_a_method_that_is_gone_is_named(tmp_path: Path) -> None:
    gone = f"import {WORKER} as m; del m.EagleDraftWorker._draft_extend_for_decode; "
    status, checks = doctor(tmp_path, gone)
    assert status == 1
    (broken,) = (check for check in checks[1:] if check["ok"] is False)
    assert "EagleDraftWorker._draft_extend_for_decode: not found" in broken["detail"]


O_PROJ = "midlayer.self_attn.o_proj.weight"


@pytest.fixture(scope="module")
def sglang() -> Iterator[EngineProcess]:
    command = (str(ENVIRONMENT / "bin/python"), *SGLANG.command[1:])
    with EngineProcess(SGLANG, command) as process:
        yield process


@pytest.mark.parametrize("name", ["eagle3", "eagle31"])
def test_a_shipped_drafter_is_loaded_whole(sglang: EngineProcess, name: str) -> None:
    answer = sglang.ask(Inspected(drafter=open_drafter(str(trio_path() / name))))
    assert (answer.engine, answer.unknown, answer.results) == (f"SGLang {VERSION}", "", ())
    assert "model.fc.weight" in answer.parameters


def test_a_lost_tensor_and_one_of_another_shape_are_named(
    sglang: EngineProcess, tmp_path: Path
) -> None:
    lost = changed(tmp_path / "lost", weights=lambda state: state.pop(O_PROJ))
    (error,) = sglang.ask(Inspected(drafter=open_drafter(str(lost)))).results
    assert error.id == "missing_tensor" and "o_proj" in error.found
    cut = changed(tmp_path / "cut", weights=lambda state: state.update({O_PROJ: torch.ones(8, 8)}))
    (error,) = sglang.ask(Inspected(drafter=open_drafter(str(cut)))).results
    assert error.id == "refused_by_engine" and O_PROJ in error.title


TOLERANCE = 1e-4
BOTH = 8
"""Requests that both engines answer."""
RECORD_BOTH = {"TOKEN_IDS": "1", "EVERY": "1", "PROMPT_SALT": "two engines"}
"""With one salt, both engines give a prompt the same digest."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("two-engines")
    return made


def in_vllm(drafter: str, folder: Path) -> Outcome:
    """Return the outcome of vLLM's V1 runner; `drafter`: the name of a shipped one, or a path."""
    model = str(trio_path() / drafter)
    speculation = {"method": "eagle3", "model": model, "num_speculative_tokens": K}
    job = vllm.Job(
        drafter=drafter,
        probe=RECORD_BOTH,
        requests=BOTH,
        llm={"speculative_config": speculation},
        sampling={"max_tokens": MAX_TOKENS},
    )
    return vllm.run_job(job, folder)


@functools.cache
def in_sglang(drafter: str, folder: Path) -> Outcome:
    """Return the outcome of SGLang with a shipped drafter, its captured layers renumbered."""
    job = Job(drafter=drafter, probe=RECORD_BOTH, requests=BOTH, sizes=(BOTH,))
    return run_job(job, folder / f"sglang-{drafter}")


def warning_of(vllm: Path, sglang: Path) -> str:
    """Return the warning of `driftscope compare --json`."""
    done = run_command("compare", vllm, sglang, "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["warning"])


def chains(run: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the recorded chains by prompt and position."""
    trace = read_trace(run)
    prompts = {row["request"]: row["prompt_digest"] for row in trace.request.to_pylist()}
    return {(prompts[row["request"]], row["position"]): row for row in trace.draft.to_pylist()}


@pytest.mark.parametrize("drafter", ["eagle3", "eagle31"])
def test_both_engines_draft_the_same(folder: Path, drafter: str) -> None:
    vllm, sglang = in_vllm(drafter, folder / f"vllm-{drafter}"), in_sglang(drafter, folder)
    assert vllm.tokens() == sglang.tokens()
    ours, theirs = chains(vllm.run), chains(sglang.run)
    both = ours.keys() & theirs.keys()
    assert len(both) > 10 * BOTH
    for key in both:
        a, b = ours[key], theirs[key]
        assert a["token_ids"] == b["token_ids"]
        for name in MASSES:
            assert a[name] == pytest.approx(b[name], abs=TOLERANCE)
        for name in ("prenorm_rms", "fed_rms", "aux_rms"):
            assert a[name] == pytest.approx(b[name], rel=TOLERANCE)
    warning = warning_of(vllm.run, sglang.run)
    assert "runner (vllm v1 against sglang eagle v2)" in warning and "dtype" not in warning


def test_a_shift_of_the_captured_layers_is_named(folder: Path) -> None:
    """One config in both engines: SGLang adds 1 to its numbers, vLLM does not."""
    vllm = in_vllm(str(shifted_drafter("eagle3", folder)), folder / "shifted")
    warning = warning_of(vllm.run, in_sglang("eagle3", folder).run)
    assert "captured layers (1, 2, 4 against 2, 3, 5)" in warning


def _other(folder: Path) -> Path:
    return changed(folder, "target", weights=_negate)


def _negate(state: dict[str, torch.Tensor]) -> None:
    """Leave one layer's matrices, negated: SGLang loads a folder into the drafter, too, and ends
    where a tensor of that name has another shape there."""
    for name in list(state):
        if ".layers.2." in name and "norm" not in name:
            state[name] = -state[name]
        else:
            del state[name]


def test_an_update_from_disk_is_noted(tmp_path: Path) -> None:
    job = Job(drafter="eagle31", probe={"EVERY": "1"}, sizes=(2, 2), weights=_other)
    outcome = run_job(job, tmp_path)
    assert outcome.tokens(0) != outcome.tokens(1)
    summary = summarise(outcome.run, "run", by="weights")
    assert [part.label for part in summary.segments] == ["as started", "after update 1"]
    assert {part.requests for part in summary.segments} == {REQUESTS}
    (update,) = summary.updates
    assert "target" in update.models
