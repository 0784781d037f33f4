"""Starts of real engines whose probe is broken in one way each, and what the log must say."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Queue
from typing import Any

from support.engine_process.job import (
    CORES,
    HERE,
    MAX_TOKENS,
    Job,
    engine,
    environment,
    prompts,
    run_job,
)
from support.engine_process.serving import MODEL, running
from support.small_disk import fill, small_disk
from support.waiting import free_port

from driftscope.errors import DriftscopeError
from driftscope.trace.reader import read_trace
from driftscope_probes.vllm.attach import WRONG_TOKENS
from verification.zoo import ZOO

Environment = Mapping[str, str]
Place = Callable[[Path], AbstractContextManager[Environment]]
TRACE = "DRIFTSCOPE_TRACE"
DISK_KB = 256


@contextlib.contextmanager
def sound(_: Path) -> Iterator[Environment]:
    """Yield no change."""
    yield {}


@contextlib.contextmanager
def used(folder: Path) -> Iterator[Environment]:
    """Yield a run directory in which another engine is recording."""
    run = folder / "used"
    run.mkdir()
    (run / "manifest.json").write_text('{"schema_version": "3.0", "run_id": "another"}')
    yield {TRACE: str(run)}


@contextlib.contextmanager
def below_a_file(folder: Path) -> Iterator[Environment]:
    """Yield a run directory that cannot be made, because a file is in its path."""
    (folder / "file").touch()
    yield {TRACE: str(folder / "file" / "run")}


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[Environment]:
    """Yield a run directory on a disk without room."""
    with small_disk(folder / "disk", DISK_KB) as disk:
        fill(disk)
        yield {TRACE: str(disk / "run")}


@contextlib.contextmanager
def read_only_disk(folder: Path) -> Iterator[Environment]:
    """Yield a run directory on a disk that is mounted read-only."""
    with small_disk(folder / "disk", DISK_KB) as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        yield {TRACE: str(disk / "run")}


@contextlib.contextmanager
def port_taken(_: Path) -> Iterator[Environment]:
    """Yield a port for Prometheus at which something else listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {"DRIFTSCOPE_PROMETHEUS": str(server.getsockname()[1])}


def broken_package(name: str, error: str) -> Place:
    """Return a place in which importing the package raises `error`."""

    @contextlib.contextmanager
    def place(folder: Path) -> Iterator[Environment]:
        (folder / "broken").mkdir()
        (folder / "broken" / f"{name}.py").write_text(f"raise {error}('broken for a test')\n")
        yield _first_on_path(folder / "broken")

    return place


@contextlib.contextmanager
def another_plugin(folder: Path) -> Iterator[Environment]:
    """Yield an environment in which a second plugin of the same group wraps the methods that the
    probe hooks, as a plugin with a method of its own does."""
    root = folder / "plugin"
    info = root / "other_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nother = other_plugin:register\n"
    )
    (root / "other_plugin.py").write_text(_OTHER)
    yield _first_on_path(root)


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
        if not method.called:
            print("another plugin's method runs", flush=True)
        method.called = True
        return original(*args, **kwargs)
    method.called = False
    return method
"""


def _first_on_path(folder: Path) -> Environment:
    path = [str(folder), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path))}


PARALLEL, CUSTOM, NONE = "parallel draft model", "custom class", "no speculation"
DRAFTERS = (PARALLEL, CUSTOM, NONE)
NOTHING = "nothing is recorded: "
INTERNALS = "attention, hidden states and confidence are not recorded: "
EXPORT = "metrics and spans are not exported: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A start that is broken in one way."""

    said: str
    """Words of the one line in the log; empty if there must be none."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """DRIFTSCOPE_* settings without the prefix; DRIFTSCOPE_TRACE names a new directory."""
    place: Place = sound
    breaks: str = ""
    """Function of the probe that raises, as module:name, and the exception."""
    stands_in_for: str = ""
    """The fault that `breaks` stands for, because it cannot be produced here."""
    drafter: str = ""
    """Another drafter than the shipped EAGLE-3.1, one of DRAFTERS."""
    runner: str = "v1"
    processes: bool = False
    """Whether front end, engine core and worker are processes, as for users."""
    http: bool = False
    """Whether vLLM's HTTP server is started, and asked over HTTP."""
    records: bool = False
    """Whether the run has verified rounds nevertheless."""


