"""Spark as the engine of queries: for runs of a fleet that one machine does not read in time.

The same expressions as on DuckDB, and the same results: counts exactly, sums of measured numbers to
rounding, since rows are added in another order. Files have to be readable by all of its machines
under the same path.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from driftscope.analysis.query.query_engine import Content, Dialect, Files, column, sql_of
from driftscope.errors import DamagedTraceError, UsageError

SCHEME = "spark://"


def _text(value: str) -> str:
    """Spark reads a backslash in a text as the begin of an escape."""
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
)
LITERAL_PATHS: Mapping[str, str] = {
    # A path is no pattern. Spark's own name for what its SQL reads files of a catalogue with.
    "__globPaths__": "false",
    # A folder called name=value is no column.
    "recursiveFileLookup": "true",
}
SETTINGS: Mapping[str, str] = {
    # As DuckDB has it: an element that a list lacks is null, and so is a division by zero.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
    # The other reader does not know BYTE_STREAM_SPLIT, which measured numbers are encoded with.
    "spark.sql.parquet.enableVectorizedReader": "false",
    # Queries of hundreds of sums are beyond what one generated method may hold.
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
"""Within this process: nothing listens but to itself."""


class Spark:
    """A Spark session of its own; `url` is spark://HOST:PORT, or spark://local[N] within this
    process.

    Raises ModuleNotFoundError without pyspark, UsageError where there is no Java or no cluster.
    """

    dialect = DIALECT

    def __init__(self, url: str) -> None:
        import ibis

        with _of_pandas():
            from pyspark.sql import SparkSession

            _ = ibis.pyspark  # registers the options that its SQL asks for
        local = url.removeprefix(SCHEME)
        is_local = local.startswith("local")
        builder = SparkSession.builder.appName("driftscope").master(local if is_local else url)
        for name, value in (LOCAL if is_local else {}).items():
            builder = builder.config(name, value)
        try:
            self._session = builder.getOrCreate().newSession()
        except Exception as error:  # each layer below has its own
            raise UsageError(f"{url}: no Spark there ({_first_line(error)})") from error
        for name, value in SETTINGS.items():
            self._session.conf.set(name, value)

    def admit(self, paths: Iterable[Path]) -> None:
        """See `driftscope.analysis.query.query_engine.Engine`; what a cluster may read is its
        owner's to say.

        The SQL that reaches it is made of checked expressions alone.
        """

    def view(self, name: str, content: Content, schema: pa.Schema) -> None:
        """See `driftscope.analysis.query.query_engine.Engine`. Raises DamagedTraceError as `rows`
        does."""
        if isinstance(content, pa.Table):
            with _reading(), _of_pandas():
                self._session.createDataFrame(content).createOrReplaceTempView(f"{name}_rows")
            self.define(name, f"SELECT * FROM {_identifier(f'{name}_rows')}")
            return
        parts = [self._select(name, at, files, schema) for at, files in enumerate(content)]
        self.define(name, " UNION ALL ".join(parts))

    def define(self, name: str, sql: str) -> None:
        """See `query_engine.Engine`. Raises DamagedTraceError as `rows` does."""
        with _reading():
            self._session.sql(f"CREATE OR REPLACE TEMP VIEW {_identifier(name)} AS {sql}")

    def keep(self, name: str, query: Any) -> None:
        """See `query_engine.Engine`. Raises DamagedTraceError as `rows` does."""
        with _reading():
            found = self._session.sql(sql_of(query.op(), self.dialect.name))
            found.cache().createOrReplaceTempView(name)

    def rows(self, query: Any) -> pa.Table:
        """See `driftscope.analysis.query.query_engine.Engine`. Raises DamagedTraceError for what
        Spark cannot read or finish."""
        with _reading(), _of_pandas():
            return self._session.sql(sql_of(query.op(), self.dialect.name)).toArrow()

    def close(self) -> None:
        """See `driftscope.analysis.query.query_engine.Engine`. The process keeps its connection to
        Spark."""
        for table in self._session.catalog.listTables():
            self._session.catalog.dropTempView(table.name)

    def _select(self, name: str, at: int, files: Files, schema: pa.Schema) -> str:
        view = f"{name}_files_{at}"
        # Without a leading slash, Hadoop takes what stands before a colon for a scheme.
        paths = [str(path.absolute()) for path in files.paths]
        with _reading():
            found = self._session.read.options(**LITERAL_PATHS).parquet(*paths)
            found.createOrReplaceTempView(view)
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
    """Without pyspark's warning of a pandas newer than it knows: rows go by Arrow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
