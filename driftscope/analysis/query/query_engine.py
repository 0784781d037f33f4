"""Query engines: they run Ibis expressions over named tables; on DuckDB, or on Spark.

Expressions are built on unbound tables (`ibis.table(schema, name="draft")`), so that the same
object runs on any engine that has a view of that name, and is compiled once per dialect. At the
end of the file, columns of their tables become numpy arrays.

Spark is for runs of a fleet that one machine cannot read in time. It runs the same expressions as
DuckDB, with the same results: counts are exact, and sums of measured numbers are equal up to
rounding, because rows are added in another order. All machines of the cluster must be able to read
the files under the same path."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftscope.errors import DamagedTraceError, UsageError
from driftscope.trace.schema import nulls_as_nan

PREFIX = "driftscope-queries-"
ABANDONED_S = 60.0
"""Age in seconds below which a folder may belong to a process that has not locked it yet."""
PATTERN = frozenset("*?[\\")
"""Characters that engines read as a pattern, or as an escape in one."""


class Scratch:
    """A folder of this process, below $TMPDIR; it is removed at `close` or at exit.

    The folder is locked, so that a later process can remove the folder of a process that was
    killed. Raises UsageError if $TMPDIR cannot be used.
    """

    def __init__(self) -> None:
        base = tempfile.gettempdir()
        if PATTERN & set(base):
            raise UsageError(
                f"TMPDIR={base!r}: queries cannot use a folder with one of "
                f"{' '.join(sorted(PATTERN))} in its name; set TMPDIR to another"
            )
        _remove_abandoned(base)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        handle = _locked(self.path)
        self._finalizer = weakref.finalize(self, _remove, self.path, handle, os.getpid())

    def close(self) -> None:
        """Remove the folder; a second call does nothing."""
        self._finalizer()


def _locked(folder: Path) -> int | None:
    """Return a handle that holds the lock on `folder`; None if another process holds it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _remove(folder: Path, handle: int | None, owner: int) -> None:
    if os.getpid() != owner:  # a forked child: the folder is still its parent's
        return
    shutil.rmtree(folder, ignore_errors=True)
    if handle is not None:
        os.close(handle)


@cache
def _remove_abandoned(base: str) -> None:
    """Remove the folders of this user's processes that ended without removing them; once per
    process."""
    for folder in Path(base).glob(f"{PREFIX}*"):
        try:
            status = folder.lstat()
            is_own_folder = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if not is_own_folder or time.time() - status.st_mtime < ABANDONED_S:
                continue
            handle = _locked(folder)
        except OSError:  # another process was faster
            continue
        if handle is not None:
            _remove(folder, handle, os.getpid())


MEMORY_LIMIT = "1200MiB"
"""Memory limit of DuckDB, above which it spills to disk. It leaves room under 2 GiB for Python and
Arrow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewFiles:
    """Parquet files of one record that have the same columns."""

    paths: tuple[Path, ...]
    columns: Mapping[str, pa.DataType]
    """Types of the columns, as in the files."""
    constant: Mapping[str, Any]
    """Columns, by name, that have this value in every row, whatever the files contain."""
    unseen: Mapping[str, str] = field(default_factory=dict)
    """Text columns, by name, in which an empty text stands for this value."""


Content: TypeAlias = pa.Table | Sequence[ViewFiles]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Differences between engines in driftscope's own SQL."""

    name: str
    """Name of the engine in Ibis."""
    types: Mapping[pa.DataType, str]
    micros: str
    """Function from timestamps to microseconds."""
    text: Callable[[str], str]
    """Function that returns a text as a literal."""
    identifier: Callable[[str], str]
    """Function that returns the name of a column or view in quotes."""
    number_up_to: Callable[[str, str], str]
    """Function that returns how many elements of a list are at most a value."""
    element: Callable[[str, str], str]
    """Function that returns the element of a list at a place, from 1; null at place 0."""


class QueryEngine(Protocol):
    """Engine that has views and runs queries on them."""

    dialect: Dialect

    def admit(self, paths: Iterable[Path]) -> None:
        """Let queries read these files and, from now on, nothing else outside the engine.

        It is called once, before the first `view` of files.
        """
        ...

    def view(self, name: str, content: Content, schema: pa.Schema) -> None:
        """Define the view `name` on rows: a table in memory, or files with the columns of
        `schema`."""
        ...

    def define(self, name: str, sql: str) -> None:
        """Define the view `name` by an SQL query on other views."""
        ...

    def keep(self, name: str, query: Any) -> None:
        """Store the rows of an Ibis expression, which is run once, under `name`."""
        ...

    def rows(self, query: Any) -> pa.Table:
        """Return the rows of an Ibis expression."""
        ...

    def close(self) -> None:
        """Release its resources."""
        ...


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


