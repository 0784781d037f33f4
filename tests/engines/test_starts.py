"""Engines whose probe is broken at the start, on disks that fail, and of a vLLM that changed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.distributions import attempt, lent_packages, new_environment, run
from support.engine_process.job import EVERY_KIND, MAX_TOKENS, Job, run_jobs
from support.engine_process.serving import Server, serve
from verification.disk_faults import (
    FAULTS,
    JOB,
    lost,
    with_fault,
    with_killed_writer,
    with_silent_receiver,
)
from verification.harmless import JOBS
from verification.starts import ROWS, SHORT, Started, Starts

from driftscope.pipeline import summarise
from driftscope.trace.reader import read_trace

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]
STARTS = tuple(ROWS) if EVERY_KIND else SHORT
NOT_LOADED = "Failed to load plugin driftscope"
"""vLLM's own words of a plugin that cannot be imported."""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Started]:
    rows = {name: ROWS[name] for name in STARTS}
    return dict(Starts(tmp_path_factory.mktemp("starts")).run(rows))


@pytest.mark.parametrize("name", STARTS)
def test_it_serves_the_same_and_says_why(started: dict[str, Started], name: str) -> None:
    one, row = started[name], ROWS[name]
    assert one.served, one.log[-3000:]
    assert one.same
    loaded = one.lines or tuple(line for line in one.log.splitlines() if NOT_LOADED in line)[:1]
    assert len(loaded) == bool(row.said), loaded
    assert all(row.said in line for line in loaded)
    assert (one.rounds > 0) == row.records


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """Tokens without the probe; the prompts of each batch are the same."""
    jobs = {"off": JOBS["v1 off"]}
    return run_jobs(jobs, tmp_path_factory.mktemp("off"))["off"].tokens()


@pytest.mark.parametrize("fault", FAULTS if EVERY_KIND else ["full", "removed"])
def test_a_disk_that_fails(fault: str, served: list[list[int]], tmp_path: Path) -> None:
    fared = with_fault(FAULTS[fault], tmp_path)
    for batch in range(len(JOB.sizes)):
        assert fared.outcome.tokens(batch) == served
    assert "rows are being lost (disk_error); serving goes on" in fared.outcome.log
    if fault == "full":
        assert lost(fared) > 0, "the status file has kept room for itself"
    if fault == "removed":
        assert fared.statuses == ()


def test_a_writer_that_is_killed_is_replaced(served: list[list[int]], tmp_path: Path) -> None:
    fared = with_killed_writer(tmp_path)
    for batch in range(len(JOB.sizes)):
        assert fared.outcome.tokens(batch) == served
    assert lost(fared) == 0
    assert all(status.closed for status in fared.statuses)
    assert sum(status.errors.get("writer", 0) for status in fared.statuses) >= 1
    rounds = read_trace(fared.outcome.run).verify
    assert {request["id"].split("-")[0] for request in fared.outcome.batches[0]["requests"]} <= {
        name.split("-")[0] for name in rounds.column("request").to_pylist()
    }


def test_a_receiver_that_hangs(served: list[list[int]], tmp_path: Path) -> None:
    fared = with_silent_receiver(tmp_path)
    for batch in range(len(JOB.sizes)):
        assert fared.outcome.tokens(batch) == served
    assert lost(fared) == 0
    assert all(status.closed for status in fared.statuses)


