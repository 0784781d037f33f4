"""Reads safetensors files tensor by tensor, with numpy alone: importing torch takes longer than all
file checks together."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftscope.boundary.files import first_line, open_regular, parse_json
from driftscope.errors import CheckpointError

MOST_HEADER_BYTES = 100_000_000
"""Limit defined by the safetensors format."""
_LENGTH_BYTES = 8
_BLOCK_ELEMENTS = 1 << 22
"""Number of elements that are converted at once: 16 MiB as float32."""
_NUMPY: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
"""Types that can be read; the others, 8-bit floats for example, are only counted."""
FLOATS = ("F64", "F32", "F16", "BF16")
_BYTES = {"F8_E4M3": 1, "F8_E5M2": 1, **{name: kind.itemsize for name, kind in _NUMPY.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor in a file: its header entry, and access to its content."""

    name: str
    dtype: str
    """Type as the format names it, such as BF16."""
    shape: tuple[int, ...]
    path: Path
    begin: int
    """First byte in the file."""
    bytes: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether the content can be read as floating-point numbers."""
        return self.dtype in FLOATS

    @property
    def is_readable(self) -> bool:
        """Whether the content can be read at all."""
        return self.dtype in _NUMPY

    def array(self) -> NDArray[Any]:
        """Return the whole content: float32 (float64 for F64), or integers as stored."""
        parts = list(self.blocks())
        return np.concatenate(parts) if parts else np.zeros(self.shape, np.float32)

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield the content in blocks of whole rows, so that a large tensor needs little memory.

        Raises CheckpointError for a type that cannot be read.
        """
        if not self.is_readable:
            raise CheckpointError(f"{self.path}: {self.name} has type {self.dtype}, not readable")
        if not self.elements:
            return
        rows = self.flat().reshape(self.shape or (1,))
        step = max(1, _BLOCK_ELEMENTS // max(1, math.prod(self.shape[1:])))
        for start in range(0, len(rows), step):
            yield _converted(np.asarray(rows[start : start + step]), self.dtype)

    def rows(self, index: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows at `index`, all of which must exist."""
        return _converted(np.asarray(self.flat().reshape(self.shape)[index]), self.dtype)

    def flat(self) -> NDArray[Any]:
        """Return the elements in a row, as stored, mapped from the file."""
        return np.memmap(
            self.path, _NUMPY[self.dtype], mode="r", offset=self.begin, shape=(self.elements,)
        )


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of one file by name.

    Raises CheckpointError for a file that is missing, truncated or not in the format.
    """
    try:
        with open_regular(path) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
            size = os.fstat(descriptor).st_size
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if not 0 < length <= min(MOST_HEADER_BYTES, size - _LENGTH_BYTES):
                raise CheckpointError(
                    f"{path}: not a safetensors file, or its header is cut off; copy it again"
                )
            entries = parse_json(file.read(length))
        start = _LENGTH_BYTES + length
        tensors = [
            _entry(path, name, entry, start)
            for name, entry in entries.items()
            if name != "__metadata__"
        ]
    except OSError as error:
        raise CheckpointError(f"{path}: {first_line(error)}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: the header is not that of a safetensors file ({first_line(error)})"
        ) from error
    _check_size(path, size, tensors)
    return {tensor.name: tensor for tensor in tensors}


def _entry(path: Path, name: str, entry: dict[str, Any], start: int) -> StoredTensor:
    begin, end = (int(each) for each in entry["data_offsets"])
    shape = tuple(int(each) for each in entry["shape"])
    tensor = StoredTensor(
        name=name,
        dtype=str(entry["dtype"]),
        shape=shape,
        path=path,
        begin=start + begin,
        bytes=end - begin,
    )
    width = _BYTES.get(tensor.dtype)
    if begin < 0 or min(shape, default=0) < 0 or (width and tensor.elements * width != end - begin):
        raise ValueError(f"entry of {name}")
    return tensor


def _check_size(path: Path, size: int, tensors: list[StoredTensor]) -> None:
    end = max((tensor.begin + tensor.bytes for tensor in tensors), default=0)
    if end > size:
        raise CheckpointError(
            f"{path}: truncated: its header describes {end} bytes, and it has {size}; copy it again"
        )


def _converted(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    if dtype == "BF16":  # the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32) if dtype == "F16" else values
