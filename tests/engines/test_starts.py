"""Engines whose probe is broken at the start, on disks that fail, and of a vLLM that changed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.distributions import lent_packages, new_environment, run
from support.engine_process.engine_main import BREAK, KILL_WRITER
from support.engine_process.job import EVERY_KIND, HERE, MAX_TOKENS, Job, Outcome, run_job, run_jobs
from support.engine_process.serving import serve
from support.small_disk import fill, small_disk
from support.waiting import until
from verification.truth import JOBS
from verification.zoo import ZOO

from driftscope.errors import DriftscopeError
from driftscope.pipeline import summarise
from driftscope.trace.manifest import MANIFEST
from driftscope.trace.reader import read_trace
from driftscope.trace.status import Status, read_statuses
from driftscope_probes.vllm.attach import WRONG_TOKENS

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]
NOT_LOADED = "Failed to load plugin driftscope"
"""vLLM's own words of a plugin that cannot be imported."""
MARK = "driftscope: "
"""Begin of each line that the probe logs."""
TRACE = "DRIFTSCOPE_TRACE"
DISK_KB = 256
Place = Callable[[Path, contextlib.ExitStack], Mapping[str, str]]
"""Function that prepares an empty folder and returns what the environment differs in."""


def used(folder: Path, _: object) -> Mapping[str, str]:
    """A run directory in which another engine is recording."""
    (folder / "run").mkdir()
    (folder / "run" / MANIFEST).write_text('{"schema_version": "3.0", "run_id": "another"}')
    return {}


def below_a_file(folder: Path, _: object) -> Mapping[str, str]:
    """A run directory that cannot be made, because a file is in its path."""
    (folder / "file").touch()
    return {TRACE: str(folder / "file" / "run")}


def full_disk(folder: Path, ends: contextlib.ExitStack) -> Mapping[str, str]:
    """A run directory on a disk without room."""
    disk = ends.enter_context(small_disk(folder / "disk", DISK_KB))
    fill(disk)
    return {TRACE: str(disk / "run")}


def port_taken(_: Path, ends: contextlib.ExitStack) -> Mapping[str, str]:
    """A port for Prometheus at which something else listens."""
    server = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
    return {"DRIFTSCOPE_PROMETHEUS": str(server.getsockname()[1])}


def broken_package(name: str, error: str) -> Place:
    """Return a place in which importing the package raises `error`."""

    def place(folder: Path, _: object) -> Mapping[str, str]:
        (folder / f"{name}.py").write_text(f"raise {error}('broken for a test')\n")
        return _first_on_path(folder)

    return place


def another_plugin(folder: Path, _: object) -> Mapping[str, str]:
    """A second plugin of the same group that wraps the methods that the probe hooks, as a plugin
    with a method of its own does."""
    info = folder / "other_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nother = other_plugin:register\n"
    )
    (folder / "other_plugin.py").write_text(_OTHER)
    return _first_on_path(folder)


_OTHER = """
import functools

def register():
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
    for owner, name in ((SpecDecodeBaseProposer, "propose"), (Scheduler, "update_from_output")):
        setattr(owner, name, _wrapped(getattr(owner, name)))

def _wrapped(original):
    @functools.wraps(original)
    def method(*args, **kwargs):
        return original(*args, **kwargs)
    return method
"""


def _first_on_path(folder: Path) -> Mapping[str, str]:
    path = [str(folder), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path))}


PARALLEL, CUSTOM, NONE = "parallel draft model", "custom class", "no speculation"
NOTHING = "nothing is recorded: "
INTERNALS = "attention, hidden states and confidence are not recorded: "
EXPORT = "metrics and spans are not exported: "


class Start(NamedTuple):
    """A start that is broken in one way; what the unit tests of settings and of run directories
    say of other values stands for them."""

    said: str
    """Words of the one line in the log; empty if there must be none."""
    place: Place = lambda *_: {}
    settings: Mapping[str, str] = {}
    """DRIFTSCOPE_* settings without the prefix; DRIFTSCOPE_TRACE names a new directory."""
    breaks: str = ""
    """Function of the probe that raises, as module:name, and the exception."""
    records: bool = False
    """Whether the run has verified rounds nevertheless."""
    drafter: str = ""
    """Another drafter than the shipped EAGLE-3.1."""
    runner: str = "v1"
    processes: bool = False
    """Whether front end, engine core and worker are processes, as for users."""


