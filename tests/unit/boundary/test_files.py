"""Files, JSON and texts that cross the border of a process."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command import strict_json
from support.hostile.texts import TEXTS
from support.waiting import no_hang

from driftscope.boundary import files
from driftscope.boundary.bounds import MAX_JSON_DEPTH
from driftscope.boundary.files import (
    UnfitFileError,
    create_file,
    encodable,
    locked,
    make_private_directory,
    parse_json,
    read_bytes,
    read_json,
    write_all,
    write_file,
)
from driftscope.boundary.text import dumps, finite, key_from, output_console, redacted, shown
from driftscope.errors import UsageError


def test_a_file_beyond_its_bound_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 101)
    assert read_bytes(tmp_path / "file", limit=101) == b"x" * 101
    with pytest.raises(UnfitFileError, match="larger than 100 bytes"):
        read_bytes(tmp_path / "file", limit=100)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    """A pipe too, whose other end is not waited for."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        for path, words in (
            (tmp_path / "pipe", "is a named pipe, not a regular file"),
            (Path("/dev/zero"), "is a device"),
            (tmp_path, "is a directory"),
            (tmp_path / "s", "is a socket"),
        ):
            with pytest.raises(UnfitFileError, match=words):
                read_bytes(path)


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


def test_what_is_no_json_number_reads_as_null(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are an error."""
    (tmp_path / "file").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ValueError):
        read_json(tmp_path / "file")
    assert parse_json('{"a": NaN, "b": [-Infinity]}') == {"a": None, "b": [None]}


@given(st.text(st.characters()) | st.text(st.sampled_from("a\ud800\udfff")))
def test_every_text_that_is_read_can_be_written(text: str) -> None:
    value = parse_json(json.dumps({text: text}))
    assert list(value) == list(value.values()) == [encodable(text)]
    encodable(text).encode()


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """A link is followed, and stays a link."""
    path, link = tmp_path / "report.html", tmp_path / "link"
    link.symlink_to("report.html")
    for written in (path, path, link):
        write_file(written, bytes(written))
        assert path.read_bytes() == bytes(written)
    assert link.is_symlink() and set(tmp_path.iterdir()) == {path, link}


def test_a_pipe_is_written_in_place(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_file(pipe, b"content")
    reader.join(10)
    assert read == [b"content"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_pipe_that_nobody_reads_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "WAIT_S", 0.1)
    os.mkfifo(tmp_path / "pipe")
    with no_hang(), pytest.raises(OSError, match="no process reads this pipe") as caught:
        write_file(tmp_path / "pipe", b"content")
    assert caught.value.filename == str(tmp_path / "pipe")


def test_a_file_of_the_longest_name(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 125 + ".html")
    write_file(path, b"content")
    assert path.read_bytes() == b"content"


def test_a_whole_number_beyond_every_float_is_infinite() -> None:
    assert files.parse_json('{"a": 1' + "0" * 400 + ', "b": 1e999, "c": 12345678901234567890}') == {
        "a": math.inf,
        "b": math.inf,
        "c": 12345678901234567890,
    }


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

    monkeypatch.setattr(files, "write_all", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_file(path, b"new")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_new_file_is_the_owners_and_never_through_a_link(tmp_path: Path) -> None:
    """And a directory."""
    victim, folder = tmp_path / "victim", tmp_path / "runs" / "one"
    victim.write_bytes(b"mine")
    (tmp_path / "planted").symlink_to("victim")
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "planted")
    os.close(create_file(tmp_path / "new"))
    for _ in range(2):
        make_private_directory(folder)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new", folder)]
    assert (victim.read_bytes(), modes) == (b"mine", [0o600, 0o700])
    with pytest.raises(NotADirectoryError):
        make_private_directory(victim)


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


HOLDER = """
import sys, time
from pathlib import Path
from driftscope.boundary.files import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.mark.process
def test_another_process_waits_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
        with no_hang(), pytest.raises(TimeoutError, match="long"), locked(tmp_path, 0.2):
            pass
        holder.kill()
        holder.wait()
        with locked(tmp_path, 0.2):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int, _how: int) -> None:
        raise OSError(errno.EBADF, "as NFS has it for a directory")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path):
        pass
    with pytest.raises(FileNotFoundError), locked(tmp_path / "none"):
        pass


