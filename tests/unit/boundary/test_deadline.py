"""One limit of time holds for work of several parts."""

from __future__ import annotations

import time

import pytest

from driftscope.boundary.deadline import Deadline, within


def test_work_that_ends_in_time() -> None:
    assert within(Deadline(5), lambda: "done") == "done"
    assert within(Deadline(5), lambda: None) is None


def test_an_error_is_raised_to_who_waits() -> None:
    def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        within(Deadline(5), fails)


def test_work_that_does_not_end() -> None:
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        within(Deadline(0.1), lambda: time.sleep(2))
    assert time.monotonic() - begun < 1


def test_the_time_left() -> None:
    deadline = Deadline(0.05)
    assert 0 < deadline.left_s() <= 0.05
    time.sleep(0.06)
    with pytest.raises(TimeoutError):
        deadline.left_s()
