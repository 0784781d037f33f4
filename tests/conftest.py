"""Settings of every test."""

import os
import signal

import pytest
from hypothesis import settings

# Two processes on two cores: with more threads each would wait for the other's.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A script that starts the tests in the background has them ignore it, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine makes a single example slow now and then; that is no failure.
settings.register_profile("driftscope", deadline=None)
settings.load_profile("driftscope")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two processes share the tests file by file, but one runs all engines: they share fixtures and
    keep both cores busy by themselves. First, because xdist names the groups in this hook too."""
    for item in items:
        engine = item.get_closest_marker("vllm") is not None
        item.add_marker(pytest.mark.xdist_group("engines" if engine else str(item.path)))
