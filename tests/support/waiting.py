"""Wait for what happens in another thread or process, and find a port for it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def until(is_so: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Return when a condition holds; fail the test after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


@contextmanager
def no_hang(limit_s: float = 30.0) -> Iterator[None]:
    """Fail the test if what is inside takes many times what it takes on a slow machine: give it so
    much to do that what grows faster than its input, or waits for ever, takes longer still."""
    deadline = time.monotonic() + limit_s
    yield
    assert time.monotonic() < deadline, "took too long"


def free_port() -> int:
    """Return a TCP port of this machine on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
