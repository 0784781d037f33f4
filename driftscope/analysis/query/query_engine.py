"""Query engines: they run Ibis expressions over named tables; here on DuckDB.

Expressions are built on unbound tables (`ibis.table(schema, name="draft")`), so that the same
object runs on any engine that has a view of that name, and is compiled once per dialect. At the
end of the file, columns of their tables become numpy arrays.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

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
            mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if not mine or time.time() - status.st_mtime < ABANDONED_S:
                continue
            handle = _locked(folder)
        except OSError:  # another process was faster
            continue
        if handle is not None:
            _remove(folder, handle, os.getpid())


T = TypeVar("T")
S = TypeVar("S")


class Later(Generic[T]):
    """A value that `make` returns, or waits for, when it is first asked for. What `make` raises is
    raised then, and each time. `begin` starts work that can go on beside other work."""

    def __init__(self, make: Callable[[], T], begin: Callable[[], object] | None = None) -> None:
        self._make, self._begin = make, begin

    @cached_property
    def value(self) -> T:
        """The value itself."""
        return self._make()

    def begin(self) -> None:
        """Start to make the value, if that can go on beside other work; `value` waits for it."""
        if self._begin is not None:
            self._begin()

    def wait(self) -> None:
        """Wait until the value is there."""
        _ = self.value

    def then(self, change: Callable[[T], S]) -> Later[S]:
        """Return what `change` makes of the value, later, too."""
        return Later(lambda: change(self.value), self.begin)


MEMORY_LIMIT = "1200MiB"
"""Memory limit of DuckDB, above which it spills to disk. It leaves room under 2 GiB for Python and
Arrow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Parquet files of one record that have the same columns."""

    paths: tuple[Path, ...]
    columns: Mapping[str, pa.DataType]
    """Types of the columns, as in the files."""
    constant: Mapping[str, Any]
    """Columns, by name, that have this value in every row, whatever the files contain."""
    unseen: Mapping[str, str] = field(default_factory=dict)
    """Text columns, by name, in which an empty text stands for this value."""


_PATIENCE_S = 0.05
"""Time between two attempts to interrupt a query that is given up."""

Content: TypeAlias = pa.Table | Sequence[Files]


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


class Engine(Protocol):
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

    def later(self, query: Any) -> Later[pa.Table]:
        """Return the rows of an Ibis expression on the views as they are now, not on stored rows.
        An engine that can do so runs the query beside others, from when it is told to begin."""
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
        self._second = self._connection.cursor()
        for connection in (self._connection, self._second):
            with suppress(duckdb.InvalidInputException):  # no bar: Jupyter without ipywidgets
                connection.execute("SET enable_progress_bar = false")  # it would go to stdout
            for name, value in SETTINGS.items():
                connection.execute(f"SET {name} = {value}")
        self._views: list[_View] = []
        self._copied = 0
        self._running: list[Future[pa.Table]] = []
        self._background = ThreadPoolExecutor(1, thread_name_prefix="driftscope-query")
        self._set("memory_limit", _quoted(memory_limit))
        # DuckDB's own number respects cgroups, and the other one which cores the process may use.
        (threads,) = self._connection.execute("SELECT current_setting('threads')").fetchone()
        self._set("threads", str(min(int(threads), usable_cores())))
        self._set("temp_directory", _quoted(str(self._scratch.path / "spill")))

    def admit(self, paths: Iterable[Path]) -> None:
        """See `Engine`."""
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
        """See `Engine`. Raises DamagedTraceError like `rows`."""
        if isinstance(content, pa.Table):
            self._connection.register(f"{name}_rows", content)
            self.define(name, f"SELECT * FROM {_identifier(f'{name}_rows')}", content)
        else:
            self.define(name, " UNION ALL ".join(self._select(files, schema) for files in content))

    def define(self, name: str, sql: str, rows: pa.Table | None = None) -> None:
        """See `Engine`; `rows` is a table that the query reads. Raises DamagedTraceError like
        `rows`."""
        view = _View(name=name, sql=sql, rows=rows)
        self._run(view.definition)
        self._views.append(view)

    def keep(self, name: str, query: Any) -> None:
        """See `Engine`. Raises DamagedTraceError like `rows`."""
        sql = sql_of(query.op(), self.dialect.name)
        self._run(f"CREATE OR REPLACE TEMP TABLE {_identifier(name)} AS {sql}")

    def rows(self, query: Any) -> pa.Table:
        """See `Engine`. Raises DamagedTraceError for files that turn out to be unreadable, and for
        values in them that queries cannot process."""
        sql = sql_of(query.op(), self.dialect.name)
        self._lock()
        with self._reading():
            return nulls_as_nan(self._connection.sql(sql).to_arrow_table())

    def later(self, query: Any) -> Later[pa.Table]:
        """See `Engine`. The value raises what `rows` raises."""
        sql = sql_of(query.op(), self.dialect.name)
        self._lock()
        views = len(self._views)

        @cache
        def running() -> Future[pa.Table]:
            begun = self._background.submit(self._run_beside, sql, views)
            self._running.append(begun)
            return begun

        def finished() -> pa.Table:
            with self._reading():
                return running().result()

        return Later(finished, running)

    def _run_beside(self, sql: str, views: int) -> pa.Table:
        """Run a query on the second connection, which has its own copy of the first `views`."""
        copied = self._copied if self._copied <= views else 0  # later ones may have replaced some
        for view in self._views[copied:views]:
            if view.rows is not None:
                self._second.register(f"{view.name}_rows", view.rows)
            self._second.execute(view.definition)
        self._copied = views
        return nulls_as_nan(self._second.sql(sql).to_arrow_table())

    def close(self) -> None:
        """See `Engine`. A query that still runs is given up."""
        self._background.shutdown(wait=False, cancel_futures=True)
        while wait(self._running, timeout=_PATIENCE_S).not_done:
            self._second.interrupt()  # again and again: it has no effect before a query begins
        self._second.close()
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

    def _select(self, files: Files, schema: pa.Schema) -> str:
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
            first = self._named(str(error))
            raise DamagedTraceError(f"{first}; move the file away to analyse the rest") from error
        except duckdb.Error as error:
            raise DamagedTraceError(
                f"{self._place()}: holds a value that cannot be processed "
                f"({self._named(str(error))}); move the file with it away to analyse the rest"
            ) from error

    def _named(self, message: str) -> str:
        """Return the first line of DuckDB's `message` with the files' own names."""
        first = next(iter(message.splitlines()), "")
        for path, link in self._links.items():
            first = first.replace(str(link), str(path))
        return first

    def _place(self) -> str:
        """Return the folder of the run."""
        return next((str(path.parent) for path in self._links), "the run")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _View:
    """A view of DuckDB, as it was defined."""

    name: str
    sql: str
    rows: pa.Table | None
    """Rows in memory that it reads; None if it reads files or other views."""

    @property
    def definition(self) -> str:
        return f"CREATE OR REPLACE TEMP VIEW {_identifier(self.name)} AS {self.sql}"


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def column(files: Files, wanted: pa.Field, dialect: Dialect) -> str:
    """Return the SQL of one column of a view."""
    plain, kind = wanted.name, dialect.types[wanted.type]
    name = dialect.identifier(plain)
    if plain in files.constant:
        value = f"CAST({_literal(files.constant[plain], dialect)} AS {kind})"
    elif plain not in files.columns:
        value = f"CAST(NULL AS {kind})"
    elif pa.types.is_timestamp(files.columns[plain]):
        value = f"{dialect.micros}({name}) / 1e6"
    elif plain in files.unseen:
        value = f"CASE WHEN {name} = '' THEN {dialect.text(files.unseen[plain])} ELSE {name} END"
    else:
        value = name if files.columns[plain] == wanted.type else f"CAST({name} AS {kind})"
    return f"{value} AS {name}"


def _literal(value: Any, dialect: Dialect) -> str:
    if value is None:
        return "NULL"
    # A floating-point number is written as a text: infinity has no other literal.
    return repr(value) if isinstance(value, int) else dialect.text(str(value))


@cache
def sql_of(query: Any, dialect: str) -> str:
    """Return an Ibis operation as SQL in the dialect of an engine."""
    import ibis

    return str(ibis.to_sql(query.to_expr(), dialect=dialect, pretty=False))


Codes = NDArray[np.int64]
"""Requests as small integers, see `driftscope.analysis.figures.requests`."""
Matrix = NDArray[np.float64]


def ints(table: pa.Table, name: str) -> NDArray[np.int64]:
    """Return an integer column, [n]; nulls, which no writer produces, count as 0."""
    return np.asarray(pc.fill_null(table.column(name), 0).to_numpy(), dtype=np.int64)


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


def ranked(codes: Codes) -> tuple[Codes, Codes]:
    """Return the different codes, ascending, and the rank of each code among them, [rows].

    It is `np.unique` with the inverse. Codes from 0 that have few gaps are counted, not sorted.
    """
    most = int(codes.max(initial=-1))
    if not len(codes) or codes.min() < 0 or most > 8 * len(codes):
        different, rank = np.unique(codes, return_inverse=True)
        return different, rank.astype(np.int64)
    there = np.zeros(most + 1, dtype=np.bool_)
    there[codes] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[codes]


def sums(table: pa.Table, name: str) -> Matrix:
    """Return a column of sums, [n]; null, the sum of nothing, is 0."""
    values = pc.fill_null(table.column(name).cast(pa.float64()), 0.0)
    return np.asarray(values.to_numpy(), dtype=np.float64)
