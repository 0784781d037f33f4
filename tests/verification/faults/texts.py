"""Random texts that steer terminals, break markup, forge lines or cannot be encoded."""

from __future__ import annotations

from random import Random

from support.hostile.texts import TEXTS

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
