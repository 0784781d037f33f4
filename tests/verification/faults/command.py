"""Run a whole command in this process, and check what no command may do whatever its input."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from support.hostile.texts import TEXTS

from driftscope.cli.app import DEBUG, main
from driftscope.errors import (
    EXIT_ERROR,
    EXIT_GATE_FAILED,
    EXIT_NO_DATA,
    EXIT_OK,
    EXIT_UNKNOWN,
    EXIT_USAGE,
)

MARKUP = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<img src=x onerror=alert(3)>",
    "<!--",
    '" onload="alert(4)',
    "[red]bold[/red]",
    "[/]",
    "| a | b |\n|---|",
    "`x`",
    "[a](javascript:alert(5))",
    "=1+1",
    '"} 1\n# EOF\n',
    '{le="1"}',
    "a,b;c\t\"d\"\r\n'e'",
    "{{7*7}} %s {0} ${HOME} $(id)",
    "../../etc/passwd",
    "--help",
    "\\",
    "nan",
    "",
    " ",
    "é漢🙂",
)
SCRIPTS = ("<script>alert(", "<img src=x onerror")
"""Beginnings of text that a browser would run if it were not escaped."""
LONG = (300, 5000, 70_000)
_FRAGMENTS = (*TEXTS.values(), *MARKUP)


def text_of(random: Random) -> str:
    """Return a sequence of fragments, a long text, or random characters."""
    kind = random.random()
    if kind < 0.1:
        return random.choice("aé\u202e<\x1b") * random.choice(LONG)
    if kind < 0.3:
        return "".join(chr(random.randrange(0x11000)) for _ in range(random.randint(1, 20)))
    return "".join(random.choice(_FRAGMENTS) for _ in range(random.randint(1, 4)))


def encodable(text: str) -> str:
    """Return `text` without lone surrogates, for a file format that cannot hold them."""
    return text.encode("utf-8", "replace").decode()


def argument_of(text: str) -> str:
    """Return `text` as a command line can hold it: no NUL, and surrogates of raw bytes only."""
    return encodable(text).replace("\0", "\udcff")[:4000]


def file_name_of(text: str) -> str:
    """Return `text` as the name of one file."""
    return argument_of(text).replace("/", "_")[:80] or "x"


CODES = frozenset({EXIT_OK, EXIT_ERROR, EXIT_USAGE, EXIT_GATE_FAILED, EXIT_NO_DATA, EXIT_UNKNOWN})
BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_ERROR = "driftscope: error: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Output and exit code of a command."""

    code: int
    out: str
    err: str


def outcome_of(
    arguments: Sequence[object], environment: Mapping[str, str] | None = None
) -> Outcome:
    """Run a command with the last resort for unforeseen errors switched off.

    Raises AssertionError for an exit code that is not documented, for output that cannot be
    encoded or steers a terminal, and for several error lines.
    """
    out, err, code = io.StringIO(), io.StringIO(), EXIT_OK
    with (
        _set(os.environ, {DEBUG: "1", **(environment or {})}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _argv(["driftscope", *map(str, arguments)]),
    ):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or EXIT_OK)
    found = Outcome(code=code, out=out.getvalue(), err=err.getvalue())
    _check(found)
    if code == EXIT_OK and "--json" in arguments and "-o" not in arguments:
        strict(found.out)
    return found


def strict(text: str) -> Any:
    """Return the value of JSON that has neither NaN nor Infinity."""
    return json.loads(text, parse_constant=_no_json)


def check_files(folder: Path) -> None:
    """Raise for a report or page of metrics in `folder` that could not be used as it is."""
    for path in folder.iterdir():
        if not path.is_file() or path.is_symlink():
            continue
        if path.suffix in (".html", ".md"):
            text = path.read_text(encoding="utf-8")
            assert not any(script in text for script in SCRIPTS), f"a script in {path.suffix}"
        elif path.suffix == ".json":
            strict(path.read_text(encoding="utf-8"))


def _check(found: Outcome) -> None:
    assert found.code in CODES, f"exit code {found.code}"
    said = found.out + found.err
    found.out.encode()  # not `err`: Python escapes on stderr what it cannot encode
    raw = {character for character in said if character not in "\n\t" and _steers(character)}
    assert not raw, f"control characters were printed raw: {sorted(raw)[:5]!a}"
    errors = [line for line in found.err.splitlines() if line.startswith(_ERROR)]
    assert len(errors) <= 1, f"several error lines: {found.err[:300]!a}"


def _steers(character: str) -> bool:
    return unicodedata.category(character) == "Cc" or character in BIDI


def _no_json(constant: str) -> None:
    raise AssertionError(f"{constant} in JSON")


@contextlib.contextmanager
def _argv(arguments: list[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, arguments
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def _set(environ: Any, values: Mapping[str, str]) -> Iterator[None]:
    before = {name: environ.get(name) for name in values}
    environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                environ.pop(name, None)
            else:
                environ[name] = value


_REPLACED = b'0123456789"[{'
_VALUES = (
    *("-1", "1e999", "9" * 40, "null", "NaN", "[]", "[" * 2000, "{}", '"x"', '"\\ud800"', "0"),
    str(2**60),
)


def damaged(content: bytes, random: Random) -> bytes:
    """Return the content with one to three of: a value replaced, a text put in, bytes changed, a
    part missing."""
    raw = bytearray(content)
    for _ in range(random.randint(1, 3)):
        random.choice((_value, _text, _flip, _cut))(raw, random)
    return bytes(raw)


def _value(raw: bytearray, random: Random) -> None:
    places = [at for at, octet in enumerate(raw) if octet in _REPLACED]
    if places:
        at = random.choice(places)
        raw[at : at + random.choice((1, 1, 3))] = random.choice(_VALUES).encode()


def _text(raw: bytearray, random: Random) -> None:
    at = random.randrange(len(raw) + 1)
    raw[at:at] = encodable(text_of(random)[:2000]).encode()


def _flip(raw: bytearray, random: Random) -> None:
    if raw:
        raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)


def _cut(raw: bytearray, random: Random) -> None:
    at = random.randrange(len(raw) + 1)
    del raw[at : at + random.choice((1, 20, len(raw)))]
