"""Print the probe's settings as a page of the documentation.

python -m driftscope_probes.server.settings_page > docs/configuration.md
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from types import ModuleType

from driftscope.telemetry.export import settings as telemetry_settings
from driftscope_probes import settings as probe_settings
from driftscope_probes.settings import Settings

_PREFIX = "DRIFTSCOPE_"
_INTERNAL = frozenset({"sink_source", "telemetry", "test_raise"})
"""Fields of Settings that no variable of a user sets."""
_UNSET = {
    "trace": "off",
    "every": "by budget",
    "prompt_salt": "random at each start",
    "labels": "all",
    "otlp": "off",
    "prometheus": "off",
    "metric_labels": "none",
    "metric_regions": "off",
}
"""Words for a default that is no value."""
_HEAD = """# Configuration

Written by `python -m driftscope_probes.server.settings_page` from the settings' docstrings.

The probe reads its settings when the engine starts. `driftscope serve` sets some of them from its
options (`--trace`, `--every`, `--budget`, `--label`, `--sink-tokens`, `--token-ids`, `--otlp`,
`--prometheus`). `driftscope probe set` changes the rate, the recording by head and the labels
[while it runs](control.md). With an invalid value nothing is recorded: the engine starts and
serves, and one line in its log names the variable. [Limits](limits.md#a-start-that-goes-wrong)
shows what else may go wrong. A name that is no setting is warned about, with the name that it
resembles.

| variable | meaning | default |
|---|---|---|
"""
_OTHERS = (
    ("config", "TOML file with the same settings; the environment wins", "none"),
    (
        "strict",
        (
            "`1`: a fault of the probe stops the engine's start; `driftscope serve` sets it unless "
            "it is set"
        ),
        "off",
    ),
    (
        "disable",
        (
            "Switches the probe off, and no other setting is read. Any value does, except those "
            "that mean no"
        ),
        "off",
    ),
)
"""Name, meaning and default of the variables that are no fields of Settings."""
_TAIL = """
A switch takes `1`, `true`, `yes` or `on`, and `0`, `false`, `no` or `off`. [Privacy](privacy.md)
explains what `DRIFTSCOPE_IDENTIFIERS=off` changes, and
[definitions](definitions.md#the-sink-set) explains the search for the sink set.

## As a file

The keys are the variables' names without `DRIFTSCOPE_`, in lower case. An unknown key is an
invalid value.

```toml
trace = "/var/lib/driftscope/{time}-{pid}"
budget = "0.5%"
labels = ["chat", "agent"]
prometheus = "9464"
```

## Variables for the processes of one start

The processes of one engine start recognise each other by `DRIFTSCOPE_RUN_ID`. They hash prompts
with `DRIFTSCOPE_REQUEST_KEY`, unless `DRIFTSCOPE_PROMPT_SALT` is set, and request ids when
`DRIFTSCOPE_IDENTIFIERS=off`. Both are created in the first process and inherited. Set them only if
processes do not inherit their environment from one another.
`DRIFTSCOPE_START_FAULT` and `DRIFTSCOPE_UNKNOWN_WARNED` tell them what the log has already.
"""


def page() -> str:
    """Return the page."""
    return _HEAD + "".join(map(_row, (*_documented(), *_OTHERS))) + _TAIL


def _documented() -> Iterator[tuple[str, str, str]]:
    """Yield the name, meaning and default of each setting that has a variable."""
    meanings = _docstrings(_body(probe_settings, "Settings"))
    for field in dataclasses.fields(Settings):
        if field.name not in _INTERNAL:
            yield field.name, meanings[field.name], _default(field.name, field.default)
    meanings = _docstrings(_body(telemetry_settings))
    for name in ("OTLP", "PROMETHEUS", "METRIC_LABELS", "METRIC_REGIONS"):
        yield name.lower(), meanings[name], _UNSET[name.lower()]


def _row(setting: tuple[str, str, str]) -> str:
    name, meaning, default = setting
    return f"| `{_PREFIX}{name.upper()}` | {meaning.rstrip('.')} | {default} |\n"


def _default(name: str, value: object) -> str:
    if name in _UNSET:
        return _UNSET[name]
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.0%}" if isinstance(value, float) else str(value)


def _body(module: ModuleType, kind: str | None = None) -> list[ast.stmt]:
    """Return the statements of a module, or of one of its classes."""
    body = ast.parse(inspect.getsource(module)).body
    if kind is None:
        return body
    return next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == kind)


def _docstrings(body: Iterable[ast.stmt]) -> dict[str, str]:
    """Return the docstring below each assignment, in one line."""
    texts = {}
    for statement, text in pairwise(body):
        if isinstance(statement, ast.AnnAssign | ast.Assign) and isinstance(text, ast.Expr):
            (target,) = _targets(statement)
            texts[ast.unparse(target)] = " ".join(str(ast.literal_eval(text.value)).split())
    return texts


def _targets(statement: ast.AnnAssign | ast.Assign) -> list[ast.expr]:
    return [statement.target] if isinstance(statement, ast.AnnAssign) else statement.targets


if __name__ == "__main__":
    sys.stdout.write(page())
