"""The tool schemas of the agent workloads; written for driftscope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _tool(name: str, description: str, required: list[str], **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


_STRING = {"type": "string"}
TOOLS: tuple[Mapping[str, Any], ...] = (
    _tool(
        "shell",
        "Run a command and return what it prints.",
        ["command"],
        command=_STRING,
        timeout_s={"type": "integer", "minimum": 1},
    ),
    _tool(
        "read_file",
        "Return lines of a file.",
        ["path"],
        path=_STRING,
        first={"type": "integer"},
        last={"type": "integer"},
    ),
    _tool("show_diff", "Show what changed since a commit.", ["commit"], commit=_STRING),
    _tool("run_tests", "Run tests and return the failures.", ["pattern"], pattern=_STRING),
    _tool(
        "query",
        "Ask the ticket store.",
        ["table", "limit"],
        table={"enum": ["tickets", "users", "builds"]},
        where=_STRING,
        limit={"type": "integer", "minimum": 1, "maximum": 1000},
    ),
    _tool(
        "weather",
        "Say the weather of a city.",
        ["city", "unit"],
        city=_STRING,
        unit={"enum": ["celsius", "fahrenheit"]},
    ),
)
