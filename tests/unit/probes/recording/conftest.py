"""The worker of `support.recording_worker`, with settings of the test's choice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.recording_worker import Worker

from driftscope_probes.settings import Settings
from driftscope_probes.vllm.drafter import VllmDrafter


@pytest.fixture
def start(tmp_path: Path, make_drafter: Callable[..., VllmDrafter]) -> Callable[..., Worker]:
    def started(drafter: VllmDrafter | None = None, **changes: Any) -> Worker:
        settings = Settings(**{"trace": tmp_path / "run", "sink_tokens": 2, "every": 1, **changes})
        return Worker(drafter or make_drafter(), settings)

    return started
