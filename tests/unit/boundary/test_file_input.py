"""The one door for reading: what is no regular file, or too large, is refused, never awaited."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftscope.boundary.bounds import MAX_JSON_DEPTH
from driftscope.boundary.file_input import (
    UnfitFileError,
    encodable,
    parse_json,
    read_bytes,
    read_json,
)


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert read_bytes(path, limit=100) == b"x" * 100


def test_a_file_beyond_its_bound_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 101)
    with pytest.raises(UnfitFileError, match="larger than 100 bytes"):
        read_bytes(path, limit=100)


def test_a_pipe_is_refused_without_waiting_for_its_other_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(UnfitFileError, match="is a named pipe, not a regular file"):
        read_bytes(path)


def test_a_device_a_directory_and_a_socket_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnfitFileError, match="is a device"):
        read_bytes("/dev/zero")
    with pytest.raises(UnfitFileError, match="is a directory"):
        read_bytes(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(UnfitFileError, match="is a socket"):
            read_bytes(tmp_path / "s")


def test_a_link_is_followed_only_where_that_is_safe(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_bytes(tmp_path / "link") == b"content"
    with pytest.raises(UnfitFileError, match="symbolic link"):
        read_bytes(tmp_path / "link", follow=False)


def test_json_nested_too_deep_is_refused(tmp_path: Path) -> None:
    deep = "[" * (MAX_JSON_DEPTH + 1) + "]" * (MAX_JSON_DEPTH + 1)
    for text in (deep, "[" * 100_000 + "]" * 100_000):
        with pytest.raises(ValueError, match="nested deeper"):
            parse_json(text)
    assert parse_json(deep[1:-1]) is not None


def test_what_is_no_json_number_reads_as_null() -> None:
    assert parse_json('{"a": NaN, "b": [-Infinity]}') == {"a": None, "b": [None]}


@given(st.text(st.characters()) | st.text(st.sampled_from("a\ud800\udfff")))
def test_every_text_that_is_read_can_be_written(text: str) -> None:
    value = parse_json(json.dumps({text: text}))
    assert list(value) == list(value.values()) == [encodable(text)]
    encodable(text).encode()


def test_a_file_that_is_no_utf8_is_a_value_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ValueError):
        read_json(path)
