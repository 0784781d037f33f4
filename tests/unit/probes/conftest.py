"""The tiny drafter of `support.tiny_drafter`, where vLLM is at hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
from support.tiny_drafter import tiny_drafter

from driftscope_probes.vllm.drafter import VllmDrafter


@pytest.fixture(scope="session")
def vllm_imported() -> None:
    """The taps ask vLLM how a forward runs; its import warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vllm.forward_context  # noqa: F401


@pytest.fixture
def make_drafter(vllm_imported: None) -> Callable[..., VllmDrafter]:
    """See `tiny_drafter`."""
    return tiny_drafter