RENAMED = {
    "v1/spec_decode/llm_base_proposer.py": ("propose", "SpecDecodeBaseProposer"),
    "v1/worker/gpu_model_runner.py": ("propose", "SpecDecodeBaseProposer"),  # where it is called
    "v1/core/sched/scheduler.py": ("_free_request", "Scheduler"),
}
"""File -> a method that the probe hooks, and its class."""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder that precedes the installed vLLM."""
    spec = find_spec("vllm")
    assert spec is not None and spec.submodule_search_locations
    folder = tmp_path_factory.mktemp("changed")
    (installed,) = spec.submodule_search_locations
    shutil.copytree(installed, folder / "vllm", copy_function=os.symlink)
    for name, (method, _) in RENAMED.items():
        path = folder / "vllm" / name
        text = path.read_text()
        # Bytecode goes with its source: the other files' is as good here as where it lies.
        for old in (path, *(path.parent / "__pycache__").glob(f"{path.stem}.*.pyc")):
            old.unlink()
        path.write_text(re.sub(rf"\b{method}\(", f"{method}_renamed(", text))
    return folder


def test_doctor_names_the_hooks_that_no_longer_hold(changed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "driftscope", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(changed), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    checks: list[dict[str, Any]] = json.loads(done.stdout)
    lost = [check for check in checks if check["ok"] is False and check["topic"][:5] == "hook "]
    assert {check["detail"].partition(":")[0] for check in lost} == {
        f"{owner}.{method}" for method, owner in RENAMED.values()
    }
    assert all("not found" in check["detail"] and check["hint"] for check in lost)


def test_an_engine_serves_and_says_that_nothing_is_recorded(changed: Path, tmp_path: Path) -> None:
    jobs = {
        "on": Job(drafter="eagle31", probe={"EVERY": "1"}, vllm_path=str(changed), sizes=(8,)),
        "off": JOBS["v1 off"],
    }
    done = run_jobs(jobs, tmp_path)
    assert all(len(ids) == MAX_TOKENS for ids in done["off"].tokens())
    assert done["on"].tokens() == done["off"].tokens()
    (said,) = [line for line in done["on"].log.splitlines() if "driftscope: " in line]
    assert "nothing is recorded: " in said
    assert "of this vLLM is organised differently" in said
    assert any(method in said for method, _ in RENAMED.values())
    assert "run `driftscope doctor`" in said
    assert not list((tmp_path / "on").rglob("*draft*")), "nothing was recorded"


ANALYSIS = ("duckdb", "ibis", "pandas", "plotly", "scipy", "sqlglot")
"""Beginnings of the names of what only the distribution `driftscope` installs."""
REQUESTS = 4
TOKENS = 32
STOP_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A serving environment."""

    bin: Path
    environ: dict[str, str]
    folder: Path


@pytest.fixture(scope="module")
def image(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("image")
    environment = new_environment(folder / "venv", wheels["driftscope-probe"])
    environ = lent_packages(environment, folder / "lent", without=ANALYSIS)
    return Image(bin=environment, environ=environ, folder=folder)


@pytest.fixture(scope="module")
def recorded(image: Image) -> Iterator[Server]:
    """A server that answered some requests and was stopped."""
    command = (str(image.bin / "driftscope"),)
    with serve(image.folder, command=command, environ=image.environ) as server:
        for number in range(REQUESTS):
            server.complete(f"r{number}", prompt=[5, 6, 7, number + 8], max_tokens=TOKENS)
        server.process.send_signal(signal.SIGINT)
        server.process.wait(STOP_S)
        yield server


def test_the_image_has_the_engine_and_not_the_analysis(image: Image) -> None:
    code = (
        "import sys; from importlib.util import find_spec; import driftscope; "
        "print(driftscope.__file__, *[n for n in sys.argv[1:] if find_spec(n)])"
    )
    names = ("vllm", "driftscope_reports", "driftscope_lab", *ANALYSIS)
    done = run(image.bin / "python", "-c", code, *names, cwd=image.folder, environ=image.environ)
    path, *found = done.stdout.split()
    assert Path(path).is_relative_to(image.folder / "venv")
    assert found == ["vllm"]


def test_doctor_finds_every_hook(image: Image) -> None:
    done = attempt(
        image.bin / "driftscope", "doctor", "--json", cwd=image.folder, environ=image.environ
    )
    checks = json.loads(done.stdout)
    assert not [check for check in checks if check["ok"] is False], done.stdout
    assert done.returncode == 0
    assert [check for check in checks if check["topic"].startswith("hook")]


def test_every_request_is_recorded(recorded: Server) -> None:
    summary = summarise(read_trace(recorded.run), "image")
    assert summary.recording.broken_chains == 0
    assert summary.requests == REQUESTS
    assert summary.attention.sink_mass is not None
    assert summary.hidden.growth > 0


def test_the_run_is_watched_where_it_was_recorded(image: Image, recorded: Server) -> None:
    watch = (image.bin / "driftscope", "watch", recorded.run, "--once", "--json")
    done = run(*watch, cwd=image.folder, environ=image.environ)
    assert json.loads(done.stdout)["rounds"] == read_trace(recorded.run).verify.num_rows
