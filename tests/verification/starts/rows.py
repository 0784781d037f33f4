"""The broken starts, as data: what is broken, in which surroundings, and what the log must say."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from support.engine_process.job import HERE
from support.small_disk import fill, small_disk

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
        breaks="driftscope_probes.vllm.runner_v1:install_runner AttributeError",
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
