"""A rule of the gate: a condition that must not hold for a run, or one that must."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftscope.analysis.gate.expression import Condition, Not, parse
from driftscope.boundary.bounds import MAX_JSON_BYTES
from driftscope.boundary.file_input import first_line, read_text
from driftscope.errors import UsageError

FAIL_ON, REQUIRE = "fail_on", "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule, which is broken if `condition` surely holds and kept if it surely does not."""

    text: str
    """Text of the rule as it was given."""
    condition: Condition
    name: str | None = None
    """Name that its author gave it."""

    def __str__(self) -> str:
        return f"{self.name} ({self.text})" if self.name else self.text


def rule_of(text: str, name: str | None = None, *, required: bool = False) -> Rule:
    """Return the rule that the condition `text` must not hold or, if it is `required`, must; raises
    UsageError if it cannot be read."""
    condition = parse(text)
    return Rule(
        text=text.strip(), condition=Not(of=condition) if required else condition, name=name
    )


def read_rules(path: Path) -> list[Rule]:
    """Return the rules of a TOML file: `fail_on = [EXPR, ...]`, `require = [EXPR, ...]`, and tables
    `[[rule]]` with one of both and a `name`.

    Raises UsageError for content that cannot be parsed, OSError for a file that cannot be read.
    """
    try:
        content = tomllib.loads(read_text(path, limit=MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not readable as TOML ({first_line(error)})") from error
    if unknown := sorted(set(content) - {FAIL_ON, REQUIRE, "rule"}):
        raise UsageError(
            f"{path}: {unknown[0]!r} is unknown; a file has fail_on, require and [[rule]]"
        )
    lists = {name: content.get(name, []) for name in (FAIL_ON, REQUIRE)}
    tables = content.get("rule", [])
    if not all(isinstance(each, list) for each in (*lists.values(), tables)):
        raise UsageError(
            f"{path}: fail_on and require must be lists of texts, and each [[rule]] a table"
        )
    rules = [_rule(path, {name: each}) for name, texts in lists.items() for each in texts]
    return rules + [_rule(path, table) for table in tables]


def _rule(path: Path, table: Any) -> Rule:
    kinds = set(table) - {"name"} if isinstance(table, Mapping) else set()
    if kinds not in ({FAIL_ON}, {REQUIRE}):
        raise UsageError(
            f"{path}: a [[rule]] has fail_on or require, and optionally name; not {table!r}"
        )
    (kind,) = kinds
    text, name = table[kind], table.get("name")
    if not isinstance(text, str) or not isinstance(name, str | None):
        raise UsageError(f"{path}: {kind} and name must be texts; not {table!r}")
    try:
        return rule_of(text, name, required=kind == REQUIRE)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
