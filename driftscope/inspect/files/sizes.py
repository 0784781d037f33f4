"""Sizes and licence of a drafter checkpoint, beside its target's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from driftscope.boundary.files import read_text
from driftscope.inspect.files.checkpoint import TensorFiles
from driftscope.inspect.files.drafter_files import DrafterFiles
from driftscope.inspect.files.target_files import TargetFiles

_CARDS = ("README.md", "MODEL_CARD.md")
_LICENCE = re.compile(r"^license:\s*(\S.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a drafter's weights."""

    parameters: int
    """Number of floating-point numbers; for quantised weights, of stored elements."""
    bytes: int
    target_bytes: int | None
    """Size of the target's weight files that are there; None without any."""
    licence: str | None
    """Licence that the model card names."""

    @property
    def share(self) -> float | None:
        """Bytes relative to the target's; None if these are not known."""
        return self.bytes / self.target_bytes if self.target_bytes else None


def sizes_of(drafter: DrafterFiles, target: TargetFiles | None) -> Sizes:
    """Return the sizes of a drafter."""
    tensors = drafter.tensors.values()
    floats = [each.elements for each in tensors if each.is_float or drafter.quantized]
    return Sizes(
        parameters=sum(floats),
        bytes=sum(each.bytes for each in tensors),
        target_bytes=_bytes(target.files) if target and target.files else None,
        licence=_licence(drafter.folder),
    )


def _bytes(files: TensorFiles) -> int | None:
    return sum(file.stat().st_size for file in files.files if file.exists()) or None


def _licence(folder: Path) -> str | None:
    for name in _CARDS:
        try:
            found = _LICENCE.search(read_text(folder / name))
        except (OSError, ValueError):
            continue
        if found:
            return found.group(1).strip("'\"")
    return None
