"""The documented columns of conditions."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import duckdb
import ibis
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from driftscope.analysis.condition_columns import COLUMNS, Kind
from driftscope.analysis.conditions import MAX_CHARS, MAX_NESTING, condition_of
from driftscope.analysis.query.query_engine import DuckDB
from driftscope.errors import UsageError

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "conditions.md").read_text("utf-8")


@pytest.mark.parametrize("name", COLUMNS)
def test_the_page_has_every_column(name: str) -> None:
    column = COLUMNS[name]
    assert f"| `{name}` | {column.kind} | {column.meaning} |\n" in PAGE


def test_the_page_has_the_bounds() -> None:
    assert f"at most {MAX_CHARS:,} characters and brackets nested {MAX_NESTING} deep" in PAGE


ROWS = pa.table(
    {
        "row": list(range(8)),
        "label": ["chat", "code", None, "", "Chat 2", "50%", "a_b", "it's"],
        "request": ["a", "b", "c", "d", "e", "f", "chat", "h"],
        "context": [1, 5, 100, 4096, None, 7, 0, -3],
        "k": [1, 2, 3, 4, 5, 6, None, 2**62],
        "temperature": [0.0, 0.5, 1.0, None, 0.7, 2.0, float("nan"), float("inf")],
    }
)


def _rows(text: str) -> list[int]:
    """The rows that meet a condition, by driftscope's engine."""
    with closing(DuckDB()) as engine:
        engine.view("some", ROWS, ROWS.schema)
        table = ibis.table(ibis.Schema.from_pyarrow(ROWS.schema), name="some")
        met = table.filter(condition_of(text).on(table)).select("row").order_by("row")
        return list(engine.rows(met).column("row").to_pylist())


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("label = 'chat'", [0]),
        ("LABEL = 'it''s'", [7]),
        ("label <> 'chat' and label != ''", [1, 4, 5, 6, 7]),
        ("context > 4 and context <= 100", [1, 2, 5]),
        ("not (context >= 0)", [7]),
        ("k in (1, 3, 4611686018427387904)", [0, 2, 7]),
        ("k not in (1, 3)", [1, 3, 4, 5, 7]),
        ("label in ('chat', 'code')", [0, 1]),
        ("context between 5 and 100", [1, 2, 5]),
        ("context not between 0 and 4096", [7]),
        ("label like 'ch%'", [0]),
        ("label ilike 'CH%'", [0, 4]),
        ("label like 'a_b'", [6]),
        ("label not like '%a%'", [1, 3, 5, 7]),
        ("label is null", [2]),
        ("label is not null and context is null", [4]),
        ("k * 2 + 1 = context", [1]),
        ("context / 2 = 2.5", [1]),
        ("context / (k - k) > 0", []),
        ("-context = 3", [7]),
        ("temperature = 0.7", [4]),
        ("(k > 3) = (context > 6)", [0, 1, 3, 5]),
        ("true", list(range(8))),
        ("false or not false", list(range(8))),
        ("\"label\" = 'chat'", [0]),
        ("label = 'chat' or label = 'code' and k = 9", [0]),
    ],
)
def test_what_it_keeps(text: str, rows: list[int]) -> None:
    assert _rows(text) == rows


