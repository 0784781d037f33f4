"""Test texts that users and their files give to commands: conditions, options, rules, prompts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import ibis
import pyarrow as pa

from driftscope.analysis.condition_columns import COLUMNS
from driftscope.analysis.conditions import condition_of
from driftscope.analysis.gate import read_rules
from driftscope.analysis.query.query_engine import DuckDB
from driftscope.boundary.text import shown
from driftscope.errors import ControlError, DriftscopeError, UsageError
from driftscope.trace.control import CONTROL, ControlValueError, read_control
from driftscope.workloads.suites.prompts import read_prompts
from driftscope.workloads.suites.suite import load_suite
from verification.faults.command import (
    argument_of,
    check_files,
    damaged,
    file_name_of,
    outcome_of,
    text_of,
)

OPERATORS = (
    *("=", "<>", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "and", "or", "not", "(", ")"),
    *("in", "between", "like", "ilike", "is null", "is not null", "null", "true", "false", ","),
)
LITERALS = (
    *("0", "1", "-1", "4096", "1e308", "1e400", "9223372036854775808", "0x10", "1_000", "'chat'"),
    *("''", "'%'", "'a''b'", "'\\'", '"label"', "'\u202e'", "1.5", ".5", "5.", "²", "'²'"),
)
FOREIGN = (
    *("select", "from draft", ";", "--", "/*", "*/", "::int", "[1]", "{'a':1}", "$1", "?", "@x"),
    *("count(*)", "read_text('/etc/passwd')", "range(10000000000)", "case when", "over ()", "\0"),
    *("interval '1 day'", "date '2020-01-01'", "cast(k as int)", "x -> y", "label.x", '"', "'"),
)
"""Tokens that belong to SQL and not to a condition."""


def soup(random: Random) -> str:
    """Return a random text in the condition language, or close to it."""
    if random.random() < 0.5:
        return _sentence(random, 0)
    words = [_word(random) for _ in range(random.choice((1, 3, 5, 9, 30, 200)))]
    return random.choice((" ", " ", "")).join(words)


def _sentence(random: Random, depth: int) -> str:
    """Return a condition that is mostly well-formed and often well-typed."""
    if depth < 5 and random.random() < 0.5:
        joint = random.choice((" and ", " or "))
        count = random.choice((2, 2, 3, 40))
        return f"({joint.join(_sentence(random, depth + 2) for _ in range(count))})"
    column = random.choice(sorted(COLUMNS))
    value = random.choice(LITERALS)
    form = random.choice(
        (
            f"{column} {random.choice(OPERATORS[:7])} {value}",
            f"{column} in ({value}, {random.choice(LITERALS)})",
            f"{column} not in ({value})",
            f"{column} between {value} and {random.choice(LITERALS)}",
            f"{column} {random.choice(('like', 'ilike', 'not like'))} {value}",
            f"{column} is {random.choice(('', 'not '))}null",
            f"{column} {random.choice('+-*/')} {value} > {random.choice(sorted(COLUMNS))} / 0",
            f"not {'-' * random.choice((0, 1, 3))}{column} = {value}",
        )
    )
    return form if random.random() < 0.9 else form.replace(" ", f" {_word(random)} ", 1)


def _word(random: Random) -> str:
    of = random.random()
    if of < 0.9:
        return random.choice(random.choice((sorted(COLUMNS), OPERATORS, OPERATORS, LITERALS)))
    return random.choice(FOREIGN) if of < 0.97 else text_of(random)[:100]


@functools.cache
def _engine() -> tuple[DuckDB, Any]:
    """Return an engine with a few rows, and the rows as an Ibis table; one per process."""
    kinds = {"int64": [0, 1, None, 2**62], "float64": [0.0, -1.5, None, float("inf")]}
    texts = ["chat", "", None, "%_\\'"]
    rows = pa.table({n: kinds.get(column.type, texts) for n, column in COLUMNS.items()})
    engine = DuckDB()
    engine.view("rows", rows, rows.schema)
    return engine, ibis.table(ibis.Schema.from_pyarrow(rows.schema), name="rows")


def parse_condition(random: Random, _: Path, __: Path) -> None:
    """A random condition is refused in one line, or selects rows."""
    text = soup(random)
    try:
        condition = condition_of(text)
    except UsageError as error:
        _check_line(error)
        return
    engine, rows = _engine()
    assert engine.rows(rows.filter(condition.on(rows))).num_rows <= 4
    str(condition).encode()


def _check_line(error: DriftscopeError) -> None:
    line = str(error)
    assert "\n" not in line, f"an error of several lines: {line[:200]!a}"
    assert len(line) < 5000, f"an error of {len(line)} characters: {line[:200]!a}"
    shown(line).encode()


Reader = Callable[[Path], object]


def _read_control(path: Path) -> object:
    """Return the request in a control file; the writer of a run counts invalid ones."""
    try:
        return read_control(path.parent)
    except ControlValueError as error:
        raise ControlError(str(error)) from error


SEEDS: Mapping[str, tuple[str, Reader]] = {
    "rules.toml": (
        """fail_on = ["high", "acceptance.mean_length < 2"]
