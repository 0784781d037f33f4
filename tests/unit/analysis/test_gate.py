"""Tests of what a user writes: gates of `--require` and conditions of `--where`."""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from pathlib import Path

import duckdb
import ibis
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from driftscope.analysis.condition_columns import COLUMNS
from driftscope.analysis.conditions import MAX_CHARS, MAX_NESTING, condition_of
from driftscope.analysis.gate import RuleResult, RunFacts, holds, judge, rule_of
from driftscope.analysis.query.query_engine import DuckDB
from driftscope.errors import DriftscopeError, UsageError

RUN = {
    "k": 4,
    "acceptance": {
        "mean_length": 1.95,
        "mean_length_interval": {"low": 1.8, "high": 2.1},
        "marginal": [0.8, 0.4, None],
        "marginal_interval": [{"low": 0.75, "high": 0.85}, {"low": 0.3, "high": 0.5}, None],
    },
    "attention": {"self_mass": [0.0, 0.2, 0.6], "sink_mass": None},
    "fallback": {"steps": 100, "by_reason": {"k_zero": 3}},
    "manifest": {"mode": "eager"},
    "timing": {"date": {"select": [1.0, 3.0]}},
    "segments": [{"label": "in distribution", "mean_length": 2.5}],
}
BASELINE = {
    "acceptance": {"mean_length": 2.5, "mean_length_interval": {"low": 2.4, "high": 2.6}},
    "manifest": {"mode": "full graphs"},
}


def _found(name: str) -> bool | None:
    known = {"sink_lost": True, "decay_over_time": None, "acceptance_dies": False}
    if name not in known:
        raise UsageError(f"{name}: no finding")
    return known[name]


FACTS = RunFacts(
    run={**RUN, "requests": 50},
    baseline=BASELINE,
    has_finding=_found,
    countable=frozenset({"k_zero", "no_draft"}),
)


def _answer(text: str, facts: RunFacts = FACTS) -> bool | None:
    return holds(rule_of(text).condition, facts, {}, [])


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("attention.self_mass[-1] > 0.5", True),
        ("k == 4 and fallback.steps >= 100", True),
        ("1 < k < 4", False),
        ("fallback.by_reason.k_zero / fallback.steps > 0.02", True),
        ("fallback.by_reason.no_draft > 0", False),
        ("segments['in distribution'].mean_length > 2", True),
        ("manifest.mode == 'eager'", True),
        ("manifest.mode != baseline.manifest.mode", True),
        ("-k < -3", True),
        ("k = 4 AND NOT acceptance_dies", True),
        ("k <> 4", False),
        ("'eager' = manifest.mode", True),
        ('segments["in distribution"].mean_length > 2', True),
        ("timing.date.select[-1] > 2", True),  # keywords of SQL are names like others
        ("sink_lost", True),
        ("not sink_lost or acceptance_dies", False),
        ("acceptance.mean_length < 0.95 * baseline.acceptance.mean_length", True),
        ("acceptance.mean_length < 0.70 * baseline.acceptance.mean_length", False),
        ("acceptance.mean_length < 0.80 * baseline.acceptance.mean_length", None),
        ("acceptance.mean_length / baseline.acceptance.mean_length < 0.95", True),
        ("attention.sink_mass[0] < 0.1", None),
        ("attention.sink_mass == 0", None),
        ("acceptance.marginal[2] < 0.5", None),
        ("not acceptance.marginal[2] < 0.5", None),
        ("decay_over_time", None),
        ("not decay_over_time", None),
        ("k / (k - 4) > 0", None),
        ("k == 4 and decay_over_time", None),
        ("k == 5 or attention.sink_mass[0] < 0.1", None),
        ("k == 5 and attention.sink_mass[0] < 0.1", False),
        ("k == 4 or attention.sink_mass[0] < 0.1", True),
        ("known(attention.sink_mass) and attention.sink_mass[0] < 0.1", False),
        ("not known(attention.sink_mass)", True),
        ("known(k)", True),
    ],
)
def test_answer_of_which_null_is_neither_true_nor_false(text: str, answer: bool | None) -> None:
    assert _answer(text) is answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("acceptance.mean_length < 2.0", None),  # 1.95, and 2.1 is in its interval
        ("acceptance.mean_length > 1.9", None),
        ("acceptance.mean_length == 1.95", None),
        ("acceptance.mean_length != 1.95", None),
        ("acceptance.mean_length < 2.2", True),
        ("acceptance.mean_length >= 2.2", False),
        ("acceptance.mean_length == 2.2", False),
        ("acceptance.mean_length != 2.2", True),
        ("acceptance.marginal[1] > 0.35", None),
        ("acceptance.marginal[0] > 0.7", True),
        ("acceptance.marginal[-3] <= 0.7", False),
    ],
)
def test_noise_decides_no_rule(text: str, answer: bool | None) -> None:
    """A comparison with a bound in the interval is undecided, and so is its opposite."""
    assert _answer(text) is answer
    assert _answer(f"not ({text})") is (None if answer is None else not answer)


