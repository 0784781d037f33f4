"""Blanks the kernels in a shared object that a given GPU never runs.

A CUDA shared object holds, per source file, one "fat binary": a header and one entry per GPU
architecture, of which the driver loads the one that fits. Zeros in place of the others' code
compress to nothing; headers, sizes and every offset stay, so that the choice is as before. Such
debloating is described and tested on ML frameworks in Zhang and Ali-Eldin, "The Hidden Bloat in
Machine Learning Systems" (MLSys 2025).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = b"\x50\xed\x55\xba"
HEADER = struct.Struct("<4sHHQ")  # magic, version, header bytes, bytes of all entries
ENTRY = struct.Struct("<HHIQ")  # kind, -, header bytes, payload bytes
ARCH_AT = 28  # bytes into an entry: 90 for sm_90 and sm_90a
PTX, ELF = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One architecture's code inside a fat binary; offsets are from the file's start."""

    kind: int
    arch: int
    start: int
    size: int


def blank(binary: bytearray, arch: int) -> int:
    """Zero what a GPU of this architecture never loads; the number of bytes zeroed.

    Raises ValueError if an entry runs past its fat binary: the file is then not as described.
    """
    return sum(_blank_one(binary, entries, arch) for entries in _fat_binaries(binary))


def loadable(entry: Entry, arch: int) -> bool:
    """Machine code of the same major version up to this minor one, or PTX no newer than the GPU."""
    if entry.kind == ELF:
        return entry.arch // 10 == arch // 10 and entry.arch <= arch
    return entry.arch <= arch


def _blank_one(binary: bytearray, entries: list[Entry], arch: int) -> int:
    # PTX stays even beside machine code: a driver that finds the latter unfit falls back to it.
    rest = [entry for entry in entries if not loadable(entry, arch)]
    for entry in rest:
        binary[entry.start : entry.start + entry.size] = bytes(entry.size)
    return sum(entry.size for entry in rest)


def _fat_binaries(binary: bytearray) -> Iterator[list[Entry]]:
    at = binary.find(MAGIC)
    while at >= 0:
        _, version, header, size = HEADER.unpack_from(binary, at)
        # The same four bytes also stand in code that refers to fat binaries.
        if (version, header) == (1, HEADER.size) and at + header + size <= len(binary):
            yield list(_entries(binary, at + header, at + header + size))
            at += size
        at = binary.find(MAGIC, at + 4)


def _entries(binary: bytearray, at: int, end: int) -> Iterator[Entry]:
    while at < end:
        kind, _, header, size = ENTRY.unpack_from(binary, at)
        (arch,) = struct.unpack_from("<I", binary, at + ARCH_AT)
        if kind not in (PTX, ELF) or at + header + size > end:
            raise ValueError(f"no fat binary entry at byte {at}: kind {kind}, {size} bytes")
        yield Entry(kind=kind, arch=arch, start=at + header, size=size)
        at += header + size
