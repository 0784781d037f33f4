"""Broken surroundings of a start: folders, disks, ports, packages and other plugins.

Each is a context manager that gets a folder of its own and yields what changes in the engine's
environment.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
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
    (run / "manifest.json").write_text('{"schema_version": "2.0", "run_id": "another"}')
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
def pipe_for_settings(folder: Path) -> Iterator[Environment]:
    """Yield a configuration file that is a named pipe, which nobody writes to."""
    os.mkfifo(folder / "settings.toml")
    yield {"DRIFTSCOPE_CONFIG": str(folder / "settings.toml")}


@contextlib.contextmanager
def misspelt_file(folder: Path) -> Iterator[Environment]:
    """Yield a configuration file with a misspelt key."""
    path = folder / "settings.toml"
    path.write_text(f'trace = "{folder / "run"}"\nevry = 4\n')
    yield {"DRIFTSCOPE_CONFIG": str(path)}


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