@pytest.mark.parametrize("name", COLUMNS)
def test_every_documented_column_can_be_named(name: str) -> None:
    literal = "'a'" if COLUMNS[name].kind == Kind.TEXT else "1"
    assert condition_of(f"{name} = {literal}").names == {name}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a condition"),
        (" ", "is not a condition"),
        ("context = 'abc'", "context = 'abc'.*context is a number and \"'abc'\" is a text"),
        ("label > 5", "label is a text and '5' is a number"),
        ("k between 'a' and 'b'", "k is a number"),
        ("k in (1, 'a')", "k is a number"),
        ("label + 1 = 2", "label is a text, not a number"),
        ("1 < k < 5", "is true or false"),
        ("(k = 1) < (k = 2)", "no order"),
        ("'abc'", "is a text, not true or false"),
        ("context", "is a number, not true or false"),
        ("not k", "k is a number, not true or false"),
        ("k = null", "IS NULL or IS NOT NULL"),
        ("k is true", "IS takes NULL"),
        ("k in ()", "lacks a list"),
        ("k in label", "not part of a condition"),
        ("label like request", "lacks a pattern"),
        (r"label like '50\%'", "backslash"),
        ("lable = 'a'", "character 1: 'lable' is not a column; did you mean label"),
        ("k = 2 and contxt > 5", "character 11: 'contxt' is not a column; did you mean context"),
        ("accepted > 1", "'accepted' is not a column .columns: time_s"),
        ('label = "chat"', "single quotes"),
        ("label =", "character 7: '=' is not allowed here"),
        ("k > 1e400", "too large a number"),
        ("label = 'a", "quote that is not closed"),
        ("label = '\ud800'", "not allowed in a text"),
        ("k = 4;", "character 6: ';' is not part of a condition"),
        ("k = 4 -- true", "character 7: '-- true' is a comment"),
        ("k /* 4 */ = 4", "is a comment"),
        ("{# k #} k = 4", "is a comment"),
        ("t.k = 4", "'t' is not a column"),
        ("k::int = 4", "'::' is not part"),
        ("k = 4 k", "is not part of a condition"),
        ("CAST(request AS INT) > 1", "character 1: 'CAST' is a function or a type"),
        ("k in range(10000000000)", "'range' is a function"),
        ("label = repeat('x', 2000000000)", "character 9: 'repeat' is a function"),
        ("read_text('secret.csv') = ''", "'read_text' is a function"),
        ("label in (select 'a')", "'select' is not a column"),
        ("exists (select 1)", "'exists' is a function"),
        ("true); COPY (SELECT 42) TO 'pwn1.csv'; --", "is a comment"),
        ("true); ATTACH 'pwn3.db'", r"character 6: ';' is not part"),
        ("SET memory_limit = '1GB'", "'SET' is not a column"),
        ("INSTALL httpfs", "'INSTALL' is not a column"),
        ("position (1) = 1", "'position' is a function"),
        (" or ".join(["k = 1"] * 20_000), f"at most {MAX_CHARS}"),
        ("(" * 2000 + "true" + ")" * 2000, "nest at most 32 deep"),
        ("not " * 1000 + "true", "nest at most 32 deep"),
        ("k = " + "- " * 2000 + "1", "nest at most 32 deep"),
        ("1" + "+1" * 2000 + " > k", "nest at most 32 deep"),
        ("k = 1 = " * 400 + "true", "nest at most 32 deep"),
    ],
)
def test_what_it_refuses(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        condition_of(text)
    assert str(caught.value).startswith("--where") and str(caught.value).isprintable()


def test_the_longest_conditions_are_answered() -> None:
    ors = " or ".join(["k=1"] * ((MAX_CHARS + 4) // 7))
    assert MAX_CHARS - 7 < len(ors) <= MAX_CHARS
    assert _rows(ors) == [0]
    listed = f"k in ({','.join(['1'] * 2000)})"
    assert _rows(listed) == [0]
    assert _rows("(" * 30 + "k=1" + ")" * 30) == [0]


def _number() -> SearchStrategy[str]:
    leaf = st.sampled_from(["context", "k", "temperature", "0", "1", "2.5", "4096"])
    return st.recursive(
        leaf,
        lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
        max_leaves=3,
    )


def _truth() -> SearchStrategy[str]:
    text = st.sampled_from(["label", "request", "'chat'", "''", "'it''s'", "'%'"])
    comparison = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])
    leaf = st.one_of(
        st.builds("{} {} {}".format, _number(), comparison, _number()),
        st.builds("{} {} {}".format, text, comparison, text),
        st.builds("{} in ({}, {})".format, text, text, text),
        st.builds("{} not in ({}, {})".format, _number(), _number(), _number()),
        st.builds("{} between {} and {}".format, _number(), _number(), _number()),
        st.builds("{} not like '{}'".format, text, st.sampled_from(["c%", "_", "%a%", "Chat%"])),
        st.builds("{} is null".format, st.one_of(text, _number())),
        st.builds("{} is not null".format, st.one_of(text, _number())),
        st.sampled_from(["true", "false"]),
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds("({}) and {}".format, inner, inner),
            st.builds("{} or ({})".format, inner, inner),
            st.builds("not ({})".format, inner),
        ),
        max_leaves=5,
    )


@pytest.mark.slow
@settings(max_examples=60)
@given(_truth())
def test_it_means_what_sql_means(text: str) -> None:
    with duckdb.connect() as connection:
        # As the language has it: arithmetic in floating point.
        connection.register("given", ROWS)
        sql = "SELECT * REPLACE (context::DOUBLE AS context, k::DOUBLE AS k) FROM given"
        connection.execute(f"CREATE TABLE expected AS {sql}")
        found = connection.execute(f"SELECT row FROM expected WHERE {text} ORDER BY row").fetchall()
    assert _rows(text) == [row for (row,) in found]


_SIGNS = """
and or not in between like is null true ( ) , = < - + * / % . ; -- /* */ ' " '' 'a' 1 0.5 1e9
select from cast case date interval all any :: [ { $$ @ ? ! ~ || -> ü ²
"""
_WORDS = st.sampled_from([*COLUMNS, *_SIGNS.split(), "\\", "\n", "\0", "\ud800"])


@settings(max_examples=400)
@given(
    st.one_of(
        st.text(max_size=40),
        st.lists(_WORDS, max_size=12).map(" ".join),
        st.lists(_WORDS, max_size=12).map("".join),
    )
)
def test_any_text_is_a_condition_over_columns_or_refused(text: str) -> None:
    rows = ibis.table({name: column.type for name, column in COLUMNS.items()}, name="rows")
    try:
        condition = condition_of(text)
    except UsageError as error:
        assert str(error).isprintable()
        return
    assert condition.names <= set(COLUMNS)
    assert ibis.to_sql(rows.filter(condition.on(rows)), dialect="duckdb")
