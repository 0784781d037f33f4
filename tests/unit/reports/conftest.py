"""A Chromium for tests of the report."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from support.chromium import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return a browser that ends with the module's tests."""
    with chromium() as started:
        yield started