_ATTACH = "driftscope_probes.vllm.attach"
ROWS: Mapping[str, Row] = {
    "a setting that is no number": Row(
        settings={"EVERY": "often"}, said=f"{NOTHING}DRIFTSCOPE_EVERY='often'", processes=True
    ),
    "a share out of range": Row(
        settings={"BUDGET": "150%"}, said=f"{NOTHING}DRIFTSCOPE_BUDGET='150%'"
    ),
    "a port that is none": Row(
        settings={"PROMETHEUS": "99999"}, said=f"{NOTHING}DRIFTSCOPE_PROMETHEUS=99999"
    ),
    "a request key that is none": Row(
        settings={"IDENTIFIERS": "off", "REQUEST_KEY": "secret"},
        said=f"{NOTHING}DRIFTSCOPE_REQUEST_KEY: give 32",
    ),
    "a misspelt variable": Row(
        settings={"EVRY": "4"},
        said="DRIFTSCOPE_EVRY is no setting and has no effect; did you mean DRIFTSCOPE_EVERY?",
        records=True,
    ),
    "off by an unknown word, everything else wrong": Row(
        settings={"DISABLE": "banana", "CONFIG": "/nope.toml", "EVERY": "often", "STRICT": "1"},
        said="",
    ),
    "a directory in use": Row(place=used, said="already holds a run"),
    "a directory that cannot be made": Row(place=below_a_file, said=f"{NOTHING}", processes=True),
    "a directory in /proc": Row(
        settings={"TRACE": "/proc/nope/run"}, said="cannot write a trace there"
    ),
    "a full disk": Row(place=full_disk, said="cannot write a trace there (No space left"),
    "a read-only disk": Row(
        place=read_only_disk, said="cannot write a trace there (Read-only file system)"
    ),
    "Prometheus's port is taken": Row(place=port_taken, said=EXPORT, records=True),
    "pyarrow does not import": Row(
        place=broken_package("pyarrow", "ImportError"),
        said=f"{NOTHING}ImportError: broken for a test",
        processes=True,
    ),
    "wrapt does not import": Row(
        place=broken_package("wrapt", "AttributeError"),
        said=f"{NOTHING}AttributeError: broken for a test",
        processes=True,
    ),
    "driftscope itself does not import": Row(
        place=broken_package("driftscope", "SyntaxError"),
        said="Failed to load plugin driftscope",
        processes=True,
    ),
    "another plugin hooks the same methods": Row(
        place=another_plugin, said="", processes=True, records=True
    ),
    "another plugin, and a bad setting": Row(
        place=another_plugin,
        settings={"EVERY": "often"},
        said=f"{NOTHING}DRIFTSCOPE_EVERY='often'",
        processes=True,
    ),
    "an engine that does not speculate": Row(drafter=NONE, said="", records=True),
    "a drafter that is not in the list": Row(
        drafter=PARALLEL,
        said=f"{INTERNALS}drafter LlamaForCausalLM of method draft_model with parallel",
        records=True,
    ),
    "a method that is not in the list": Row(
        drafter=CUSTOM,
        said=f"{INTERNALS}a drafter of method custom_class is of no known kind",
        records=True,
    ),
    "a vLLM without a hooked method": Row(
        breaks="driftscope_probes.vllm.runner_v1:_execute_model AttributeError",
        stands_in_for="an unknown vLLM; test_changed_vllm.py runs a real one",
        said="vllm.v1.worker.gpu_model_runner of this vLLM is organised differently",
    ),
    "a vLLM whose drafter has another layout": Row(
        breaks=f"{_ATTACH}:open_drafter AttributeError",
        stands_in_for="an unknown vLLM",
        said=f"{INTERNALS}this vLLM's v1 runner is not laid out as driftscope knows it",
        records=True,
    ),
    "no memory for the recorder": Row(
        breaks=f"{_ATTACH}:assemble_recorder MemoryError",
        stands_in_for="a GPU without room",
        said=f"{INTERNALS}MemoryError",
        records=True,
    ),
    "no thread for the writer": Row(
        breaks="driftscope.trace.writer:WriterThread.add RuntimeError",
        stands_in_for="a limit on processes",
        said=f"{NOTHING}RuntimeError",
    ),
    "an exception where the plugin starts": Row(
        breaks="driftscope_probes.vllm.plugin:fix_run_directory ZeroDivisionError",
        said=f"{NOTHING}ZeroDivisionError",
    ),
    "an exception where the run begins": Row(
        breaks=f"{_ATTACH}:create_run ZeroDivisionError", said=f"{NOTHING}ZeroDivisionError"
    ),
    "an exception in the engine core's start": Row(
        breaks="driftscope_probes.vllm.engine_core:VerificationTracker.__init__ ZeroDivisionError",
        said=f"{NOTHING}ZeroDivisionError",
    ),
    "an exception after the models have loaded": Row(
        breaks="driftscope_probes.vllm.worker:_begin ZeroDivisionError",
        said=f"{NOTHING}ZeroDivisionError",
    ),
    "V2: a setting that is no number": Row(
        runner="v2", settings={"EVERY": "often"}, said=f"{NOTHING}DRIFTSCOPE_EVERY='often'"
    ),
    "V2: an exception where hooks are put on": Row(
        runner="v2",
        breaks="driftscope_probes.taps:Taps._stand_in ZeroDivisionError",
        said=f"{INTERNALS}ZeroDivisionError",
        records=True,
    ),
    "HTTP: a directory that cannot be made": Row(
        http=True, place=below_a_file, said="cannot write a trace there"
    ),
}
SHORT = (
    "a share out of range",
    "a directory in use",
    "pyarrow does not import",
    "a method that is not in the list",
    "an exception where the run begins",
)
"""Rows that the test suite runs."""


