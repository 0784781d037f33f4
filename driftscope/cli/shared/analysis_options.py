"""Options of commands that analyse runs: who runs their queries, and which requests go together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from driftscope.analysis.conditions import COLUMNS
from driftscope.cli.shared import completion

if TYPE_CHECKING:
    from driftscope.analysis.query.query_engine import Engine

DUCKDB = "duckdb"
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="Where queries run: duckdb in this process, spark://HOST:PORT on a cluster that reads "
        "the runs under the same paths, or spark://local[2].",
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="COLUMN",
        help="Column of requests whose equal values are not independent: session, conversation, "
        "pair, prompt_digest, label or request; default: the first of the first four that the "
        "recording has.",
    ),
]
"""Option for the requests that are not independent of each other."""
WhereOption = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="EXPR",
        autocompletion=completion.columns,
        help="Only rows that meet a condition such as \"label = 'chat' and context > 4096\", over "
        f"{', '.join(COLUMNS)}; docs/conditions.md has the language.",
    ),
]
"""Option for the rows to keep of every run."""


def maker_of(name: str) -> Callable[[], Engine]:
    """Return the function that makes the engine for one run's queries. It raises what `engine_of`
    raises."""
    return partial(engine_of, name)


def engine_of(name: str) -> Engine:
    """Return the engine for a run's queries. Raises UsageError for an unknown engine."""
    from driftscope.analysis.query.query_engine import DuckDB
    from driftscope.cli.shared.extras import needs
    from driftscope.errors import UsageError

    if name == DUCKDB:
        return DuckDB()
    if name.startswith("spark://"):
        with needs("spark"):
            from driftscope.analysis.query.spark_engine import Spark

            return Spark(name)
    raise UsageError(f"--engine {name!r}: neither duckdb nor spark://HOST:PORT or spark://local[N]")