DUCKDB = Dialect(
    name="duckdb",
    types={
        pa.int64(): "BIGINT",
        pa.float64(): "DOUBLE",
        pa.string(): "VARCHAR",
        pa.bool_(): "BOOLEAN",
        pa.list_(pa.float32()): "FLOAT[]",
        pa.list_(pa.int32()): "INTEGER[]",
    },
    micros="epoch_us",
    text=_quoted,
    identifier=_identifier,
    # A comprehension works in all versions; the syntax of lambdas changed.
    number_up_to=lambda column, value: f"len([x FOR x IN {column} IF x <= {value}])",
    element=lambda column, place: f"{column}[{place}]",
)
SETTINGS: Mapping[str, str] = {
    "preserve_insertion_order": "false",
    "parquet_metadata_cache": "true",
    # No extension is fetched or loaded, and no Python variable is used as a table.
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",
}


class DuckDB:
    """DuckDB within this process, locked down: it reads a run's files and writes to its own folder.

    Files are read through links with plain names, because DuckDB treats a path as a pattern and no
    escape for `*`, `?` or `[` works in all its versions.
    """

    dialect = DUCKDB

    def __init__(self, *, memory_limit: str = MEMORY_LIMIT) -> None:
        import duckdb

        self._scratch = Scratch()
        self._links: dict[Path, Path] = {}
        self._memory_limit = memory_limit
        self._is_locked = False
        self._connection = duckdb.connect()
        with suppress(duckdb.InvalidInputException):  # no bar: Jupyter without ipywidgets
            self._set("enable_progress_bar", "false")  # it would go to stdout
        for name, value in SETTINGS.items():
            self._set(name, value)
        self._set("memory_limit", _quoted(memory_limit))
        # DuckDB's own number respects cgroups, and the other one which cores the process may use.
        (threads,) = self._connection.execute("SELECT current_setting('threads')").fetchone()
        self._set("threads", str(min(int(threads), usable_cores())))
        self._set("temp_directory", _quoted(str(self._scratch.path / "spill")))

    def admit(self, paths: Iterable[Path]) -> None:
        """See `QueryEngine`."""
        for at, path in enumerate(paths):
            link = self._scratch.path / f"{at}.parquet"
            link.symlink_to(path.absolute())
            self._links[path] = link
        allowed = ", ".join(_quoted(str(link)) for link in self._links.values())
        self._set("allowed_paths", f"[{allowed}]")
        self._set("enable_external_access", "false")
        self._set("lock_configuration", "true")
        self._is_locked = True

    def view(self, name: str, content: Content, schema: pa.Schema) -> None:
        """See `QueryEngine`. Raises DamagedTraceError like `rows`."""
        if isinstance(content, pa.Table):
            self._connection.register(f"{name}_rows", content)
            self.define(name, f"SELECT * FROM {_identifier(f'{name}_rows')}")
        else:
            self.define(name, " UNION ALL ".join(self._select(files, schema) for files in content))

    def define(self, name: str, sql: str) -> None:
        """See `QueryEngine`. Raises DamagedTraceError like `rows`."""
        self._run(f"CREATE OR REPLACE TEMP VIEW {_identifier(name)} AS {sql}")

    def keep(self, name: str, query: Any) -> None:
        """See `QueryEngine`. Raises DamagedTraceError like `rows`."""
        sql = sql_of(query.op(), self.dialect.name)
        self._run(f"CREATE OR REPLACE TEMP TABLE {_identifier(name)} AS {sql}")

    def rows(self, query: Any) -> pa.Table:
        """See `QueryEngine`. Raises DamagedTraceError for files that turn out to be unreadable and
        for values in them that queries cannot process."""
        sql = sql_of(query.op(), self.dialect.name)
        self._lock()
        with self._reading():
            return nulls_as_nan(self._connection.sql(sql).to_arrow_table())

    def close(self) -> None:
        """See `QueryEngine`."""
        self._connection.close()
        self._scratch.close()

    def _run(self, sql: str) -> None:
        self._lock()
        with self._reading():
            self._connection.execute(sql)

    def _lock(self) -> None:
        """Lock the connection; a run in memory has admitted no file."""
        if not self._is_locked:
            self.admit(())

    def _set(self, name: str, value: str) -> None:
        self._connection.execute(f"SET {name} = {value}")

    def _select(self, files: ViewFiles, schema: pa.Schema) -> str:
        paths = ", ".join(_quoted(str(self._links[path])) for path in files.paths)
        columns = ", ".join(column(files, f, self.dialect) for f in schema)
        return f"SELECT {columns} FROM read_parquet([{paths}], hive_partitioning = false)"

    @contextmanager
    def _reading(self) -> Iterator[None]:
        import duckdb

        try:
            yield
        except duckdb.OutOfMemoryException as error:
            raise DamagedTraceError(
                f"{self._place()}: a query needs more than {self._memory_limit} of memory; a row "
                "of the run is too large, or use --since to read fewer rows"
            ) from error
        except (duckdb.IOException, duckdb.InvalidInputException) as error:
            first = self._with_file_names(str(error))
            raise DamagedTraceError(f"{first}; move the file away to analyse the rest") from error
        except duckdb.Error as error:
            raise DamagedTraceError(
                f"{self._place()}: holds a value that cannot be processed "
                f"({self._with_file_names(str(error))}); move the file with it away to analyse "
                "the rest"
            ) from error

    def _with_file_names(self, message: str) -> str:
        """Return the first line of DuckDB's `message` with the files' own names."""
        first = next(iter(message.splitlines()), "")
        for path, link in self._links.items():
            first = first.replace(str(link), str(path))
        return first

    def _place(self) -> str:
        """Return the folder of the run."""
        return next((str(path.parent) for path in self._links), "the run")


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def column(files: ViewFiles, wanted: pa.Field, dialect: Dialect) -> str:
    """Return the SQL of one column of a view."""
    plain, kind = wanted.name, dialect.types[wanted.type]
    name = dialect.identifier(plain)
    if plain in files.constant:
        known = files.constant[plain]
        # A floating-point number is written as a text: infinity has no other literal.
        literal = repr(known) if isinstance(known, int) else dialect.text(str(known))
        value = f"CAST({'NULL' if known is None else literal} AS {kind})"
    elif plain not in files.columns:
        value = f"CAST(NULL AS {kind})"
    elif pa.types.is_timestamp(files.columns[plain]):
        value = f"{dialect.micros}({name}) / 1e6"
    elif plain in files.unseen:
        value = f"CASE WHEN {name} = '' THEN {dialect.text(files.unseen[plain])} ELSE {name} END"
    else:
        value = name if files.columns[plain] == wanted.type else f"CAST({name} AS {kind})"
    return f"{value} AS {name}"


