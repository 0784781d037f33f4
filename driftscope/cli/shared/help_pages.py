"""Parts of `--help` other than options: groups of commands, their words, examples, exit codes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from driftscope.cli.shared.exit_codes import EPILOG

BEGIN = "Begin"
BEFORE = "Before a server starts"
RECORD = "Record a live engine"
READ = "Read runs"
KEEP = "Find and remove runs"
SEND = "Send prompts"
WATCH = "Monitor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Group and example of one command."""

    group: str
    example: str


PAGES: Mapping[str, Page] = MappingProxyType(
    {
        "demo": Page(group=BEGIN, example="driftscope demo --prompts 32"),
        "doctor": Page(
            group=BEGIN,
            example="driftscope doctor MODEL --speculative-config "
            '\'{"method": "eagle3", "model": "DRAFTER"}\'',
        ),
        "findings": Page(group=BEGIN, example="driftscope findings --json"),
        "inspect": Page(group=BEFORE, example="driftscope inspect DRAFTER --target TARGET"),
        "ablate": Page(group=BEFORE, example="driftscope ablate DRAFTER --target TARGET"),
        "serve": Page(
            group=RECORD,
            example="driftscope serve MODEL --speculative-config "
            '\'{"method": "eagle3", "model": "DRAFTER", "num_speculative_tokens": 4}\'',
        ),
        "probe": Page(group=RECORD, example="driftscope probe status latest"),
        "watch": Page(group=RECORD, example="driftscope watch latest"),
        "analyze": Page(group=READ, example="driftscope analyze latest"),
        "compare": Page(group=READ, example="driftscope compare OLD_RUN NEW_RUN"),
        "advise": Page(group=READ, example="driftscope advise latest"),
        "check": Page(
            group=READ,
            example="driftscope check latest --baseline OLD_RUN --require "
            "'no_worse(acceptance.mean_length, 5%)'",
        ),
        "ingest": Page(group=READ, example="driftscope ingest vllm-bench.json records.jsonl"),
        "ls": Page(group=KEEP, example="driftscope ls"),
        "rm": Page(group=KEEP, example="driftscope rm driftscope-runs/20260101-120000-eagle3"),
        "prune": Page(group=KEEP, example="driftscope prune --older-than 30d --keep 5"),
        "replay": Page(
            group=SEND, example="driftscope replay http://localhost:8000 --suite template"
        ),
        "bench": Page(group=SEND, example="driftscope bench trio --drafter eagle3 --no-spec"),
        "export": Page(
            group=WATCH, example="driftscope export latest --otlp http://localhost:4318"
        ),
        "dashboards": Page(group=WATCH, example="driftscope dashboards -o monitoring"),
    }
)
"""Commands in the order in which `driftscope --help` lists them."""
PROBE_EXAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "status": "driftscope probe status latest",
        "start": "driftscope probe start latest",
        "stop": "driftscope probe stop http://localhost:8000",
        "set": "driftscope probe set latest --every 4",
    }
)


def settings_of(name: str, command: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword arguments that register `command` under `name`."""
    page = PAGES[name]
    return {
        "name": name,
        "help": paragraphs(inspect.getdoc(command) or ""),
        "epilog": epilog(page.example),
        "rich_help_panel": page.group,
    }


def epilog(example: str) -> str:
    """Return the end of a command's help: an example and the exit codes."""
    return f"Example: {example}\n\n{EPILOG}"


def paragraphs(text: str) -> str:
    """Return `text` with each paragraph on one line, so that a terminal breaks it where it ends."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
