"""Five questions about a run, each in plain DuckDB and in pandas, on its sealed files as they are.

    python queries.py RUN

Nothing here imports driftscope. What the columns mean: docs/trace-format.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow.parquet as pq


def rows(run: Path, record: str) -> pd.DataFrame:
    """All rows of a record, whatever number of files they are in."""
    return pd.concat([pd.read_parquet(path) for path in sorted(run.glob(f"{record}-*.parquet"))])


def fed_column(run: Path) -> str:
    """The column that has the state fed to the next depth: a sealed file leaves `fed_rms` out where
    it equals the state before or after the norm, and says so in its metadata."""
    metadata = pq.read_schema(next(run.glob("draft-*.parquet"))).metadata or {}
    return str(json.loads(metadata.get(b"driftscope.derived", b"{}")).get("fed_rms", "fed_rms"))


ACCEPTANCE = """
SELECT depth, avg((accepted >= depth)::INT) AS marginal
FROM '{run}/verify-*.parquet', range(1, {k} + 1) AS depths(depth)
WHERE verified > 0
GROUP BY depth ORDER BY depth
"""


def acceptance(run: Path, k: int) -> pd.DataFrame:
    """Which share of all rounds is accepted up to each depth?"""
    verify = rows(run, "verify").query("verified > 0")
    marginal = [(verify.accepted >= depth).mean() for depth in range(1, k + 1)]
    return pd.DataFrame({"depth": range(1, k + 1), "marginal": marginal})


BY_LABEL = """
SELECT r.label, count(*) AS rounds, 1 + avg(v.accepted) AS mean_length
FROM '{run}/verify-*.parquet' v JOIN '{run}/request-*.parquet' r USING (request)
WHERE v.verified > 0
GROUP BY r.label ORDER BY r.label
"""


def by_label(run: Path, k: int) -> pd.DataFrame:
    """How many tokens does a round yield under each workload label?"""
    verify = rows(run, "verify").query("verified > 0")
    labels = rows(run, "request")[["request", "label"]]
    grouped = verify.merge(labels, on="request").groupby("label").accepted
    found = pd.DataFrame({"rounds": grouped.size(), "mean_length": 1 + grouped.mean()})
    return found.reset_index()


UNDRAFTED = """
SELECT coalesce(reason, 'unknown') AS reason, count(*) AS steps
FROM '{run}/verify-*.parquet'
WHERE verified = 0
GROUP BY 1 ORDER BY 1
"""


def undrafted(run: Path, k: int) -> pd.DataFrame:
    """How many decode steps had no draft, and why?"""
    without = rows(run, "verify").query("verified == 0")
    counted = without.reason.fillna("unknown").astype(str).value_counts().sort_index()
    return counted.rename_axis("reason").reset_index(name="steps")


HIDDEN = """
SELECT depth, sum(rms / rate) / sum(1 / rate) AS fed_rms
FROM (
  SELECT rate, unnest({fed}) AS rms, generate_subscripts({fed}, 1) AS depth
  FROM '{run}/draft-*.parquet'
)
GROUP BY depth ORDER BY depth
"""


def hidden(run: Path, k: int) -> pd.DataFrame:
    """How large is the hidden state that the drafter feeds itself, by depth?

    A chain that was recorded at a rate of 0.1 stands for ten.
    """
    draft = rows(run, "draft")
    rms = np.average(np.stack(draft[fed_column(run)]), axis=0, weights=1 / draft.rate)
    return pd.DataFrame({"depth": range(1, k + 1), "fed_rms": rms})


ATTENTION = """
SELECT depth, sum(mass / rate) / sum(1 / rate) AS self_mass
FROM (
  SELECT rate, unnest(self_mass) AS mass,
         (generate_subscripts(self_mass, 1) - 1) // layers + 1 AS depth
  FROM '{run}/draft-*.parquet'
)
GROUP BY depth ORDER BY depth
"""


def attention(run: Path, k: int) -> pd.DataFrame:
    """How much of its attention does the drafter give to its own draft tokens, by depth?

    Lists are depth by depth, layer by layer; this is the mean over layers.
    """
    draft = rows(run, "draft")
    masses = np.stack(draft.self_mass).reshape(len(draft), k, -1).mean(axis=2)
    mean = np.average(masses, axis=0, weights=1 / draft.rate)
    return pd.DataFrame({"depth": range(1, k + 1), "self_mass": mean})


QUERIES: dict[str, tuple[str, Callable[[Path, int], pd.DataFrame]]] = {
    "acceptance": (ACCEPTANCE, acceptance),
    "by_label": (BY_LABEL, by_label),
    "undrafted": (UNDRAFTED, undrafted),
    "hidden": (HIDDEN, hidden),
    "attention": (ATTENTION, attention),
}


def ask(run: Path) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
    """Answers of DuckDB and of pandas to each question."""
    k = int(json.loads((run / "manifest.json").read_text())["k"])
    fed = fed_column(run)
    return {
        name: (duckdb.sql(sql.format(run=run, k=k, fed=fed)).df(), in_pandas(run, k))
        for name, (sql, in_pandas) in QUERIES.items()
    }


def main() -> None:
    """Print every question with both answers."""
    for name, answers in ask(Path(sys.argv[1])).items():
        print((QUERIES[name][1].__doc__ or "").partition("\n")[0])
        for engine, answer in zip(("DuckDB", "pandas"), answers, strict=True):
            print(f"{engine}:", answer.to_string(index=False), sep="\n")
        print()


if __name__ == "__main__":
    main()
