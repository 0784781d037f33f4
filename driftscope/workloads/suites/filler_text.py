"""Filler text for prompts, composed of parts that were written for driftscope; seeded, not random.

It reads as plausible prose and contains nothing that an answer needs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import yaml

from driftscope.boundary import strict_json

WORDS: Mapping[str, Any] = yaml.safe_load(
    (files("driftscope.workloads") / "filler_text.yaml").read_text("utf-8")
)
"""Lists of the parts by name."""


def document(characters: int, source: random.Random) -> str:
    """Return a paragraph of about `characters` characters, at most one sentence longer."""
    out: list[str] = []
    while sum(map(len, out)) + len(out) < characters:
        parts = [source.choice(WORDS[name]) for name in ("who", "did", "what", "when")]
        sentence = " ".join(parts)
        out.append(f"{sentence[0].upper()}{sentence[1:]}.")
        if source.random() < 0.3:
            out.append(source.choice(WORDS["then"]))
    return " ".join(out)


def policy(characters: int) -> str:
    """Return a long text of house rules, the same on every call."""
    source, out = random.Random("policy"), ["You work for a help desk. These are its rules."]
    while sum(map(len, out)) + len(out) < characters:
        number, rule = len(out), source.choice(WORDS["rules"])
        out.append(f"{number}. {rule} Background: {document(120, source)}")
    return "\n".join(out)


def note(source: random.Random) -> tuple[str, str]:
    """Return a needle: its subject, and the sentence that states it."""
    what = f"locker {source.randrange(100, 1000)}"
    return what, f"Remember that {what} has the code {source.randrange(10_000, 100_000)}."


def diff(source: random.Random) -> str:
    """Return a change to a file in the format of git."""
    path, line = source.choice(WORDS["files"]), source.randrange(10, 400)
    a, b, c = source.sample(WORDS["names"], 3)
    return (
        f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
        f"@@ -{line},7 +{line},9 @@ def advance(self, {a}: int) -> int:\n"
        f'     if {a} <= 0:\n         raise ValueError("{a} must be positive")\n'
        f"-    self.{b} += {a}\n+    with self._lock:\n+        self.{b} += {a}\n"
        f"+        self.{c} = max(self.{c}, self.{b})\n     return self.{b}\n"
    )


def stack_trace(source: random.Random) -> str:
    """Return an error in the format of Python."""
    a, b = source.sample(WORDS["names"], 2)
    frames = "".join(
        f'  File "/srv/app/{path}", line {source.randrange(20, 600)}, in {name}\n'
        f"    {a} = self.{b}.{name}({a})\n"
        for path, name in zip(
            source.sample(WORDS["files"], 3), ("run", "advance", "commit"), strict=True
        )
    )
    return (
        f"FAILED tests/test_{a}.py::test_{b} - KeyError\nTraceback (most recent call last):\n"
        f"{frames}KeyError: '{b}_{source.randrange(100)}'\n1 failed, 41 passed in 2.8s\n"
    )


def json_result(source: random.Random) -> str:
    """Return rows of a ticket store as JSON."""
    rows = [
        {
            "id": source.randrange(1000, 9999),
            "title": f"{source.choice(WORDS['who'])}: {source.choice(WORDS['what'])}",
            "open": source.random() < 0.5,
            "hours": round(source.uniform(0.1, 40), 2),
        }
        for _ in range(5)
    ]
    return strict_json.dumps({"rows": rows, "next": None}, indent=1)


def shell(source: random.Random) -> str:
    """Return a directory listing and an exit status in the format of a shell."""
    files = "".join(
        f"-rw-r--r-- 1 app app {source.randrange(200, 90_000):>6} Mar {source.randrange(1, 29):>2} "
        f"{source.randrange(24):02}:{source.randrange(60):02} {path}\n"
        for path in WORDS["files"]
    )
    return f"$ ls -l\ntotal {source.randrange(40, 400)}\n{files}$ echo $?\n0\n"
