"""Which wheels a package needs beyond what a host has, and fetching them with pip."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

PYTHON = (3, 12)
# pip matches the minor version exactly, so every glibc from the oldest wheel's to the host's.
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(39, 4, -1)] + [
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
]
MARKERS = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.12.3",
    "python_version": "3.12",
    "sys_platform": "linux",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A version, carried or the host's, that one of the carried wheels did not ask for."""

    wanted_by: str
    requirement: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The closure of some requirements: what travels, what does not, what disagrees."""

    wheels: tuple[Path, ...]
    skipped: tuple[str, ...]
    conflicts: tuple[Conflict, ...]
    # What is asked of the host's packages, by who asks: install.py compares it there.
    of_host: tuple[tuple[str, str], ...]


def read_host(path: Path) -> dict[str, str | None]:
    """Distribution name to version, None where the list gives no version."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    pairs = (line.partition("==") for line in lines if line)
    return {canonicalize_name(name): version or None for name, _, version in pairs}


def resolve(
    roots: Collection[Requirement],
    host: Mapping[str, str | None],
    skip: Collection[str],
    cache: Path,
) -> Needs:
    """Every wheel that the roots need, those of the host and the skipped left aside.

    Breadth first and without backtracking: the first requirement on a name decides its version,
    so a root that pins it does.
    """
    wheels: dict[str, Path] = {}
    skipped: set[str] = set()
    asked_for: list[tuple[str, Requirement]] = []
    level = [("the roots", root) for root in roots]
    while level:
        fresh: dict[str, Requirement] = {}
        asked_for += level
        for _, need in level:
            name = canonicalize_name(need.name)
            if name in skip:
                skipped.add(name)
            elif name not in host and name not in wheels:
                fresh.setdefault(name, need)
        wheels |= _fetch(fresh, cache)
        level = [
            (name, need)
            for name, asked in fresh.items()
            for need in requirements(wheels[name], asked.extras)
        ]
    return Needs(
        wheels=tuple(wheels[name] for name in sorted(wheels)),
        skipped=tuple(sorted(skipped)),
        conflicts=tuple(_conflicts(asked_for, {**host, **_versions(wheels)})),
        of_host=tuple(
            (wanted_by, f"{need.name}{need.specifier}")
            for wanted_by, need in asked_for
            if need.specifier and canonicalize_name(need.name) in host
        ),
    )


def requirements(wheel: Path, extras: Collection[str] = ()) -> Iterator[Requirement]:
    """What a wheel's metadata asks for on the host's Python, these extras included."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    for line in metadata.get_all("Requires-Dist", []):
        need = Requirement(line)
        environments = [{**MARKERS, "extra": extra} for extra in ("", *extras)]
        if need.marker is None or any(need.marker.evaluate(e) for e in environments):
            yield need


def _conflicts(
    asked_for: Collection[tuple[str, Requirement]], versions: Mapping[str, str | None]
) -> Iterator[Conflict]:
    for wanted_by, need in asked_for:
        version = versions.get(canonicalize_name(need.name))
        if version is not None and not need.specifier.contains(version, prereleases=True):
            yield Conflict(wanted_by=wanted_by, requirement=str(need), version=version)


def _versions(wheels: Mapping[str, Path]) -> dict[str, str]:
    return {name: str(parse_wheel_filename(wheel.name)[1]) for name, wheel in wheels.items()}


def _fetch(needs: Mapping[str, Requirement], cache: Path) -> dict[str, Path]:
    """One pip call for those that the cache lacks."""
    cache.mkdir(parents=True, exist_ok=True)
    missing = [need for name, need in needs.items() if _cached(name, need, cache) is None]
    if missing:
        wanted = [f"{need.name}{need.specifier}" for need in missing]
        platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--only-binary=:all:",
                "--implementation",
                "cp",
                "--python-version",
                ".".join(map(str, PYTHON)),
                *platforms,
                "--dest",
                str(cache),
                *wanted,
            ],
            check=True,
        )
    found = {name: _cached(name, need, cache) for name, need in needs.items()}
    return {name: wheel for name, wheel in found.items() if wheel is not None}


def _cached(name: str, need: Requirement, cache: Path) -> Path | None:
    tags = {*cpython_tags(PYTHON, platforms=PLATFORMS)}
    tags |= {*compatible_tags(PYTHON, interpreter="cp312", platforms=PLATFORMS)}
    for wheel in sorted(cache.glob("*.whl")):
        found, version, _, wheel_tags = parse_wheel_filename(wheel.name)
        if found == name and need.specifier.contains(version) and wheel_tags & tags:
            return wheel
    return None
