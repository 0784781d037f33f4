"""Settings of every test."""

import atexit
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from support.distributions import build_wheels

# Two processes on two cores: with more threads each would wait for the other's.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Hundreds of processes start: each would compile every module of driftscope that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A terminal's width would cut the words of the commands that tests run.
os.environ.pop("COLUMNS", None)

# A script that starts the tests in the background has them ignore it, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine makes a single example slow now and then; that is no failure.
settings.register_profile("driftscope", deadline=None)
settings.load_profile("driftscope")

STARTS = {
    "without_engines": "process",
    "child": "process",
    "browser": "browser",
}
"""Fixture -> the marker of every test that asks for it."""


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Wheel of each distribution, built from this checkout."""
    return build_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Spare the garbage collector what is imported and collected, which stays to the end: walking
    it takes a second each time."""
    gc.disable()
    atexit.register(gc.unfreeze)  # extension modules report what is left over as leaks
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark, order and group the tests. First, because xdist names the groups in this hook too."""
    for item in items:
        for fixture in set(STARTS).intersection(getattr(item, "fixturenames", ())):
            item.add_marker(STARTS[fixture])
    turns: dict[str, int] = {}
    for item in items:
        group = _group(item)
        item.add_marker(pytest.mark.xdist_group(group))
        turns[group] = min(_turn(item), turns.get(group, len(LONG)))
    items.sort(key=lambda item: turns[_group(item)])


LONG = ("vllm", "sglang", "process", "slow", "browser")
"""Groups with tests of these markers go first, in this order: those that wait for processes lie
beside the engines, and at the end of a session no process is left alone with a long one."""


def _group(item: pytest.Item) -> str:
    """Two processes share the tests file by file, but one runs all engines: they share fixtures and
    keep both cores busy by themselves."""
    if item.get_closest_marker("sglang"):
        return "sglang"
    return "engines" if item.get_closest_marker("vllm") else str(item.path)


def _turn(item: pytest.Item) -> int:
    return next((n for n, name in enumerate(LONG) if item.get_closest_marker(name)), len(LONG))
