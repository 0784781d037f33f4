"""The exit codes in words, for every command's help."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup

from driftscope.errors import (
    EXIT_ERROR,
    EXIT_GATE_FAILED,
    EXIT_NO_DATA,
    EXIT_OK,
    EXIT_UNKNOWN,
    EXIT_USAGE,
)

EPILOG = (
    f"Exit codes: {EXIT_OK} fine, {EXIT_ERROR} error, {EXIT_USAGE} usage, "
    f"{EXIT_GATE_FAILED} gate failed, {EXIT_NO_DATA} no data, {EXIT_UNKNOWN} unknown kind of input."
)


_TYPE_SHOWN_BY = ("display_type", "display_type_rich")
"""Methods that name the type of an argument's value, in versions of typer that have them."""

_NO_BRACES = {ord(brace): None for brace in "{}"}


class PlainCommand(TyperCommand):
    """Command that takes no word after a flag, and says so."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, each with the words that its help shows."""
        return _without_types(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line: a name without brackets must be given."""
        return [piece.translate(_NO_BRACES) for piece in super().collect_usage_pieces(ctx)]


class PlainGroup(TyperGroup):
    """Group of commands whose own options are shown as those of `PlainCommand`."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, each with the words that its help shows."""
        return _without_types(super().get_params(ctx))


def _without_types(parameters: Sequence[Any]) -> Sequence[Any]:
    """Return `parameters` without types in their help. typer shows `<bool>` after a flag and
    `<list[Path]>` after the name of an argument."""
    for parameter in parameters:
        if isinstance(parameter, TyperArgument):
            for method in _TYPE_SHOWN_BY:
                setattr(parameter, method, _no_type)
        elif parameter.is_flag and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


def _no_type(ctx: Any) -> str:  # noqa: ARG001
    return ""


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
        "doctor": Page(
            group=BEGIN,
            example="driftscope doctor MODEL --speculative-config "
            '\'{"method": "eagle3", "model": "DRAFTER"}\'',
        ),
        "pays": Page(group=BEGIN, example="driftscope pays trio"),
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
        "export": Page(
            group=READ,
            example="driftscope export latest --format speculation-profile -o profile.json",
        ),
        "ls": Page(group=KEEP, example="driftscope ls"),
        "rm": Page(group=KEEP, example="driftscope rm driftscope-runs/20260101-120000-eagle3"),
        "prune": Page(group=KEEP, example="driftscope prune --older-than 30d --keep 5"),
        "replay": Page(
            group=SEND, example="driftscope replay http://localhost:8000 --suite template"
        ),
        "dashboards": Page(group=WATCH, example="driftscope dashboards -o monitoring"),
    }
)
"""Commands in the order in which `driftscope --help` lists them."""
PROBE_EXAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "status": "driftscope probe status latest",
        "start": "driftscope probe start latest",
        "stop": "driftscope probe stop latest",
        "set": "driftscope probe set latest --every 4",
    }
)


def settings_of(name: str, command: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword arguments that register `command` under `name`."""
    page = PAGES[name]
    # Each paragraph is one line, so that a terminal breaks it where it ends.
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return {
        "name": name,
        "help": "\n\n".join(" ".join(part.split()) for part in paragraphs),
        "epilog": epilog(page.example),
        "rich_help_panel": page.group,
    }


def epilog(example: str) -> str:
    """Return the end of a command's help: an example and the exit codes."""
    return f"Example: {example}\n\n{EPILOG}"
