"""First screens of runs whose truth is known, sentence by sentence.

`python tests/unit/findings/test_golden_screens.py` writes the file anew; read each
screen as somebody who has to act on it before committing it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.runs import Spec, write_run
from support.simulate import Prompts, Truth, simulate

from driftscope.analysis.figures.results import Latency
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.summary.run_summary import BaselineRun, RunSummary
from driftscope.findings.catalogue import Analysis, conclude
from driftscope.pipeline import summarise
from driftscope.trace.reader import read_trace

GOLDEN = Path(__file__).parent / "data" / "screens.json"
EVEN = Spec(
    conditional=(0.9, 0.9, 0.9, 0.9),
    growth=1.0,
    self_last=0.2,
    near=0.2,
    sink=(0.11, 0.1),
    norm_output=True,
)
PAPER = replace(EVEN, k=8, conditional=(0.9,) * 8, requests=60)
DEAD = Spec(conditional=(0.0,) * 4, rounds=30)
STEADY = Truth(
    k=4,
    requests=160,
    rounds=25,
    growth=1.0,
    norm_output=True,
    self_last=0.2,
    near=0.2,
    sink=(0.11, 0.1),
)
EASY_AND_HARD = (
    Prompts(label="easy", share=0.5, shift=1.0, tokens=(100, 400)),
    Prompts(label="hard", share=0.5, shift=-1.0, tokens=(100, 400)),
)


def _run(folder: Path, spec: Spec | Truth, change: Change | None = None) -> RunSummary:
    path = folder / "run"
    made = simulate(path, spec) if isinstance(spec, Truth) else write_run(path, spec)
    if change is not None:
        change(made)
    return summarise(read_trace(made), "run")


Change = Callable[[Path], None]
"""Change of a run directory that no parameter of a simulated run makes."""


def _requests(change: Callable[[pa.Table], pa.Table]) -> Change:
    def changed(run: Path) -> None:
        for path in run.glob("request-*.parquet"):
            pq.write_table(change(pq.read_table(path)), path)

    return changed


def _labels_over_time(table: pa.Table) -> pa.Table:
    """Return requests of which the first half has one label, the second half another."""
    order = sorted(range(len(table)), key=lambda n: table["arrival_s"][n].as_py())
    later = set(order[len(order) // 2 :])
    labels = ["night" if n in later else "day" for n in range(len(table))]
    at = table.schema.get_field_index("label")
    return table.set_column(at, table.schema.field("label"), pa.array(labels, pa.string()))


def _half_finished(table: pa.Table) -> pa.Table:
    """Return the requests that ended in the first third of the recording."""
    ends = sorted(table["time_s"].to_pylist())
    limit = ends[len(ends) // 3]
    return table.filter(pa.array([end <= limit for end in table["time_s"].to_pylist()]))


def _nan_states(run: Path) -> None:
    """Make the state of every chain NaN, as a drafter that overflows leaves it."""
    for path in run.glob("draft-*.parquet"):
        table = pq.read_table(path)
        at = table.schema.get_field_index("fed_rms")
        none = [[float("nan")] * len(row) for row in table["fed_rms"].to_pylist()]
        field = table.schema.field("fed_rms")
        pq.write_table(table.set_column(at, field, pa.array(none, field.type)), path)


def _latency(milliseconds: float) -> Latency:
    seconds = milliseconds / 1000
    spread = Interval(low=0.95 * seconds, high=1.05 * seconds)
    return Latency(ttft_s=0.01, tpot_s=seconds, tpot_s_interval=spread)


def _beside_none(run: RunSummary, mine_ms: float, without_ms: float) -> Analysis:
    """Return a run that is compared with one without speculation."""
    plain = BaselineRun(
        label="baseline",
        manifest=run.manifest,
        requests=40,
        latency=_latency(without_ms),
        cells=(),
        side=run.side,
    )
    return conclude([replace(run, latency=_latency(mine_ms))], baseline=plain)


def _healthy(folder: Path) -> Analysis:
    return _beside_none(_run(folder, replace(EVEN, conditional=(0.97,) * 4)), 10.0, 20.0)


def _slower(folder: Path) -> Analysis:
    return _beside_none(_run(folder, EVEN), 20.0, 15.0)


def _alone(spec: Spec | Truth, change: Change | None = None) -> Callable[[Path], Analysis]:
    return lambda folder: conclude([_run(folder, spec, change)])


SCREENS: dict[str, Callable[[Path], Analysis]] = {
    "healthy": _healthy,
    "serves slower than without speculation": _slower,
    "published pattern without norm_output": _alone(
        replace(PAPER, sink=(0.46, 0.08), near=0.14, self_last=0.31, growth=3.6, norm_output=False)
    ),
    "published pattern with norm_output": _alone(
        replace(PAPER, sink=(0.11, 0.10), near=0.50, self_last=0.53)
    ),
    "no masses by distance": _alone(replace(EVEN, near=0.0)),
    "dead drafter": _alone(DEAD),
    "one request": _alone(replace(EVEN, requests=1)),
    "hard prompts look different": _alone(replace(STEADY, prompts=EASY_AND_HARD)),
    "most requests unfinished": _alone(STEADY, _requests(_half_finished)),
    "K by batch size": _alone(
        replace(STEADY, batches=(1, 2, 3, 6), k_by_batch=((2, 4), (4, 3), (6, 2)))
    ),
    "other traffic at night": _alone(
        replace(STEADY, change=(0.5, -1.0)), _requests(_labels_over_time)
    ),
    "states are NaN": _alone(EVEN, _nan_states),
    "few sessions": _alone(replace(STEADY, sessions=8, alike=0.6, repeats=4)),
    "one kind of text accepts less": _alone(
        replace(STEADY, rounds=40, regions={"prose": (0.7, 0.0), "json": (0.3, -2.0)})
    ),
}


def _sentences(name: str, folder: Path) -> Sequence[str]:
    analysis = SCREENS[name](folder)
    return [f"[{analysis.screen.state}]", *analysis.screen.sentences]


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return content


LARGE = "published pattern"
"""How the names of screens begin whose runs have thousands of chains."""


def test_every_screen_is_kept(golden: dict[str, Any]) -> None:
    assert list(golden) == list(SCREENS)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n.startswith(LARGE) else n for n in SCREENS],
)
def test_the_sentences_are_those_that_were_read(
    name: str, golden: dict[str, Any], tmp_path: Path
) -> None:
    assert _sentences(name, tmp_path) == golden[name]


if __name__ == "__main__":
    made = {name: _sentences(name, Path(tempfile.mkdtemp())) for name in SCREENS}
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    json.dump(made, sys.stdout, indent=1, ensure_ascii=False)
