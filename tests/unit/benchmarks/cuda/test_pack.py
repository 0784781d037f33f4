"""Parts are judged by size and checksum without being built or unpacked."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path

import pytest

PARTS = Path(__file__).parents[4] / "benchmarks" / "cuda" / "parts.py"
SPEC = importlib.util.spec_from_file_location("parts", PARTS)
assert SPEC is not None and SPEC.loader is not None
parts = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(parts)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    content = b"x" * 1000
    (tmp_path / "part-00").write_bytes(content)
    row = {"name": "part-00", "bytes": 1000, "sha256": hashlib.sha256(content).hexdigest()}
    (tmp_path / parts.MANIFEST).write_text(json.dumps({"parts": [row]}))
    return tmp_path


def test_whole_parts_have_no_fault(packed: Path) -> None:
    assert parts.faults(packed) == []


def test_a_missing_and_a_changed_part_are_named(packed: Path) -> None:
    (packed / "part-00").write_bytes(b"y" * 1000)
    assert parts.faults(packed) == [f"{packed}/part-00: not the part that the manifest names"]
    (packed / "part-00").unlink()
    assert parts.faults(packed) == [f"{packed}/part-00: missing"]


def test_a_part_too_large_to_travel_is_named(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MOST_BYTES", 1000)
    assert parts.faults(packed) == [f"{packed}/part-00: 1000 bytes, 1000 or more"]
