"""A rule of the gate: a condition that must not hold for a run."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftscope.analysis.gate.expression import Condition, parse
from driftscope.boundary.bounds import MAX_JSON_BYTES
from driftscope.boundary.file_input import first_line, read_text
from driftscope.errors import UsageError

_KEYS = {"fail_on", "name"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule, which is broken if `condition` surely holds."""

    text: str
    """Text of the rule as it was given."""
    condition: Condition
    name: str | None = None
    """Name that its author gave it."""

    def __str__(self) -> str:
        return f"{self.name} ({self.text})" if self.name else self.text


def rule_of(text: str, name: str | None = None) -> Rule:
    """Return the rule that `text` states; raises UsageError if it cannot be read."""
    return Rule(text=text.strip(), condition=parse(text), name=name)


def read_rules(path: Path) -> list[Rule]:
    """Return the rules of a TOML file: `fail_on = [EXPR, ...]`, and tables `[[rule]]` with
    `fail_on` and a `name`.

    Raises UsageError for content that cannot be parsed, OSError for a file that cannot be read.
    """
    try:
        content = tomllib.loads(read_text(path, limit=MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not readable as TOML ({first_line(error)})") from error
    if unknown := sorted(set(content) - {"fail_on", "rule"}):
        raise UsageError(f"{path}: there is no {unknown[0]!r}; a file has fail_on and [[rule]]")
    plain = content.get("fail_on", [])
    tables = content.get("rule", [])
    if not isinstance(plain, list) or not isinstance(tables, list):
        raise UsageError(f"{path}: fail_on is a list of texts, [[rule]] a table each")
    rules = [_rule(path, {"fail_on": each}) for each in plain]
    return rules + [_rule(path, table) for table in tables]


def _rule(path: Path, table: Any) -> Rule:
    if not isinstance(table, Mapping) or set(table) - _KEYS or "fail_on" not in table:
        raise UsageError(f"{path}: a [[rule]] has fail_on and, if you like, name; not {table!r}")
    text, name = table["fail_on"], table.get("name")
    if not isinstance(text, str) or not isinstance(name, str | None):
        raise UsageError(f"{path}: fail_on and name are texts; not {table!r}")
    try:
        return rule_of(text, name)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
