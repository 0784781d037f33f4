"""The tiny drafter, where vLLM is at hand, and a worker that records it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.tiny_drafter import Worker, tiny_drafter

from driftscope_probes.drafter import Drafter
from driftscope_probes.settings import Settings


@pytest.fixture(scope="session")
def vllm_imported() -> None:
    """The taps ask vLLM how a forward runs; its import warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vllm.forward_context  # noqa: F401


@pytest.fixture
def make_drafter(vllm_imported: None) -> Callable[..., Drafter]:
    """See `tiny_drafter`."""
    return tiny_drafter


@pytest.fixture
def start(
    tmp_path: Path, make_drafter: Callable[..., Drafter], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Worker]:
    """A worker; only steps that are chosen carry masses by distance, the first ones as others."""
    monkeypatch.setattr("driftscope_probes.chain.FIRST_WITH_DETAILS", 0)

    def started(drafter: Drafter | None = None, **changes: Any) -> Worker:
        settings = Settings(**{"trace": tmp_path / "run", "sink_tokens": 2, "every": 1, **changes})
        return Worker(drafter or make_drafter(), settings)

    return started