_ATTACH = "driftscope_probes.vllm.attach"
OFTEN = {"EVERY": "often"}
RAISED = f"{NOTHING}ZeroDivisionError"
STARTS = {
    "a setting that is no number": Start(
        f"{NOTHING}DRIFTSCOPE_EVERY='often'", settings=OFTEN, processes=True
    ),
    "a misspelt variable": Start(
        "DRIFTSCOPE_EVRY is no setting and has no effect; did you mean DRIFTSCOPE_EVERY?",
        settings={"EVRY": "4"},
        records=True,
    ),
    "off by an unknown word, everything else wrong": Start(
        "", settings={"DISABLE": "banana", "CONFIG": "/nope.toml", "STRICT": "1", **OFTEN}
    ),
    "a directory in use": Start("already holds a run", used),
    "a directory that cannot be made": Start(NOTHING, below_a_file, processes=True),
    "a full disk": Start("cannot write a trace there (No space left", full_disk),
    "Prometheus's port is taken": Start(EXPORT, port_taken, records=True),
    "pyarrow does not import": Start(
        f"{NOTHING}ImportError: broken for a test",
        broken_package("pyarrow", "ImportError"),
        processes=True,
    ),
    "wrapt does not import": Start(
        f"{NOTHING}AttributeError: broken for a test",
        broken_package("wrapt", "AttributeError"),
        processes=True,
    ),
    "driftscope itself does not import": Start(
        NOT_LOADED, broken_package("driftscope", "SyntaxError"), processes=True
    ),
    "another plugin hooks the same methods": Start(
        "", another_plugin, processes=True, records=True
    ),
    "another plugin, and a bad setting": Start(
        f"{NOTHING}DRIFTSCOPE_EVERY='often'", another_plugin, OFTEN, processes=True
    ),
    "an engine that does not speculate": Start("", drafter=NONE, records=True),
    "a drafter that is not in the list": Start(
        f"{INTERNALS}drafter LlamaForCausalLM of method draft_model with parallel",
        drafter=PARALLEL,
        records=True,
    ),
    "a method that is not in the list": Start(
        f"{INTERNALS}a drafter of method custom_class is of no known kind",
        drafter=CUSTOM,
        records=True,
    ),
    "an unknown vLLM whose drafter has another layout": Start(
        f"{INTERNALS}this vLLM's v1 runner is not laid out as driftscope knows it",
        breaks=f"{_ATTACH}:open_drafter AttributeError",
        records=True,
    ),
    "a GPU without room for the recorder": Start(
        f"{INTERNALS}MemoryError",
        breaks=f"{_ATTACH}:assemble_recorder MemoryError",
        records=True,
    ),
    "a limit on processes, so that the writer has no thread": Start(
        f"{NOTHING}RuntimeError", breaks="driftscope.trace.writer:WriterThread.add RuntimeError"
    ),
    "an exception where the plugin starts": Start(
        RAISED, breaks="driftscope_probes.vllm.plugin:fix_run_directory ZeroDivisionError"
    ),
    "an exception where the run begins": Start(
        RAISED, breaks=f"{_ATTACH}:create_run ZeroDivisionError"
    ),
    "an exception in the engine core's start": Start(
        RAISED,
        breaks="driftscope_probes.vllm.engine_core:VerificationTracker.__init__ ZeroDivisionError",
    ),
    "an exception after the models have loaded": Start(
        RAISED, breaks="driftscope_probes.vllm.worker:_begin ZeroDivisionError"
    ),
    "V2: an exception where hooks are put on": Start(
        f"{INTERNALS}ZeroDivisionError",
        breaks="driftscope_probes.taps:Taps._stand_in ZeroDivisionError",
        runner="v2",
        records=True,
    ),
}
SHORT = (
    "a directory in use",
    "pyarrow does not import",
    "a method that is not in the list",
    "an exception where the run begins",
)
"""Starts that `make nightly` has; `make starts` has all."""
NAMES = tuple(STARTS) if EVERY_KIND else SHORT


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Outcome]]:
    """Outcome of each start, and of its engine without the plugin."""
    root = tmp_path_factory.mktemp("starts")
    ZOO["draft_model"].build(model := root / "parallel")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "pard_token": 5}))
    tokens = {"num_speculative_tokens": 4}
    custom = {"method": "custom_class", "model": "support.custom_proposer.RepeatingProposer"}
    parallel = {"method": "draft_model", "model": str(model), "parallel_drafting": True}
    speculation = {NONE: None, PARALLEL: {**parallel, **tokens}, CUSTOM: {**custom, **tokens}}
    jobs = {}
    with contextlib.ExitStack() as ends:
        for name in NAMES:
            start, folder = STARTS[name], root / name
            folder.mkdir()
            llm = {"speculative_config": speculation[start.drafter]} if start.drafter else {}
            job = Job(drafter="eagle31", runner=start.runner, requests=4, llm=llm)
            jobs[_off(start)] = replace(job, env={"VLLM_PLUGINS": ""})
            settings = {f"DRIFTSCOPE_{key}": value for key, value in start.settings.items()}
            changes = {
                TRACE: str(folder / "run"),
                **({BREAK: start.breaks} if start.breaks else {}),
            }
            jobs[name] = replace(
                job,
                env={**changes, **settings, **start.place(folder, ends)},
                processes=start.processes,
                fresh=start.processes,
            )
        yield run_jobs(jobs, root)


