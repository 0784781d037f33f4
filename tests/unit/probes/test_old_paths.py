"""Paths that users have written down go on working for a release, with a warning."""

from __future__ import annotations

import importlib

import pytest

from driftscope_probes.server.label_header import LabelHeader


def test_the_label_middleware_is_found_at_its_old_path() -> None:
    with pytest.warns(FutureWarning, match=r"driftscope_probes\.server\.label_header\.LabelHeader"):
        old = importlib.import_module("driftscope_probes.label_header")
    assert old.LabelHeader is LabelHeader
