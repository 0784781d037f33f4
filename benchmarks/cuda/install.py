"""Assembles pack.py's parts on the offline host, into a folder for PYTHONPATH.

python3 benchmarks/cuda/install.py keep CARRIED      copy what this call carried to /tmp/parts
python3 benchmarks/cuda/install.py assemble          check, then unpack into /tmp/site

Parts may come in several calls and in any order; one that is already there and whole is not copied
again. Standard library only, but for `packaging`, which compares versions if it is there.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import io
import json
import lzma
import shutil
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MANIFEST = "parts.json"
REPO = Path(__file__).resolve().parents[2]
# In this order on PYTHONPATH, relative to the repository.
SOURCES = (".", "probes", "reports", "lab")

ENVIRONMENT = {
    # FlashInfer is not carried, and vLLM's sampler imports it unless told not to.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


class Chain(io.RawIOBase):
    """The parts read as one file."""

    def __init__(self, parts: list[Path]) -> None:
        super().__init__()
        self._files = (part.open("rb") for part in parts)
        self._file = next(self._files)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not (count := self._file.readinto(buffer)):
            self._file.close()
            following = next(self._files, None)
            if following is None:
                return 0
            self._file = following
        return count


def keep(carried: Path, parts: Path) -> None:
    """Copy the manifest and each whole part that is not yet there."""
    if not (carried / MANIFEST).is_file():
        sys.exit(f"{carried} has no {MANIFEST}: carry it together with each part")
    parts.mkdir(parents=True, exist_ok=True)
    if _read(parts / MANIFEST) not in (None, _read(carried / MANIFEST)):
        sys.exit(f"{parts} holds parts of another pack: remove that folder first")
    shutil.copyfile(carried / MANIFEST, parts / MANIFEST)
    for row in _rows(carried):
        source, kept = carried / row["name"], parts / row["name"]
        if source.is_file() and _fault(row, kept):
            if fault := _fault(row, source):
                sys.exit(f"{source} is {fault}: carry it again")
            # Renamed when whole, so that an interrupted copy is never taken for a part.
            shutil.copyfile(source, kept.with_suffix(".partial"))
            kept.with_suffix(".partial").replace(kept)
    _tell_kept(parts)


def assemble(parts: Path, site: Path) -> None:
    """Unpack the parts into `site`, whole or not at all, and announce the repository's plugin."""
    faults = [f"{row['name']} is {fault}" for row in _rows(parts) if (fault := _kept(row, parts))]
    if faults:
        sys.exit(f"cannot assemble from {parts}: {', '.join(faults)}")
    manifest = hashlib.sha256((parts / MANIFEST).read_bytes()).hexdigest()
    if _stamp(site) != manifest:
        _unpack([parts / row["name"] for row in _rows(parts)], site, manifest)
    announce(site)
    for line in disagreements(json.loads((parts / MANIFEST).read_text())["of_host"]):
        print(line, file=sys.stderr)
    print(f"{site} is ready. Next:", file=sys.stderr)
    print(f"export PYTHONPATH={':'.join([str(site), *(str(REPO / s) for s in SOURCES)])}")
    for name, value in ENVIRONMENT.items():
        print(f"export {name}={value}")


def announce(site: Path) -> None:
    """What an editable install would leave: vLLM finds plugins by their distribution's metadata."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    name = project["name"]
    # Its version is in its code, which this need not import.
    folder = site / f"{name}-0.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    (folder / "entry_points.txt").write_text("\n".join(_ini(groups)) + "\n")


def disagreements(of_host: list[list[str]]) -> Iterator[str]:
    """Where this host's packages are not what the packed ones ask for; often harmless."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        yield "versions not compared: `packaging` is missing"
        return
    for wanted_by, line in of_host:
        need = Requirement(line)
        try:
            version = importlib.metadata.version(need.name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{wanted_by} wants {line}, which is not installed"
            continue
        if not need.specifier.contains(version, prereleases=True):
            yield f"{wanted_by} wants {line}, found {version}"


def _ini(groups: dict[str, dict[str, str]]) -> Iterator[str]:
    for group, points in groups.items():
        yield f"[{group}]"
        yield from (f"{name} = {target}" for name, target in points.items())


def _unpack(parts: list[Path], site: Path, manifest: str) -> None:
    fresh = site.with_name(site.name + ".partial")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    with (
        lzma.open(io.BufferedReader(Chain(parts), 1 << 20)) as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        archive.extractall(fresh, filter="data")
    (fresh / "pack.sha256").write_text(manifest)
    shutil.rmtree(site, ignore_errors=True)
    fresh.rename(site)


def _stamp(site: Path) -> str | None:
    path = site / "pack.sha256"
    return path.read_text() if path.is_file() else None


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _rows(folder: Path) -> list[dict[str, Any]]:
    if not (folder / MANIFEST).is_file():
        sys.exit(f"{folder} has no {MANIFEST}: run `keep` first")
    rows: list[dict[str, Any]] = json.loads((folder / MANIFEST).read_text())["parts"]
    return rows


def _kept(row: dict[str, Any], parts: Path) -> str | None:
    return _fault(row, parts / row["name"])


def _fault(row: dict[str, Any], path: Path) -> str | None:
    """What is wrong with this part, None if it is whole."""
    if not path.is_file():
        return "missing"
    if path.stat().st_size != row["bytes"]:
        return f"damaged ({path.stat().st_size} bytes of {row['bytes']})"
    with path.open("rb") as file:
        whole = hashlib.file_digest(file, "sha256").hexdigest() == row["sha256"]
    return None if whole else "damaged (its sha256 differs)"


def _tell_kept(parts: Path) -> None:
    rows = _rows(parts)
    faults = {row["name"]: fault for row in rows if (fault := _kept(row, parts))}
    print(f"{parts}: {len(rows) - len(faults)} of {len(rows)} parts", file=sys.stderr)
    for name, fault in faults.items():
        print(f"  {name} is {fault}", file=sys.stderr)
    if not faults:
        print("Next: install.py assemble", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", type=Path, default=Path("/tmp/parts"))
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("keep").add_argument("carried", type=Path, help="folder with parts")
    to = commands.add_parser("assemble")
    to.add_argument("--site", type=Path, default=Path("/tmp/site"))
    options = parser.parse_args()
    if options.command == "keep":
        keep(options.carried, options.parts)
    else:
        assemble(options.parts, options.site)


if __name__ == "__main__":
    main()
