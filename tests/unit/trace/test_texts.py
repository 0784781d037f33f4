"""Texts that a replay keeps on request: private, bounded and safe to show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from driftscope.trace.texts import SHOWN_ANSWER, SHOWN_PROMPT, TEXTS, TextFile, read_texts

LINE: dict[str, Any] = {"response": "a", "prompt": "Why?", "answer": ["So", "."], "by_round": True}


def _read(folder: Path, *lines: bytes) -> tuple[tuple[str, tuple[str, ...]], str | None]:
    (folder / TEXTS).write_bytes(b"".join(line + b"\n" for line in lines))
    texts, problem = read_texts(folder, {"a"})
    return (texts["a"].prompt, texts["a"].answer), problem


def _line(**values: Any) -> bytes:
    return json.dumps({**LINE, **values}).encode()


def test_what_is_written_is_read_and_only_its_owner_can(tmp_path: Path) -> None:
    file = TextFile(tmp_path)
    file.put(LINE)
    file.put({**LINE, "response": "b"})
    file.close()
    assert (tmp_path / TEXTS).stat().st_mode & 0o777 == 0o600 and file.lost == 0
    texts, problem = read_texts(tmp_path, {"a"})
    assert set(texts) == {"a"} and problem is None
    assert texts["a"].answer == ("So", ".")


@pytest.mark.parametrize(
    ("values", "prompt", "answer"),
    [
        ({"by_round": False}, "Why?", ("So.",)),
        ({"prompt": [{"role": "user", "content": "Hi"}]}, "user: Hi", ("So", ".")),
        (
            {"prompt": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
            'user: {"role": "user", "content": [{"type": "text", "text": "Hi"}]}',
            ("So", "."),
        ),
        (
            {"answer": ["\x1b[2J\u202e\x00", "a\r\nb\tc"]},
            "Why?",
            (r"\x1b[2J\u202e\x00", "a\nb   c"),
        ),
        ({"answer": ["\ud800"]}, "Why?", ("\ufffd",)),
        ({"answer": []}, "Why?", ()),
        ({"answer": [""] * 5_000}, "Why?", ("",) * SHOWN_ANSWER),
        (
            {"answer": ["x" * 1_000_000], "prompt": "y" * 1_000_000},
            "y" * (SHOWN_PROMPT // 2) + " [… 998,000 characters …] " + "y" * (SHOWN_PROMPT // 2),
            ("x" * SHOWN_ANSWER + " [… 996,000 more characters]",),
        ),
        (
            {"answer": ["x"] * 5_000},
            "Why?",
            (*["x"] * (SHOWN_ANSWER - 1), "x [… 1,000 more characters]"),
        ),
    ],
)
def test_texts_are_shown_safely_and_cut(
    tmp_path: Path, values: dict[str, Any], prompt: str, answer: tuple[str, ...]
) -> None:
    assert _read(tmp_path, _line(**values)) == ((prompt, answer), None)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\xff",
        b"{",
        b"7",
        b"[" * 100_000,
        b'{"response": "a"}',
        _line(response=["a"]),
        _line(response="a", answer=7),
        _line(response="a", answer=[7]),
        _line(response="a", prompt=[7]),
        _line(response="a", prompt=7),
    ],
)
def test_a_damaged_line_costs_that_line(tmp_path: Path, damaged: bytes) -> None:
    texts, problem = _read(tmp_path, damaged, _line())
    assert texts == ("Why?", ("So", "."))
    assert problem == f"{TEXTS} has 1 damaged line, which is left out"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    texts, problem = read_texts(tmp_path, {"a"})
    assert not texts
    assert problem is not None and TEXTS in problem and "No such file" in problem
    (tmp_path / TEXTS).symlink_to("/etc/passwd")
    texts, problem = read_texts(tmp_path, {"a"})
    assert not texts
    assert problem is not None and "symbolic link" in problem
