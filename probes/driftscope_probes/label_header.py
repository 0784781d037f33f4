"""Keeps the label middleware available at its old path for one release.

Servers name it in their start command: `--middleware driftscope_probes.label_header.LabelHeader`.
"""

from __future__ import annotations

import warnings

from driftscope_probes.server.label_header import LabelHeader

__all__ = ["LabelHeader"]

warnings.warn(
    "driftscope_probes.label_header has moved: give --middleware "
    "driftscope_probes.server.label_header.LabelHeader",
    FutureWarning,
    stacklevel=2,
)