[[rule]]
name = "slow"
fail_on = "tpot.p50 > 1.1 * baseline.tpot.p50"
""",
        read_rules,
    ),
    "prompts.jsonl": (
        """{"prompt": "a", "label": "b"}
{"turns": ["a", "b"], "category": "c"}
{"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
""",
        read_prompts,
    ),
    "prompts.json": (
        '[{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}]',
        read_prompts,
    ),
    "results.json": ('{"input_lens": [3, 4], "output_lens": [5, 6]}', read_prompts),
    "suite.yaml": (
        """about: x
prompts: chat
settings: {max_tokens: 4}
baseline: a
conditions:
  a: []
  b:
    - reworded: {}
concurrency: [1, 4]
""",
        lambda path: load_suite(str(path)),
    ),
    CONTROL: (
        """{"revision": 1, "every": 4, "labels": ["a"], "per_head": true, "recording": false}""",
        _read_control,
    ),
}
"""Files from users, by name: sound content and its reader."""


def read_file(random: Random, run: Path, folder: Path) -> None:
    """A damaged or hostile file is refused in one line, or read."""
    name = random.choice(sorted(SEEDS))
    content, read = SEEDS[name]
    path = folder / name
    path.write_bytes(damaged(content.encode(), random))
    try:
        read(path)
    except DriftscopeError as error:
        _check_line(error)


Line = Callable[[str, Path, Path], Sequence[object]]
OPTIONS: Mapping[str, Line] = {
    "--label": lambda text, run, out: _analyze(run, out, "--label", text),
    "--by": lambda text, run, out: _analyze(run, out, "--by", text),
    "--since": lambda text, run, out: _analyze(run, out, "--since", text),
    "--format": lambda text, run, out: _analyze(run, out, "--format", text),
    "-o": lambda text, run, out: ["analyze", run, "-q", "-o", out / file_name_of(text)],
    "-o of export": lambda text, run, out: [
        *("export", run, "--format", "speculation-profile", "-o", out / file_name_of(text))
    ],
    "--fail-on": lambda text, run, _: ["check", run, "--fail-on", text],
    "--rules": lambda text, run, _: ["check", run, "--rules", text],
    "RUN": lambda text, _, __: ["analyze", text],
    "RUN of compare": lambda text, run, __: ["compare", run, text],
    "TARGET of watch": lambda text, _, __: ["watch", text, "--once"],
    "RUN of probe": lambda text, _, __: ["probe", "status", text],
    "--api-key-env": lambda text, _, out: [
        *("replay", "http://127.0.0.1:9", "-o", out / "replay", "--api-key-env", text)
    ],
    "--suite": lambda text, _, __: ["replay", "http://127.0.0.1:9", "--suite", text, "-o", "run"],
    "URL of replay": lambda text, _, out: ["replay", text, "-o", out / "replay"],
    "command": lambda text, _, __: [text],
}
"""Options and arguments that accept text."""


def _analyze(run: Path, out: Path, *more: str) -> list[object]:
    return ["analyze", run, "-o", out / "r.html", "--json", *more]


def say_option(random: Random, run: Path, folder: Path) -> None:
    """Pass a hostile text as an option's value."""
    option, text = random.choice(sorted(OPTIONS)), argument_of(text_of(random))
    out = folder / "out"
    out.mkdir()
    try:
        found = outcome_of(OPTIONS[option](text, run, out))
        if found.code == 0:
            check_files(out)
    except AssertionError as error:
        raise AssertionError(f"{option}: {error}") from error


def say_condition(random: Random, run: Path, folder: Path) -> None:
    """Pass a random condition to `analyze --where`."""
    text = argument_of(soup(random))
    outcome_of(["analyze", run, "-q", "-o", folder / "r.html", "--where", text])
