"""Where queries run: Ibis expressions over tables that have a name, on DuckDB.

Expressions are built on unbound tables (`ibis.table(schema, name="draft")`), so that the same
object runs on any engine that has a view of that name, and is compiled once per dialect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from driftscope.errors import DamagedTraceError

MEMORY_LIMIT = "1200MiB"
"""Of DuckDB; beyond it spills to disk. Leaves room under 2 GiB for Python and what Arrow holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Parquet files of one record that have the same columns."""

    paths: tuple[Path, ...]
    columns: Mapping[str, pa.DataType]
    """As they are in the files."""
    constant: Mapping[str, Any]
    """Columns, by name, that have this value in every row, whatever the files say."""
    unsaid: Mapping[str, str] = field(default_factory=dict)
    """Text columns, by name, in which an empty text stands for this one."""


Content: TypeAlias = pa.Table | Sequence[Files]


class Engine(Protocol):
    """Holds views and runs queries on them."""

    def view(self, name: str, content: Content, schema: pa.Schema) -> None:
        """Have `name` stand for rows: a table in memory, or files with the columns of `schema`."""
        ...

    def define(self, name: str, sql: str) -> None:
        """Have `name` stand for an SQL query on other views."""
        ...

    def keep(self, name: str, query: Any) -> None:
        """Have `name` stand for the rows of an Ibis expression, which is run once."""
        ...

    def rows(self, query: Any) -> pa.Table:
        """The rows of an Ibis expression."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class DuckDB:
    """DuckDB within this process."""

    def __init__(self, *, memory_limit: str = MEMORY_LIMIT) -> None:
        import duckdb

        self._connection = duckdb.connect()
        self._connection.execute(f"SET memory_limit = '{memory_limit}'")
        with suppress(duckdb.InvalidInputException):  # Jupyter without ipywidgets: has no bar
            self._connection.execute("SET enable_progress_bar = false")  # it would go to stdout
        self._connection.execute("SET preserve_insertion_order = false")
        self._connection.execute("SET parquet_metadata_cache = true")

    def view(self, name: str, content: Content, schema: pa.Schema) -> None:
        """See `Engine`."""
        if isinstance(content, pa.Table):
            self._connection.register(f"{name}_rows", content)
            sql = f"SELECT * FROM {name}_rows"
        else:
            sql = " UNION ALL ".join(self._select(files, schema) for files in content)
        self.define(name, sql)

    def define(self, name: str, sql: str) -> None:
        """See `Engine`."""
        self._connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {sql}")

    def keep(self, name: str, query: Any) -> None:
        """See `Engine`. Raises DamagedTraceError as `rows` does."""
        sql = sql_of(query.op(), "duckdb")
        with _reading():
            self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {sql}")

    def rows(self, query: Any) -> pa.Table:
        """See `Engine`. Raises DamagedTraceError for files that cannot be read after all."""
        with _reading():
            return self._connection.sql(sql_of(query.op(), "duckdb")).to_arrow_table()

    def close(self) -> None:
        """See `Engine`."""
        self._connection.close()

    def _select(self, files: Files, schema: pa.Schema) -> str:
        paths = ", ".join(_text(str(path)) for path in files.paths)
        columns = ", ".join(column(files, f, DUCKDB_TYPES, "epoch_us") for f in schema)
        return f"SELECT {columns} FROM read_parquet([{paths}])"


@contextmanager
def _reading() -> Iterator[None]:
    import duckdb

    try:
        yield
    except (duckdb.IOException, duckdb.InvalidInputException) as error:
        first = str(error).splitlines()[0]
        raise DamagedTraceError(f"{first}; move the file away to analyse the rest") from error


DUCKDB_TYPES: Mapping[pa.DataType, str] = {
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.bool_(): "BOOLEAN",
    pa.list_(pa.float32()): "FLOAT[]",
    pa.list_(pa.int32()): "INTEGER[]",
}


def column(files: Files, wanted: pa.Field, types: Mapping[pa.DataType, str], micros: str) -> str:
    """The SQL of one column of a view; `micros` is the function from timestamps to microseconds."""
    name, kind = wanted.name, types[wanted.type]
    if name in files.constant:
        value = f"CAST({_literal(files.constant[name])} AS {kind})"
    elif name not in files.columns:
        value = f"CAST(NULL AS {kind})"
    elif pa.types.is_timestamp(files.columns[name]):
        value = f"{micros}({name}) / 1e6"
    elif name in files.unsaid:
        value = f"CASE WHEN {name} = '' THEN {_text(files.unsaid[name])} ELSE {name} END"
    else:
        value = name if files.columns[name] == wanted.type else f"CAST({name} AS {kind})"
    return f"{value} AS {name}"


def _literal(value: Any) -> str:
    return "NULL" if value is None else _text(value) if isinstance(value, str) else repr(value)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


@cache
def sql_of(query: Any, dialect: str) -> str:
    """An Ibis operation in the words of an engine."""
    import ibis

    return str(ibis.to_sql(query.to_expr(), dialect=dialect, pretty=False))
