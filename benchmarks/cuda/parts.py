"""A folder as one xz stream in parts of a given size, with a manifest of their checksums."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
from pathlib import Path
from typing import IO, Any

MANIFEST = "parts.json"
XZ = ["xz", "-T2", "--check=crc32", "--stdout"]
MOST_BYTES = 60_000_000
"""A part has to stay below this to travel in one transfer."""


def write_parts(
    folder: Path, out: Path, part_bytes: int, strength: str, facts: dict[str, Any]
) -> list[Path]:
    """Write part-00, part-01, ... and the manifest, the same bytes for the same tree.

    `strength` is one of xz's options from -0 to -9e.
    """
    out.mkdir(parents=True, exist_ok=True)
    command = [*XZ, strength]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=(out / "stream").open("wb")) as xz:
        assert xz.stdin is not None
        _tar(folder, xz.stdin)
        xz.stdin.close()
    if xz.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {xz.returncode}")
    parts = _split(out / "stream", part_bytes)
    (out / "stream").unlink()
    _write_manifest(out / MANIFEST, parts, facts)
    return parts


def faults(folder: Path) -> list[str]:
    """What is wrong with the parts of a manifest in `folder`, a line each; nothing is unpacked."""
    found = []
    for row in json.loads((folder / MANIFEST).read_text())["parts"]:
        path = folder / row["name"]
        if not path.is_file():
            found.append(f"{path}: missing")
        elif path.stat().st_size != row["bytes"] or sha256(path) != row["sha256"]:
            found.append(f"{path}: not the part that the manifest names")
        elif row["bytes"] >= MOST_BYTES:
            found.append(f"{path}: {row['bytes']} bytes, {MOST_BYTES} or more")
    return found


def _tar(folder: Path, out: IO[bytes]) -> None:
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        # By suffix first: alike content side by side compresses better.
        for path in sorted(
            (p for p in folder.rglob("*") if p.is_file()), key=lambda p: (p.suffix, p.as_posix())
        ):
            archive.add(path, path.relative_to(folder).as_posix(), filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the packing machine's clock and users."""
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.name.endswith(".so") else 0o644
    return member


def _split(stream: Path, part_bytes: int) -> list[Path]:
    parts: list[Path] = []
    with stream.open("rb") as source:
        while content := source.read(part_bytes):
            parts.append(stream.with_name(f"part-{len(parts):02d}"))
            parts[-1].write_bytes(content)
    return parts


def _write_manifest(path: Path, parts: list[Path], facts: dict[str, Any]) -> None:
    rows = [
        {"name": part.name, "bytes": part.stat().st_size, "sha256": sha256(part)} for part in parts
    ]
    path.write_text(json.dumps({**facts, "parts": rows}, indent=1, sort_keys=True) + "\n")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