def tokens_over_http(job: Job, folder: Path, core: str) -> list[list[int]]:
    """Start vLLM's server for a job, ask it for each prompt in turn, and stop it.

    Raises RuntimeError if it does not come up.
    """
    folder.mkdir(exist_ok=True)
    port = free_port()
    environ = environment(job, folder, core)
    with running(_command(job, port), environ, port, folder / "run", folder / "log.txt") as server:
        asked = [
            server.complete(str(at), prompt=ids, max_tokens=MAX_TOKENS, return_token_ids=True)
            for at, ids in enumerate(prompts(job.requests))
        ]
    return [answer["choices"][0]["token_ids"] for answer in asked]


def _command(job: Job, port: int) -> list[str]:
    llm = {**engine(job), **job.llm}
    options = {
        "model": llm["model"],
        "dtype": llm["dtype"],
        "max-model-len": llm["max_model_len"],
        "max-num-seqs": llm["max_num_seqs"],
        "num-gpu-blocks-override": llm["num_gpu_blocks_override"],
        "speculative-config": json.dumps(llm["speculative_config"]),
        "served-model-name": MODEL,
        "host": "127.0.0.1",
        "port": port,
    }
    listed = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    server = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    return [*server, *listed, "--enforce-eager", "--no-enable-prefix-caching"]


