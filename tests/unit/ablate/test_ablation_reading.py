"""A document is read back as it was written, and anything else is one error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.ablations import constructed_ablation

from driftscope.ablate.result import read_ablation, to_json
from driftscope.errors import UsageError

Document = dict[str, Any]


def test_a_document_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    text = to_json(constructed_ablation())
    (tmp_path / "a.json").write_text(text)
    assert to_json(read_ablation(tmp_path / "a.json")) == text


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: document.update(kind="report"),
        lambda document: document.update(schema_version=99),
        lambda document: document.update(effects=[]),
        lambda document: document.update(k=9),
        lambda document: document["effects"][0].update(agreement=[None] * 4),
        lambda document: document["effects"][0].update(interval=[1]),
        lambda document: document["decomposition"].pop("rest"),
        lambda document: document["vocabulary"].update(by_region=7),
    ],
)
def test_a_damaged_document_is_one_error(
    tmp_path: Path, damage: Callable[[Document], object]
) -> None:
    document = json.loads(to_json(constructed_ablation()))
    damage(document)
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=str(path)):
        read_ablation(path)


@pytest.mark.parametrize("content", ["", "[1]", "null", '{"kind": "ablation"}'])
def test_another_file_is_one_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="is no ablation"):
        read_ablation(path)
    with pytest.raises(UsageError, match="is no ablation"):
        read_ablation(tmp_path / "none.json")
