"""Queries on Spark, in this process, give the same results as on DuckDB."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import ibis
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.analyses import assert_same
from support.simulate import Prompts, Truth, simulate

from driftscope.analysis.conditions import condition_of
from driftscope.analysis.query.query_engine import DuckDB, ViewFiles
from driftscope.analysis.query.record_views import open_run
from driftscope.analysis.query.row_filters import Filter
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.errors import DamagedTraceError
from driftscope.pipeline import summarise

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark: make spark"),
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java"),
]
LOCAL = "spark://local[2]"
TRUTH = Truth(
    k=3,
    requests=24,
    rounds=6,
    replicas=2,
    batches=(2, 6),
    mode="full graphs",
    eager_above=4,
    rates=(0.5, 1.0),
    undrafted={"no_draft": 0.1},
    prompts=(Prompts(label="chat"), Prompts(label="code", tokens=(1000, 2000), shift=-0.5)),
)
TEXTS = replace(TRUTH, block_tokens=6, regions={"prose": (0.6, 0.0), "json": (0.4, -1.0)})
RUNS = {
    "execution": TRUTH,
    "k": replace(TRUTH, k_by_batch=((2, 3), (6, 2))),
    "boundary": TEXTS,
    "region": TEXTS,
    "language": replace(TEXTS, regions={"prose": (0.4, 0.0), "code": (0.6, -1.0)}),
}
"""Truths by the property that splits the run."""


@pytest.fixture(scope="module", params=RUNS)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunSummary, RunSummary]:
    """A run that is cut and split, on DuckDB and on Spark."""
    from driftscope.analysis.query.query_engine import Spark

    run = simulate(tmp_path_factory.mktemp("spark") / "run", RUNS[request.param])
    where = "prompt_tokens < 1500 AND context > 100"
    if RUNS[request.param].regions:
        where += " AND copied = 0 AND (region = 'prose' OR boundary < 9)"
    only = Filter(where=where)
    duck = summarise(open_run(run), "run", only=only, by=request.param)
    with closing(Spark(LOCAL)) as spark:
        return duck, summarise(open_run(run, spark), "run", only=only, by=request.param)


def test_counts_are_equal_and_sums_to_rounding(both: tuple[RunSummary, RunSummary]) -> None:
    duck, spark = both
    assert len(duck.segments) > 1
    assert_same(spark, duck, rel=1e-9)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from driftscope.analysis.query.query_engine import Spark

    with closing(Spark(LOCAL)) as spark:
        yield spark


@pytest.mark.parametrize(
    "name",
    [
        "accepted=8",
        "a*b",
        "a?b",
        "a[X]b",
        "{aXb,c}",
        "a\\b",
        "%41",
        "s3:",
        "it's `\"",
        "_x",
        "ü \n#",
    ],
)
def test_a_path_is_literal_whatever_the_folder_is_called(
    spark: Any, tmp_path: Path, name: str
) -> None:
    schema = pa.schema([("accepted", pa.int64())])
    paths = [tmp_path / text / "verify-0.parquet" for text in (name, "aXb")]
    for path, accepted in zip(paths, (1, 2), strict=True):
        path.parent.mkdir()
        pq.write_table(pa.table({"accepted": [accepted]}, schema), path)
    files = ViewFiles(paths=(paths[0],), columns={"accepted": pa.int64()}, constant={})
    spark.admit(files.paths)
    spark.view("literal", [files], schema)
    found = spark.rows(ibis.table({"accepted": "int64"}, name="literal"))
    assert found.to_pylist() == [{"accepted": 1}]


def test_texts_and_conditions_mean_the_same(spark: Any) -> None:
    """Text from a manifest or a user stays literal, however Spark interprets a backslash."""
    texts = ["", "it's", "a\\b", "\\' OR true --", "\\", "\\u0041", '"', "`", "%", "a\nb"]
    rows = pa.table({"row": list(range(len(texts))), "label": texts, "k": list(range(len(texts)))})
    conditions = [
        *("label = '" + text.replace("'", "''") + "'" for text in texts),
        "label like '%a%'",
        "label not like '_'",
        "k / 0 > 1",
        "k / (k - 2) >= 1 or k is null",
        "k * 4611686018427387904 * 4 > 0",
        "k between 1 and 2.5",
        "label in ('%', '\\')",
    ]
    found = []
    with closing(DuckDB()) as duck:
        for engine in (duck, spark):
            engine.view("given", rows, rows.schema)
            columns = ", ".join(f"{engine.dialect.text(t)} AS t{n}" for n, t in enumerate(texts))
            engine.define("texts", f"SELECT {columns}")
            named = ibis.table(ibis.Schema.from_pyarrow(rows.schema), name="given")
            met = {f"c{n}": condition_of(c).on(named) for n, c in enumerate(conditions)}
            found.append(engine.rows(named.select("row", **met).order_by("row")).to_pylist())
            said = ibis.table({f"t{n}": "string" for n in range(len(texts))}, name="texts")
            assert list(engine.rows(said).to_pylist()[0].values()) == texts
    duck_met, spark_met = found
    assert duck_met == spark_met
    assert [row[f"c{n}"] for n, row in enumerate(duck_met)] == [True] * len(texts)


def test_what_spark_cannot_do_is_one_line(spark: Any, tmp_path: Path) -> None:
    missing = ViewFiles(paths=(tmp_path / "no.parquet",), columns={"a": pa.int64()}, constant={})
    with pytest.raises(DamagedTraceError, match=r"no\.parquet") as caught:
        spark.view("missing", [missing], pa.schema([("a", pa.int64())]))
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(DamagedTraceError, match="Spark: "):
        spark.define("wrong", "SELECT nothing FROM nowhere")


def test_another_engine_is_refused(tmp_path: Path) -> None:
    from driftscope.cli.options import engine_of
    from driftscope.errors import UsageError

    with pytest.raises(UsageError, match="neither duckdb"):
        engine_of("postgres://host")