@cache
def sql_of(query: Any, dialect: str) -> str:
    """Return an Ibis operation as SQL in the dialect of an engine."""
    import ibis

    return str(ibis.to_sql(query.to_expr(), dialect=dialect, pretty=False))


Codes = NDArray[np.int64]
"""Requests as small integers, see `driftscope.analysis.figures.requests`."""
Matrix = NDArray[np.float64]
Record = TypeVar("Record")


def floats(table: pa.Table, name: str) -> Matrix:
    """Return a number column, [n]; NaN for null."""
    return np.asarray(table.column(name).to_numpy(), dtype=np.float64)


def whole(table: pa.Table, name: str) -> NDArray[np.int64]:
    """Return a column of counts or integers, [n], which some engines sum in wider types; null is
    0."""
    column = table.column(name).cast(pa.int64())
    known = pc.fill_null(column, 0) if column.null_count else column
    return np.asarray(known.to_numpy(), np.int64)


def total(table: pa.Table, name: str) -> int:
    """Return the sum of a column of counts."""
    return int(whole(table, name).sum())


def in_order(table: pa.Table, *names: str) -> pa.Table:
    """Return the rows in ascending order of these columns, so that sums over them are equal to the
    bit whatever files or engine they come from."""
    return table.sort_by([(name, "ascending") for name in names])


def rows_of(record: Record, rows: NDArray[np.bool_]) -> Record:
    """Return a record of arrays with only the rows that a mask selects, [rows] each; fields that
    are no arrays stay."""
    columns = {field.name: getattr(record, field.name) for field in fields(record)}  # type: ignore[arg-type]
    arrays = {name: v[rows] for name, v in columns.items() if isinstance(v, np.ndarray)}
    return replace(record, **arrays)  # type: ignore[type-var]


def ranked(codes: Codes) -> tuple[Codes, Codes]:
    """Return the different codes, ascending, and the rank of each code among them, [rows].

    It is `np.unique` with the inverse. Codes from 0 that have few gaps are counted, not sorted.
    """
    most = int(codes.max(initial=-1))
    if not len(codes) or codes.min() < 0 or most > 8 * len(codes):
        different, rank = np.unique(codes, return_inverse=True)
        return different, rank.astype(np.int64)
    is_met = np.zeros(most + 1, dtype=np.bool_)
    is_met[codes] = True
    return np.flatnonzero(is_met), (np.cumsum(is_met) - 1)[codes]