def _latency(tpot_s: float, ttft_s: float) -> dict[str, object]:
    return {
        "tpot_s": tpot_s,
        "tpot_s_interval": {"low": tpot_s - 0.0001, "high": tpot_s + 0.0001},
        "ttft_s": ttft_s,
        "ttft_s_interval": {"low": 0.9 * ttft_s, "high": 1.1 * ttft_s},
    }


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("no_worse(acceptance.mean_length, 50%)", True),
        ("no_worse(acceptance.mean_length, 5%)", False),
        ("no_worse(acceptance.mean_length, 22%)", None),
        ("no_worse(acceptance.mean_length, 0.5)", True),
        ("not no_worse(acceptance.mean_length, 5%)", True),
        ("no_worse(latency.tpot_s, 5%)", False),
        ("no_worse(latency.tpot_s, 40%)", None),  # two starts of a server differ by 5 % each
        ("no_worse(latency.tpot_s, 60%)", True),
        ("no_worse(latency.ttft_s, 5%)", True),
    ],
)
def test_no_worse_than_the_baseline(text: str, answer: bool | None) -> None:
    """Less acceptance is worse, and so is more time."""
    run, baseline = (
        RUN | {"latency": _latency(0.013, 0.1)},
        BASELINE | {"latency": _latency(0.01, 0.2)},
    )
    assert _answer(text, replace(FACTS, run=run, baseline=baseline)) is answer


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        ("acceptance.mean_length < 2.0", 50 * 9 * 2.04),  # for a power of 80 %
        ("acceptance.mean_length < 1.95", None),
        ("acceptance.mean_length < 2.2", None),
        ("attention.sink_mass > 0", None),
    ],
)
def test_an_open_comparison_says_how_many_requests_would_decide_it(
    text: str, requests: float | None
) -> None:
    (judged,) = judge([rule_of(text)], [("run", FACTS)])
    assert judged.wanted_requests == (requests and pytest.approx(requests, rel=0.01))
    if requests:
        assert judged.outcome is RuleResult.UNDECIDED
        assert judged.line().endswith("919 requests would decide it in four of five recordings")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("acceptance.mean_lenght < 2", "did you mean 'mean_length'"),
        ("acceptence.mean_length < 2", "did you mean 'acceptance'"),
        ("attention.self_mass[3] > 0", "[0] to [2]"),
        ("attention.self_mass > 0", "not a single figure"),
        ("fallback.by_reason.sunshine > 0", "no_draft"),
        ("segments['x'].mean_length > 2", "'in distribution'"),
        ("manifest.mode > 2", "texts"),
        ("manifest.mode + 1 > 2", "text"),
        ("no_such_finding", "no finding"),
    ],
)
def test_what_does_not_exist_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        _answer(text)
    assert said in str(caught.value)


