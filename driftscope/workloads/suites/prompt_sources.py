"""Sources of prompts: the shipped sets, and files."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from driftscope.errors import UsageError
from driftscope.lab_package import needs_lab
from driftscope.workloads.suites.prompt import Expect, Prompt, chat
from driftscope.workloads.suites.readers import read_prompts
from driftscope.workloads.suites.tool_schemas import TOOLS

TRIO = "trio"
"""Held-out prompts of driftscope's own small models, for which nothing else is suitable."""


def prompts_of(name: str, folder: Path | None = None) -> list[Prompt]:
    """Return a shipped set, or the prompts in a file that a reader knows; raises UsageError."""
    if name == TRIO:
        return _trio()
    if name in shipped_sets():
        text = (files("driftscope.workloads") / "prompts" / f"{name}.yaml").read_text("utf-8")
        return [_prompt(name, number, entry) for number, entry in enumerate(yaml.safe_load(text))]
    path = Path(name) if folder is None else folder / name
    if not path.exists():
        raise UsageError(
            f"prompts {name}: neither a shipped set ({', '.join([*shipped_sets(), TRIO])}) nor a "
            "file"
        )
    return read_prompts(path)


def shipped_sets() -> list[str]:
    """Return the names of the sets that are shipped with driftscope."""
    folder = files("driftscope.workloads") / "prompts"
    return sorted(
        each.name.removesuffix(".yaml") for each in folder.iterdir() if each.name.endswith(".yaml")
    )


def _prompt(name: str, number: int, entry: Mapping[str, Any]) -> Prompt:
    turns = entry.get("turns") or [entry["user"]]
    return chat(
        f"{name}-{number:02d}",
        *turns,
        system=entry.get("system"),
        category=entry.get("category"),
        expect=Expect(**entry.get("expect", {})),
        tools=TOOLS if entry.get("tools") else (),
    )


def _trio() -> list[Prompt]:
    with needs_lab():
        from driftscope_lab.trio import load_prompts

    return [
        chat(each.id, each.exchanges[-1].request, system=each.system, category=each.kind)
        for each in load_prompts()
    ]