def sums_column(table: pa.Table, name: str) -> Matrix:
    """Return a column of sums, [n]; null, the sum of nothing, is 0."""
    values = pc.fill_null(table.column(name).cast(pa.float64()), 0.0)
    return np.asarray(values.to_numpy(), dtype=np.float64)


SCHEME = "spark://"


def _spark_text(value: str) -> str:
    """Return a text as a literal; Spark reads a backslash in a text as the start of an escape."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _spark_identifier(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


PYSPARK = Dialect(
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
    text=_spark_text,
    identifier=_spark_identifier,
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
SPARK_SETTINGS: Mapping[str, str] = {
    # As in DuckDB, an element that a list lacks is null, and so is a division by zero.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
    # The other reader does not support BYTE_STREAM_SPLIT, the encoding of measured numbers.
    "spark.sql.parquet.enableVectorizedReader": "false",
    # Queries of hundreds of sums exceed the size limit of one generated method.
    "spark.sql.codegen.wholeStage": "false",
}
SPARK_LOCAL: Mapping[str, str] = {
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

    dialect = PYSPARK

    def __init__(self, url: str) -> None:
        import ibis

        with _of_pandas():
            from pyspark.sql import SparkSession

            _ = ibis.pyspark  # registers the options that its SQL reads
        local = url.removeprefix(SCHEME)
        is_local = local.startswith("local")
        builder = SparkSession.builder.appName("driftscope").master(local if is_local else url)
        for name, value in (SPARK_LOCAL if is_local else {}).items():
            builder = builder.config(name, value)
        try:
            self._session = builder.getOrCreate().newSession()
        except Exception as error:  # each layer below raises its own type
            raise UsageError(f"{url}: cannot connect to Spark ({_first_line(error)})") from error
        for name, value in SPARK_SETTINGS.items():
            self._session.conf.set(name, value)

    def admit(self, paths: Iterable[Path]) -> None:
        """See `QueryEngine`. Does nothing: the owner of a cluster
        decides what it may read.

        The SQL that reaches the cluster is made from checked expressions only.
        """

    def view(self, name: str, content: Content, schema: pa.Schema) -> None:
        """See `QueryEngine`. Raises DamagedTraceError like
        `rows`."""
        if isinstance(content, pa.Table):
            with _reading_spark(), _of_pandas():
                self._session.createDataFrame(content).createOrReplaceTempView(f"{name}_rows")
            self.define(name, f"SELECT * FROM {_spark_identifier(f'{name}_rows')}")
            return
        parts = [self._select(name, at, files, schema) for at, files in enumerate(content)]
        self.define(name, " UNION ALL ".join(parts))

    def define(self, name: str, sql: str) -> None:
        """See `QueryEngine`. Raises DamagedTraceError like `rows`."""
        with _reading_spark():
            self._session.sql(f"CREATE OR REPLACE TEMP VIEW {_spark_identifier(name)} AS {sql}")

    def keep(self, name: str, query: Any) -> None:
        """See `QueryEngine`. Raises DamagedTraceError like `rows`."""
        with _reading_spark():
            frame = self._session.sql(sql_of(query.op(), self.dialect.name))
            frame.cache().createOrReplaceTempView(name)

    def rows(self, query: Any) -> pa.Table:
        """See `QueryEngine`. Raises DamagedTraceError if Spark
        cannot read the files or finish the query."""
        with _reading_spark(), _of_pandas():
            frame = self._session.sql(sql_of(query.op(), self.dialect.name))
            return nulls_as_nan(frame.toArrow())

    def close(self) -> None:
        """See `QueryEngine`. The process keeps its connection to
        Spark."""
        for table in self._session.catalog.listTables():
            self._session.catalog.dropTempView(table.name)

    def _select(self, name: str, at: int, files: ViewFiles, schema: pa.Schema) -> str:
        view = f"{name}_files_{at}"
        # Without a leading slash, Hadoop treats the text before a colon as a scheme.
        paths = [str(path.absolute()) for path in files.paths]
        with _reading_spark():
            frame = self._session.read.options(**LITERAL_PATHS).parquet(*paths)
            frame.createOrReplaceTempView(view)
        columns = ", ".join(column(files, f, self.dialect) for f in schema)
        return f"SELECT {columns} FROM {_spark_identifier(view)}"


@contextmanager
def _reading_spark() -> Iterator[None]:
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