def _off(start: Start) -> str:
    return f"off {start.runner} {start.drafter}"


@pytest.mark.parametrize("name", NAMES)
def test_it_serves_the_same_and_says_why(started: dict[str, Outcome], name: str) -> None:
    done, start = started[name], STARTS[name]
    assert done.tokens() == started[_off(start)].tokens()
    lines = [line for line in done.log.splitlines() if WRONG_TOKENS not in line]
    said = [line for line in lines if MARK in line]
    said = said or [line for line in lines if NOT_LOADED in line][:1]
    assert len(said) == bool(start.said), said
    assert all(start.said in line for line in said)
    rounds = 0
    with contextlib.suppress(DriftscopeError):
        rounds = read_trace(Path(done.job.env[TRACE])).verify.num_rows
    assert (rounds > 0) == start.records


ON_A_DISK = Job(drafter="eagle31", probe={"EVERY": "1"}, sizes=(8, 8))
ROOM_KB = 2048


def remove(disk: Path) -> None:
    """Remove the run directory while the writer is using it."""
    shutil.rmtree(disk / "run", ignore_errors=True)


def read_only(disk: Path) -> None:
    """Make the disk read-only; a real file system refuses that while files are open for writing."""
    for path in (disk / "run").glob("*"):
        path.chmod(0o400)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=False, capture_output=True)


FAULTS: dict[str, Callable[[Path], object]] = {
    "full": fill,
    "removed": remove,
    "read-only": read_only,
}
"""Faults of the run's disk, which begin once worker and engine core write there."""


def lost(statuses: tuple[Status, ...]) -> int:
    """Return the number of lost rows from the status files."""
    return sum(sum(status.dropped.values()) for status in statuses)


