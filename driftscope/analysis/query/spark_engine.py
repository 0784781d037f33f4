"""Spark as the query engine, for runs of a fleet that one machine cannot read in time.

It runs the same expressions as DuckDB, with the same results: counts are exact, and sums of
measured numbers are equal up to rounding, because rows are added in another order. All machines of
the cluster must be able to read the files under the same path.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from driftscope.analysis.query.query_engine import Content, Dialect, Files, Later, column, sql_of
from driftscope.errors import DamagedTraceError, UsageError
from driftscope.trace.schema import nulls_as_nan

SCHEME = "spark://"


def _text(value: str) -> str:
    """Return a text as a literal; Spark reads a backslash in a text as the start of an escape."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _identifier(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


DIALECT = Dialect(
    name="pyspark",
    types={
        pa.int64(): "BIGINT",
        pa.float64(): "DOUBLE",
        pa.string(): "STRING",
        pa.bool_(): "BOOLEAN",
        pa.list_(pa.float32()): "ARRAY<FLOAT>",
        pa.list_(pa.int32()): "ARRAY<INT>",
    },
    micros="unix_micros",
    text=_text,
    identifier=_identifier,
    number_up_to=lambda column, value: f"size(filter({column}, x -> x <= {value}))",
    element=lambda column, place: f"get({column}, {place} - 1)",
)
LITERAL_PATHS: Mapping[str, str] = {
    # A path is not a pattern. This is Spark's own option, which its SQL uses to read the files of a
    # catalogue.
    "__globPaths__": "false",
    # A folder called name=value is not a column.
    "recursiveFileLookup": "true",
}
SETTINGS: Mapping[str, str] = {
    # As in DuckDB, an element that a list lacks is null, and so is a division by zero.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
    # The other reader does not support BYTE_STREAM_SPLIT, the encoding of measured numbers.
    "spark.sql.parquet.enableVectorizedReader": "false",
    # Queries of hundreds of sums exceed the size limit of one generated method.
    "spark.sql.codegen.wholeStage": "false",
}
LOCAL: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
}
"""Settings for Spark within this process: it listens to itself only."""


class Spark:
    """A Spark session; `url` is spark://HOST:PORT, or spark://local[N] within this process.

    Raises ModuleNotFoundError without pyspark, UsageError if there is no Java or no cluster.
    """

    dialect = DIALECT

    def __init__(self, url: str) -> None:
        import ibis

        with _of_pandas():
            from pyspark.sql import SparkSession

            _ = ibis.pyspark  # registers the options that its SQL reads
        local = url.removeprefix(SCHEME)
        is_local = local.startswith("local")
        builder = SparkSession.builder.appName("driftscope").master(local if is_local else url)
        for name, value in (LOCAL if is_local else {}).items():
            builder = builder.config(name, value)
        try:
            self._session = builder.getOrCreate().newSession()
        except Exception as error:  # each layer below raises its own type
            raise UsageError(f"{url}: cannot connect to Spark ({_first_line(error)})") from error
        for name, value in SETTINGS.items():
            self._session.conf.set(name, value)

    def admit(self, paths: Iterable[Path]) -> None:
        """See `driftscope.analysis.query.query_engine.Engine`. Does nothing: the owner of a cluster
        decides what it may read.

        The SQL that reaches the cluster is made from checked expressions only.
        """

    def view(self, name: str, content: Content, schema: pa.Schema) -> None:
        """See `driftscope.analysis.query.query_engine.Engine`. Raises DamagedTraceError like
        `rows`."""
        if isinstance(content, pa.Table):
            with _reading(), _of_pandas():
                self._session.createDataFrame(content).createOrReplaceTempView(f"{name}_rows")
            self.define(name, f"SELECT * FROM {_identifier(f'{name}_rows')}")
            return
        parts = [self._select(name, at, files, schema) for at, files in enumerate(content)]
        self.define(name, " UNION ALL ".join(parts))

    def define(self, name: str, sql: str) -> None:
        """See `query_engine.Engine`. Raises DamagedTraceError like `rows`."""
        with _reading():
            self._session.sql(f"CREATE OR REPLACE TEMP VIEW {_identifier(name)} AS {sql}")

    def keep(self, name: str, query: Any) -> None:
        """See `query_engine.Engine`. Raises DamagedTraceError like `rows`."""
        with _reading():
            frame = self._session.sql(sql_of(query.op(), self.dialect.name))
            frame.cache().createOrReplaceTempView(name)

    def rows(self, query: Any) -> pa.Table:
        """See `driftscope.analysis.query.query_engine.Engine`. Raises DamagedTraceError if Spark
        cannot read the files or finish the query."""
        return self.later(query).value

    def later(self, query: Any) -> Later[pa.Table]:
        """See `query_engine.Engine`. The query runs when its rows are asked for, because a cluster
        spreads each over all of its machines. Raises DamagedTraceError like `rows`."""
        with _reading():
            frame = self._session.sql(sql_of(query.op(), self.dialect.name))  # binds the views

        def fetched() -> pa.Table:
            with _reading(), _of_pandas():
                return nulls_as_nan(frame.toArrow())

        return Later(fetched)

    def close(self) -> None:
        """See `driftscope.analysis.query.query_engine.Engine`. The process keeps its connection to
        Spark."""
        for table in self._session.catalog.listTables():
            self._session.catalog.dropTempView(table.name)

    def _select(self, name: str, at: int, files: Files, schema: pa.Schema) -> str:
        view = f"{name}_files_{at}"
        # Without a leading slash, Hadoop treats the text before a colon as a scheme.
        paths = [str(path.absolute()) for path in files.paths]
        with _reading():
            frame = self._session.read.options(**LITERAL_PATHS).parquet(*paths)
            frame.createOrReplaceTempView(view)
        columns = ", ".join(column(files, f, self.dialect) for f in schema)
        return f"SELECT {columns} FROM {_identifier(view)}"


@contextmanager
def _reading() -> Iterator[None]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise DamagedTraceError(f"Spark: {_first_line(error)}") from error


@contextmanager
def _of_pandas() -> Iterator[None]:
    """Silence pyspark's warning about a pandas newer than it knows: rows are passed by Arrow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
