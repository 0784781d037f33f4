"""Width of what a command prints into a pipe."""

from __future__ import annotations

import pytest

from driftscope.boundary.output_console import output_console


def test_a_pipe_is_as_wide_as_the_command_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert output_console(160).width == 160


@pytest.mark.parametrize("stderr", [False, True])
def test_a_reader_s_width_counts(monkeypatch: pytest.MonkeyPatch, stderr: bool) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert output_console(160, stderr=stderr).width == 80


def test_a_width_that_is_none_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "wide")
    assert output_console(140).width == 140