def assert_served(outcome: Outcome, off: Outcome) -> None:
    """Fail unless both batches have the tokens of an engine without the probe."""
    assert [outcome.tokens(batch) for batch in range(2)] == [off.tokens()] * 2


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Outcome without the probe; the prompts of each batch are the same."""
    return run_jobs({"off": JOBS["v1 off"]}, tmp_path_factory.mktemp("off"))["off"]


@pytest.mark.parametrize("fault", FAULTS if EVERY_KIND else ["full", "removed"])
def test_a_disk_that_fails(fault: str, served: Outcome, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", ROOM_KB) as disk:
        run = disk / "run"

        def strike() -> None:
            with contextlib.suppress(AssertionError):  # the engine did not start
                until(lambda: len(list(run.glob("status-*.json"))) > 1, limit_s=120.0)
            FAULTS[fault](disk)

        thread = threading.Thread(target=strike)
        thread.start()
        job = replace(ON_A_DISK, probe={**ON_A_DISK.probe, "TRACE": str(run)})
        outcome = run_job(job, tmp_path / "job")
        thread.join()
        statuses: tuple[Status, ...] = ()
        with contextlib.suppress(DriftscopeError, OSError):
            statuses = read_statuses(run)
    assert_served(outcome, served)
    assert "rows are being lost (disk_error); serving goes on" in outcome.log
    if fault == "full":
        assert lost(statuses) > 0, "the status file has kept room for itself"
    if fault == "removed":
        assert statuses == ()


def test_a_writer_that_is_killed_is_replaced(served: Outcome, tmp_path: Path) -> None:
    outcome = run_job(replace(ON_A_DISK, env={KILL_WRITER: "1"}), tmp_path)
    assert_served(outcome, served)
    trace = read_trace(outcome.run)
    assert lost(trace.statuses) == 0
    assert all(status.closed for status in trace.statuses)
    assert sum(status.errors.get("writer", 0) for status in trace.statuses) >= 1
    recorded = {name.partition("-")[0] for name in trace.verify.column("request").to_pylist()}
    assert set(outcome.names()) <= recorded


def test_a_receiver_that_hangs(served: Outcome, tmp_path: Path) -> None:
    """An OTLP endpoint that accepts connections and never answers."""
    env = {"OTEL_METRIC_EXPORT_INTERVAL": "500", "OTEL_EXPORTER_OTLP_TIMEOUT": "2"}
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        job = replace(ON_A_DISK, probe={**ON_A_DISK.probe, "OTLP": url}, env=env)
        outcome = run_job(job, tmp_path)
    assert_served(outcome, served)
    statuses = read_statuses(outcome.run)
    assert lost(statuses) == 0
    assert all(status.closed for status in statuses)


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
    gone = [check for check in checks if check["ok"] is False and check["topic"][:5] == "hook "]
    assert {check["detail"].partition(":")[0] for check in gone} == {
        f"{owner}.{method}" for method, owner in RENAMED.values()
    }
    assert all("not found" in check["detail"] and check["hint"] for check in gone)


def test_an_engine_serves_and_says_that_nothing_is_recorded(
    changed: Path, served: Outcome, tmp_path: Path
) -> None:
    job = Job(drafter="eagle31", probe={"EVERY": "1"}, vllm_path=str(changed))
    done = run_job(job, tmp_path)
    assert all(len(ids) == MAX_TOKENS for ids in served.tokens())
    assert done.tokens() == served.tokens()
    (said,) = [line for line in done.log.splitlines() if MARK in line]
    assert "nothing is recorded: " in said
    assert "of this vLLM is organised differently" in said
    assert any(method in said for method, _ in RENAMED.values())
    assert "run `driftscope doctor`" in said
    assert not list(tmp_path.rglob("*draft*")), "nothing was recorded"


ANALYSIS = ("duckdb", "ibis", "pandas", "plotly", "scipy", "sqlglot")
"""Beginnings of the names of what only the distribution `driftscope` installs."""


def test_an_image_without_the_analysis_records_and_watches(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    """Only driftscope-probe is installed beside vLLM."""
    binaries = new_environment(tmp_path / "venv", wheels["driftscope-probe"])
    environ = lent_packages(binaries, tmp_path / "lent", without=ANALYSIS)
    driftscope = str(binaries / "driftscope")

    def printed(*words: str | Path) -> str:
        return run(*words, cwd=tmp_path, environ=environ).stdout

    names = ("vllm", "driftscope_reports", "driftscope_lab", *ANALYSIS)
    code = "import sys, importlib.util as u; print(*filter(u.find_spec, sys.argv[1:]))"
    assert printed(binaries / "python", "-c", code, *names).split() == ["vllm"]
    checks = json.loads(printed(driftscope, "doctor", "--json"))
    assert not [check for check in checks if check["ok"] is False]
    assert [check for check in checks if check["topic"].startswith("hook")]
    with serve(tmp_path, command=(driftscope,), environ=environ) as server:
        for number in range(4):
            server.complete(f"r{number}", prompt=[5, 6, 7, number + 8], max_tokens=32)
        server.process.send_signal(signal.SIGINT)
        server.process.wait(60)
    trace = read_trace(server.run)
    summary = summarise(trace, "image")
    assert (summary.recording.broken_chains, summary.requests) == (0, 4)
    assert summary.attention.sink_mass is not None
    assert summary.hidden.growth > 0
    watched = json.loads(printed(driftscope, "watch", str(server.run), "--once", "--json"))
    assert watched["rounds"] == trace.verify.num_rows
