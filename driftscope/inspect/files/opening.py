"""Permissions with which model folders are found and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from driftscope.inspect.files.safetensors_file import StoredTensor

Reader = Callable[[Path], Mapping[str, StoredTensor]]
"""Function that returns the tensors of one file by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Permissions, none of which is given unless the user asks for it."""

    read_pickle: Reader | None = None
    """Reader of PyTorch pickles; None refuses them."""
    download: bool = False
    """Whether a repository that is not in the local cache is downloaded."""


CAREFUL = Opening()
"""Neither pickles nor downloads."""
