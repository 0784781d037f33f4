"""A worker that records the tiny drafter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.tiny_drafter import Worker, tiny_drafter

from driftscope_probes.drafter import Drafter
from driftscope_probes.settings import Settings


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Worker]:
    """A worker; only steps that are chosen carry masses by distance, the first ones as others."""
    monkeypatch.setattr("driftscope_probes.chain.FIRST_WITH_DETAILS", 0)

    def started(drafter: Drafter | None = None, **changes: Any) -> Worker:
        settings = Settings(**{"trace": tmp_path / "run", "sink_tokens": 2, "every": 1, **changes})
        return Worker(drafter or tiny_drafter(), settings)

    return started
