"""A digest of a model's weights that is cheap enough to compute at every start.

The files may be hundreds of gigabytes, so only a sample of each tensor's bytes is read. Training
changes every tensor throughout, and a changed table or flag-dependent norm is a separate tensor, so
other weights change the sample.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

_SAMPLE_BYTES = 4096
"""Number of bytes read from each end of a tensor: one page."""
_MOST_TENSORS = 1024
"""Number of a file's tensors that are sampled, spread evenly. It bounds the start-up time on a slow
file system. A dense model of 70 billion parameters has 723 tensors in 30 files."""
_MOST_HEADER_BYTES = 100_000_000
"""Limit defined by the safetensors format."""
_DIGITS = 16


def weights_digest(model: str, revision: str | None = None) -> str | None:
    """Return a digest of the safetensors files of `model`, a directory or a cached repository.

    Return None if this machine has none or if they cannot be read: a start never fails because of
    the digest, and nothing is downloaded.
    """
    try:
        folder = _folder(model, revision)
        files = sorted(folder.glob("*.safetensors")) if folder is not None else []
        if not files:
            return None
        digest = hashlib.sha256()
        for path in files:
            for part in _parts(path):
                digest.update(part)
    except Exception:  # unreadable model files must not prevent an engine from starting
        return None
    return digest.hexdigest()[:_DIGITS]


def _folder(model: str, revision: str | None) -> Path | None:
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(model, "config.json", revision=revision)
    return Path(config).parent if isinstance(config, str) else None


def _parts(path: Path) -> Iterator[bytes]:
    """Yield the header, the size and the sampled bytes of one file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"{path}: not a safetensors file")
        header = file.read(length)
        yield f"{path.name} {path.stat().st_size}\n".encode()
        yield header
        spans = [entry["data_offsets"] for entry in _tensors(json.loads(header))]
        for begin, end in spans[:: max(1, -(-len(spans) // _MOST_TENSORS))]:
            yield from _ends(file, 8 + length + begin, 8 + length + end)


def _tensors(header: dict[str, Any]) -> list[dict[str, Any]]:
    return [header[name] for name in sorted(header) if name != "__metadata__"]


def _ends(file: BinaryIO, begin: int, end: int) -> Iterator[bytes]:
    file.seek(begin)
    yield file.read(min(_SAMPLE_BYTES, end - begin))
    last = max(begin + _SAMPLE_BYTES, end - _SAMPLE_BYTES)
    if last < end:
        file.seek(last)
        yield file.read(end - last)