def test_a_rule_about_a_baseline_needs_one() -> None:
    with pytest.raises(UsageError, match="--baseline"):
        _answer("baseline.k > 2", replace(FACTS, baseline=None))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "acceptance.mean_length",
        "acceptance.mean_length <",
        "__import__('os').system('true')",
        "k if k else k < 2",
        "[k for k in k] == 1",
        "k ** 9 > 1",
        "k % 2 == 1",
        "k in (1, 2)",
        "k is 4",
        "(lambda: 1)() > 0",
        "k == None",
        "k == True",
        "attention.self_mass[k] > 0",
        "attention.self_mass[0:1] > 0",
        "attention.self_mass[True] > 0",
        "known(1)",
        "known(k, k)",
        "open('x') == 1",
        "k in (select 1)",
        "k > 1); COPY (SELECT 42) TO 'pwn.csv'; --",
        "k < 2; k > 3",
        "k := 3",
        "f'{k}' == 'x'",
        "no_worse(acceptance.mean_length)",
        "no_worse(acceptance.mean_length, 0%)",
        "no_worse(acceptance.mean_length, 100%)",
        "no_worse(acceptance.mean_length, k)",
        "no_worse(baseline.acceptance.mean_length, 5%)",
        "no_worse(2, 5%)",
        "k % 5",
        "k < 5%",
        "(" * 500 + "k" + ")" * 500 + " > 1",
        "k > 1 " + "and k > 1 " * 500,
        "\0 < 2",
    ],
)
def test_everything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        _answer(text)
    assert caught.value.exit_code == 2


@given(st.text(max_size=60))
def test_any_text_is_a_rule_that_can_be_evaluated_or_a_usage_error(text: str) -> None:
    try:
        _answer(text)
    except DriftscopeError as error:
        assert isinstance(error, UsageError)


SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
COMPARISONS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


@given(
    st.tuples(*[st.integers(-50, 50)] * 3), st.sampled_from("+-*"), st.sampled_from([*COMPARISONS])
)
def test_exact_arithmetic_is_python_s(
    numbers: tuple[int, int, int], sign: str, compare: str
) -> None:
    a, b, c = numbers
    expected = COMPARISONS[compare](SIGNS[sign](a, b), c)
    assert _answer(f"{a} {sign} {b} {compare} {c}") is expected
    assert _answer(f"not {a} {sign} {b} {compare} {c}") is not expected


@pytest.mark.parametrize(
    "text",
    [
        "acceptance.mean_length < 99",
        "not acceptance.mean_length < 99",
        "acceptance.mean_length > 1",
        "acceptance.marginal[1] < 0.99",
        "acceptance.mean_length < baseline.acceptance.mean_length",
    ],
)
def test_an_estimate_without_an_interval_decides_nothing(text: str) -> None:
    acceptance = {
        "mean_length": 1.95,
        "mean_length_interval": None,
        "marginal": [0.8, 0.4],
        "marginal_interval": [{"low": 0.7, "high": 0.9}, None],
    }
    facts = replace(FACTS, run={"acceptance": acceptance})
    assert _answer(text, facts) is None
    assert _answer("acceptance.marginal[0] < 0.95", facts) is True, "this one has an interval"


def test_the_page_has_the_bounds() -> None:
    page = (Path(__file__).parents[3] / "docs" / "conditions.md").read_text("utf-8")
    assert f"at most {MAX_CHARS:,} characters and brackets nested {MAX_NESTING} deep" in page


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


@functools.cache
def _engine() -> DuckDB:
    engine = DuckDB()
    engine.view("some", ROWS, ROWS.schema)
    return engine


def _rows(text: str) -> list[int]:
    """The rows that meet a condition, by driftscope's engine."""
    table = ibis.table(ibis.Schema.from_pyarrow(ROWS.schema), name="some")
    met = table.filter(condition_of(text).on(table)).select("row").order_by("row")
    return list(_engine().rows(met).column("row").to_pylist())


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a condition"),
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
        ("read_text('secret.csv') = ''", "'read_text' is a function"),
        ("label in (select 'a')", "'select' is not a column"),
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


@pytest.mark.parametrize(
    "text",
    [
        " or ".join(["k=1"] * ((MAX_CHARS + 4) // 7)),
        f"k in ({','.join(['1'] * 2000)})",
        "(" * 30 + "k=1" + ")" * 30,
    ],
    ids=["characters", "items", "brackets"],
)
def test_the_longest_conditions_are_answered(text: str) -> None:
    assert _rows(text) == [0]


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
    # As the language has it: arithmetic in floating point.
    given = "SELECT * REPLACE (context::DOUBLE AS context, k::DOUBLE AS k) FROM ROWS"
    found = duckdb.sql(f"SELECT row FROM ({given}) WHERE {text} ORDER BY row").fetchall()
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
