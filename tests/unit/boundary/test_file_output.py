"""The one door for writing: whole or not at all, and never something else than what was named."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from driftscope.boundary import file_output
from driftscope.boundary.file_output import (
    create_file,
    make_private_directory,
    write_all,
    write_file,
)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_file(path, b"first")
    write_file(path, b"second")
    assert path.read_bytes() == b"second"
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    write_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


def test_a_pipe_is_written_in_place(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_file(pipe, b"content")
    reader.join(10)
    assert read == [b"content"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser makes devices")
def test_a_device_stays_a_device(tmp_path: Path) -> None:
    null = tmp_path / "null"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        null.write_bytes(b"")
    except OSError as error:
        pytest.skip(f"no devices can be made here: {error}")
    write_file(null, b"report")
    assert stat.S_ISCHR(null.stat().st_mode)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    write_file(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file_output, "write_all", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_a_new_file_is_the_owners_and_never_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / "planted").symlink_to("victim")
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "planted")
    os.close(create_file(tmp_path / "new"))
    assert (victim.read_bytes(), mode_of(tmp_path / "new")) == (b"mine", 0o600)


def test_a_directory_is_the_owners(tmp_path: Path) -> None:
    make_private_directory(tmp_path / "runs" / "one")
    make_private_directory(tmp_path / "runs" / "one")
    assert mode_of(tmp_path / "runs" / "one") == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_private_directory(tmp_path / "file")


def test_every_byte_is_written_though_a_pipe_takes_few_at_a_time() -> None:
    out, into = os.pipe()
    content = os.urandom(1 << 18)
    received = list[bytes]()

    def drain() -> None:
        while part := os.read(out, 4096):
            received.append(part)

    reader = threading.Thread(target=drain)
    reader.start()
    write_all(into, [content[:10], memoryview(content)[10:], b""])
    os.close(into)
    reader.join(10)
    os.close(out)
    assert b"".join(received) == content