WITHOUT_PLUGIN = {"VLLM_PLUGINS": ""}
REQUESTS = 4
MARK = "driftscope: "
"""Begin of each line that the probe logs."""
_PARALLEL = {"method": "draft_model", "num_speculative_tokens": 4, "parallel_drafting": True}
_CUSTOM = {
    "method": "custom_class",
    "model": "support.custom_proposer.RepeatingProposer",
    "num_speculative_tokens": 4,
}
Tokens = list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Outcome of a start."""

    served: bool
    same: bool
    """Whether every token is that of an engine without the plugin."""
    lines: tuple[str, ...]
    """Lines of the log that the probe wrote, but for the one about vLLM's own tokens."""
    rounds: int
    """Verified rounds in the run directory."""
    log: str


class Starts:
    """Runs starts below a folder; engines without the plugin are run once for each kind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        model = folder / "parallel"
        ZOO["draft_model"].build(model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "pard_token": 5}))
        self._drafters: dict[str, Any] = {
            NONE: {"speculative_config": None},
            PARALLEL: {"speculative_config": {**_PARALLEL, "model": str(model)}},
            CUSTOM: {"speculative_config": _CUSTOM},
        }
        self._tokens: dict[tuple[str, str, bool], Tokens] = {}

    def run(self, rows: Mapping[str, Row]) -> Iterator[tuple[str, Started]]:
        """Run the rows, one per core; yield what became of each, in order."""
        cores: Queue[str] = Queue()
        for core in CORES:
            cores.put(core)

        def on_a_core(action: Any, *args: Any) -> Any:
            core = cores.get()
            try:
                return action(*args, core)
            finally:
                cores.put(core)

        kinds = {_kind(row): row for row in rows.values()}
        with ThreadPoolExecutor(len(CORES)) as pool:
            off = pool.map(lambda row: on_a_core(self._without, row), kinds.values())
            self._tokens.update(zip(kinds, off, strict=True))
            started = pool.map(lambda item: on_a_core(self._one, *item), rows.items())
            yield from zip(rows, started, strict=True)

    def _without(self, row: Row, core: str) -> Tokens:
        folder = self._folder / "-".join(("off", *map(str, _kind(row)))).replace(" ", "-")
        job = replace(self._job(row), probe={}, processes=False, fresh=False, env=WITHOUT_PLUGIN)
        if row.http:
            return tokens_over_http(replace(job, processes=True), folder, core)
        return run_job(job, folder, core).tokens()

    def _one(self, name: str, row: Row, core: str) -> Started:
        folder = self._folder / name.replace(" ", "-").replace("/", "")
        folder.mkdir()
        with row.place(folder) as changes:
            job = self._job(row)
            trace = {"TRACE": str(folder / "run"), **row.settings}
            env = {f"DRIFTSCOPE_{key}": value for key, value in trace.items()} | dict(changes)
            if row.breaks:
                job = replace(job, main="broken_start_main.py")
                env["DRIFTSCOPE_TEST_BREAK"] = row.breaks
            return self._started(replace(job, env=env), row, folder, core)

    def _started(self, job: Job, row: Row, folder: Path, core: str) -> Started:
        tokens: Tokens | None = None
        log = folder / "log.txt"
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            if row.http:
                tokens = tokens_over_http(job, folder, core)
            else:
                tokens = run_job(job, folder, core).tokens()
        text = log.read_text(errors="replace")
        lines = [
            line[line.index(MARK) :]
            for line in text.splitlines()
            if MARK in line and WRONG_TOKENS not in line
        ]
        return Started(
            served=tokens is not None,
            same=tokens == self._tokens[_kind(row)],
            lines=tuple(lines),
            rounds=_rounds(Path(job.env["DRIFTSCOPE_TRACE"])),
            log=text,
        )

    def _job(self, row: Row) -> Job:
        return Job(
            drafter="eagle31",
            runner=row.runner,
            processes=row.processes,
            fresh=row.processes,
            requests=REQUESTS,
            llm=self._drafters.get(row.drafter, {}),
        )


def _kind(row: Row) -> tuple[str, str, bool]:
    return row.runner, row.drafter or "eagle3.1", row.http


def _rounds(run: Path) -> int:
    try:
        return read_trace(run).verify.num_rows
    except DriftscopeError:
        return 0