ROOT = Path(__file__).parents[3]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_written_a_strict_parser_reads(value: Any) -> None:
    assert strict_json(dumps(value)) == finite(value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_finite_number_is_null(number: float) -> None:
    written = dumps({"a": [number, 1.5], "b": (number,)}, sort_keys=True)
    assert written == '{"a": [null, 1.5], "b": [null]}'


def test_everything_goes_through_here() -> None:
    """No other module of driftscope or its reports calls json.dumps."""
    sources = [*(ROOT / "driftscope").rglob("*.py"), *(ROOT / "reports").rglob("*.py")]
    own = ROOT / "driftscope" / "boundary" / "text.py"
    calls = re.compile(r"(?<![\w.])json\.dumps?\(")
    found = [p for p in sources if p != own and calls.search(p.read_text(encoding="utf-8"))]
    assert not found


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_no_text_steers_a_terminal(text: str) -> None:
    found = shown(text)
    found.encode("utf-8")
    steering = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    steering |= {"Cc", "Cs", "Zl", "Zp"}
    for sign in found:
        assert not {unicodedata.category(sign), unicodedata.bidirectional(sign)} & steering


def test_what_was_there_can_be_read_what_cannot_be_seen_is_shown_and_joiners_stay() -> None:
    assert shown("a\x1b[2J\x00\x9b\x7f") == r"a\x1b[2J\x00\x9b\x7f"
    assert shown("\u202efdp.exe\ud800\u061c\u200f") == r"\u202efdp.exe\ud800\u061c\u200f"
    assert shown("run\u200b\ufeff\xad\U000e0041") == r"run\u200b\ufeff\xad\U000e0041"
    assert shown("👩\u200d🔬 می\u200cخواهم") == "👩\u200d🔬 می\u200cخواهم"


@given(st.text())
def test_it_changes_nothing_twice(text: str) -> None:
    assert shown(shown(text)) == shown(text)


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs", "M"])))
def test_ordinary_text_stays(text: str) -> None:
    assert shown(text) == text


KEY = "sk-0123456789abcdefghij"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"invalid key: Bearer {KEY}", "invalid key: Bearer ***"),
        (f"key {KEY!r}", "key '***'"),
        (f"{KEY}{KEY} and {KEY}", "*** and ***"),
        (f"key {KEY[:12]}... is wrong", "key ***... is wrong"),
        (f"it ends in {KEY[-9:]}", "it ends in ***"),
        ("Authorization: basic bWU6cHc=", "Authorization: basic ***"),
        ('{"auth":"Bearer another-one"}', '{"auth":"Bearer ***"}'),
        ("nothing to hide, sk-0123", "nothing to hide, sk-0123"),
        ("", ""),
    ],
)
def test_whole_and_in_part(text: str, left: str) -> None:
    assert redacted(text, [KEY]) == left


def test_short_and_quoted_secrets() -> None:
    assert redacted("the word is pw", ["pw"]) == "the word is ***"
    assert redacted("x?key=a%2Fb%20c", ["a/b c"]) == "x?key=***"
    assert redacted("nothing", [""]) == "nothing"


@given(st.text(), st.text(min_size=1), st.text())
def test_no_secret_is_left(before: str, secret: str, after: str) -> None:
    found = redacted(before + secret + after, [secret])
    assert secret not in found or secret in "Bearer *** Basic"


def test_a_key_comes_from_the_environment() -> None:
    assert key_from("MINE", {"MINE": f"{KEY}\n"}) == KEY
    words = "MINE: --api-key-env names this environment variable, but it is not set"
    with pytest.raises(UsageError, match=words):
        key_from("MINE", {})
    for value in ("two words", "caf\xe9", "a\x00b"):
        with pytest.raises(UsageError) as caught:
            key_from("MINE", {"MINE": value})
        assert value not in str(caught.value)


@pytest.mark.parametrize("stderr", [False, True])
@pytest.mark.parametrize(("columns", "width"), [(None, 160), ("80", 80), ("wide", 160)])
def test_a_pipe_is_as_wide_as_the_command_likes_unless_its_reader_says(
    monkeypatch: pytest.MonkeyPatch, columns: str | None, width: int, stderr: bool
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    assert output_console(160, stderr=stderr).width == width
