"""The report of a pair of drafters, and a Chromium."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from support.analyses import pair
from support.chromium import chromium

from driftscope.pipeline import Analysis


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return a browser that ends with the module's tests."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def analysis() -> Analysis:
    return pair()
