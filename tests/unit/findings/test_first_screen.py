"""First screens of runs whose truth is known, sentence by sentence."""

from __future__ import annotations

import io
import json
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from support.analyses import analysis_of, finding_ids, summary_of, written
from support.runs import Spec
from support.simulate import Prompts, Truth

from driftscope.analysis.figures.results import Latency
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.summary.run_summary import BaselineRun, RunSummary
from driftscope.findings.catalogue import Analysis, conclude
from driftscope.findings.finding import Answer, Finding, Topic
from driftscope.findings.first_screen import FirstScreen, State, _marks
from driftscope.pipeline import summarise
from driftscope.trace.reader import read_trace
from driftscope_reports.html import to_html
from driftscope_reports.markdown import to_markdown
from driftscope_reports.terminal import render

pytestmark = pytest.mark.slow

EVEN = Spec(
    conditional=(0.9, 0.9, 0.9, 0.9),
    growth=1.0,
    self_last=0.2,
    near=0.2,
    sink=(0.11, 0.1),
    norm_output=True,
)
FALLING = Spec(
    conditional=(0.9, 0.9, 0.4, 0.4), growth=1.0, self_last=0.05, seed=8, drafter="falls"
)
DEAD = Spec(conditional=(0.0,) * 4, rounds=30)
Run = Callable[..., RunSummary]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def one(spec: Spec, label: str = "run", *, ms: float | None = None) -> RunSummary:
        made = summary_of(tmp_path / label, spec)
        return made if ms is None else replace(made, latency=_latency(ms))

    return one


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


def _lines(screen: FirstScreen) -> dict[Topic, str]:
    return {topic: " ".join(texts) for topic, texts in screen.lines}


def test_speeds_that_overlap_are_neither(run: Run) -> None:
    screen = _beside_none(run(EVEN), 10.0, 10.1).screen
    (claim,) = (answer for answer in screen.answers if answer.topic is Topic.PAYS)
    assert claim.answer is Answer.CANNOT_TELL
    assert claim.statement.startswith("whether speculation pays cannot be told: 1.01× as fast")
    assert claim.advice.startswith("To know more surely, run `driftscope pays ")
    assert screen.lead is claim, "a report that holds such a pair says so first"
    assert screen.state is State.NOTHING_SEEN


@pytest.mark.parametrize(
    ("spec", "state"), [(EVEN, State.HEALTHY), (replace(EVEN, near=0.0), State.NOTHING_SEEN)]
)
def test_a_drafter_that_pays_and_does_not_drift_is_healthy(
    run: Run, spec: Spec, state: State
) -> None:
    """Acceptance alone cannot tell that nothing is lost; attention by distance can."""
    screen = _beside_none(run(spec), 10.0, 20.0).screen
    assert (screen.state, dict(screen.marks)[Topic.WHERE]) == (state, Answer.CANNOT_TELL)


@pytest.mark.parametrize(
    ("without", "beside"),
    [(10.8, "10.8 ms (−7%, not certain)"), (20.0, "20.0 ms (−50%)")],
)
def test_a_change_beside_the_time_is_called_uncertain_if_it_is(
    run: Run, without: float, beside: str
) -> None:
    screen = _beside_none(run(EVEN), 10.0, without).screen
    assert screen.figures[0].reference == f"without speculation {beside}"


def test_the_faster_of_two_runs_and_its_option(run: Run) -> None:
    runs = run(FALLING, "old", ms=13.0), run(EVEN, "new", ms=9.6)
    screen = conclude(runs).screen
    assert screen.headline == (
        "new: serves 35% faster than old (16% to 58%; 9.6 ms per token, compared with 13.0 ms)."
    )
    assert screen.state is State.ACT
    assert (
        screen.actions[0].short_advice
        == "Serve with the drafter and K of new instead of those of old."
    )
    assert screen.actions[0].option is not None
    assert '"num_speculative_tokens": 4' in screen.actions[0].option


def test_a_faster_run_with_other_prompts_proves_nothing_about_its_drafter(run: Run) -> None:
    other = replace(EVEN, prompt_tokens=200)
    runs = run(FALLING, "old", ms=11.0), run(other, "new", ms=9.6)
    screen = conclude(runs).screen
    against = [answer for answer in screen.answers if answer.reference]
    assert [answer.answer for answer in against] == [Answer.CANNOT_TELL] * 2
    assert all("but the runs also differ in prompts" in answer.statement for answer in against)
    assert against[0].advice.startswith(
        "To know, serve the same prompts with and without it: `driftscope pays tiny-target "
    )
    assert screen.headline.endswith("but the runs also differ in prompts.")
    assert not screen.actions[0].short_advice.startswith("Serve with")


def test_runs_of_equal_speed_are_told_by_acceptance(run: Run) -> None:
    runs = run(EVEN, "old", ms=10.0), run(FALLING, "new", ms=10.0)
    screen = conclude(runs).screen
    assert screen.headline.startswith("new: acceptance is worse than old's: 3.18 tokens")
    assert "new: acceptance falls along the chain, by " in _lines(screen)[Topic.WHERE]
    assert screen.actions[0].short_advice.startswith(
        "Try the drafter of old instead of that of new"
    )


def test_few_pairs_cannot_tell_and_name_how_many_would(run: Run) -> None:
    small = replace(EVEN, requests=12, rounds=4)
    runs = run(small, "old"), run(replace(small, seed=9), "new")
    (claim,) = (
        answer
        for answer in conclude(runs).screen.answers
        if answer.topic is Topic.ACCEPTANCE and answer.reference
    )
    assert claim.answer is Answer.CANNOT_TELL
    assert claim.advice.startswith("Record about ")


def _sampled(run: RunSummary, temperature: float, *, wrongly: bool) -> RunSummary:
    asked = np.full(len(run.side.requests), temperature)
    side = replace(run.side, requests=replace(run.side.requests, temperature=asked))
    return replace(run, side=side, manifest=replace(run.manifest, samples_wrongly=wrongly))


def test_wrong_tokens_are_said_first_and_nothing_of_the_drafter(run: Run) -> None:
    """Even of one request; and a good run beside it is told by its own figure."""
    wrong = _sampled(run(replace(DEAD, requests=1)), 0.7, wrongly=True)
    found = conclude([wrong])
    screen = found.screen
    assert screen.state is State.ACT
    assert screen.headline == (
        "The engine returns wrong tokens at temperature > 0: this run says nothing about the "
        "drafter."
    )
    assert finding_ids(found) == ["wrong_tokens"]
    assert not screen.lines
    assert screen.actions[0].short_advice.startswith("Send requests at temperature 0,")
    both = conclude([wrong, run(EVEN, "good")])
    assert not any("run" in finding.runs and "good" in finding.runs for finding in both.findings)
    beside = both.screen
    assert beside.headline.startswith("run: the engine returns wrong tokens")
    assert "and a round yields" in _lines(beside)[Topic.ACCEPTANCE]


def test_what_holds_for_both_runs_stands_once(run: Run) -> None:
    lines = dict(conclude([run(EVEN, "old"), run(FALLING, "new")]).screen.lines)
    assert lines[Topic.PAYS][1] == (
        "old and new: whether speculation pays is not known, because there is no run without it."
    )
    assert lines[Topic.GROUND] == ("old and new: 40 requests, 400 rounds, K = 4, no rows lost.",)


def test_a_finding_that_asks_is_the_cause_below_a_good_headline(run: Run) -> None:
    """Badge, cause and first action are about it."""
    screen = conclude([run(FALLING)]).screen
    assert screen.cause
    assert screen.state in (State.ACT, State.LOOK)
    title = screen.cause.partition(":")[0]
    assert screen.actions[0].title.lower() == title.lower()


def test_pays_is_answered_yes_if_some_drafter_pays_and_other_topics_by_the_worst() -> None:
    def told(topic: Topic, answer: Answer | None, reference: str = "") -> Finding:
        return Finding(topic=topic, answer=answer, reference=reference)

    given = [
        told(Topic.PAYS, Answer.NO),
        told(Topic.PAYS, Answer.YES),
        told(Topic.PAYS, Answer.NO, "other"),
        told(Topic.WHERE, Answer.YES),
        told(Topic.WHERE, Answer.NO),
        told(Topic.ACCEPTANCE, None),
    ]
    assert _marks(given) == ((Topic.PAYS, Answer.YES), (Topic.WHERE, Answer.NO))
    assert _marks(given[:1]) == ((Topic.PAYS, Answer.NO),)


def test_norms_are_not_advised_to_a_drafter_that_has_them(run: Run) -> None:
    even = replace(EVEN, k=8, conditional=(0.9,) * 8, requests=60, sink=(0.46, 0.08))
    falls = replace(even, conditional=(0.9, 0.85, 0.7, 0.55, 0.45, 0.35, 0.3, 0.25))
    for spec, flag, advised in ((falls, True, False), (falls, False, True), (even, False, False)):
        found = conclude([run(replace(spec, norm_output=flag), f"{spec.conditional[-1]} {flag}")])
        (lost,) = (finding for finding in found.findings if finding.id == "sink_lost")
        assert ("EAGLE-3.1" in lost.advice) is advised
        assert ("costs acceptance" in lost.advice) is (spec is even)


RUNS = {
    "old": Spec(conditional=(0.7, 0.3, 0.05, 0.05), labels=("chat", "code")),
    "new": Spec(
        conditional=(0.8,) * 4, growth=1.0, sink=(0.46, 0.08), notes=("fc_norm is missing",)
    ),
}


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return analysis_of(tmp_path_factory.mktemp("runs"), RUNS)


def _terminal(analysis: Analysis) -> str:
    console = Console(width=100_000, record=True, file=io.StringIO())
    console.print(render(analysis))
    return console.export_text()


def _page(analysis: Analysis) -> str:
    return unescape(re.sub(r"<[^>]+>", "", to_html(analysis)))


def _markdown(analysis: Analysis) -> str:
    made = to_markdown(analysis).replace("\\", "")
    return re.sub(r"(`+) (.*?) \1", r"`\2`", made)


@pytest.mark.parametrize("output", [_terminal, _page, _markdown])
def test_every_finding_answer_and_note_is_stated_once(analysis: Analysis, output: object) -> None:
    assert callable(output)
    text = output(analysis).lower()
    told = [*analysis.findings, *analysis.answers]
    told += analysis.notes if output is not _terminal else []
    for conclusion in {finding.statement: finding for finding in told}.values():
        if conclusion.severity is not None and output is _terminal:
            continue  # the first screen tells it, or its title alone
        if conclusion == analysis.screen.lead and output is _page:
            continue  # its figures in brackets stand below the headline
        assert text.count(conclusion.statement.lower()) == 1, conclusion.id


@pytest.mark.parametrize("output", [_terminal, _page, _markdown])
def test_every_advice_is_given_once(analysis: Analysis, output: object) -> None:
    assert callable(output)
    text = output(analysis)
    for action in {finding.advice: finding for finding in analysis.screen.actions}.values():
        words = action.short_advice.replace("`", "") if output is _page else action.short_advice
        if output is _terminal:  # a command has a line of its own, and no full stop
            words = re.sub("`(driftscope [^`]+)`[ .:,]*", r"\1 ", words).strip()
            text = " ".join(text.split())
        assert text.count(words) == 1, action.id


GOLDEN = Path(__file__).parent / "data" / "screens.json"
PAPER = replace(EVEN, k=8, conditional=(0.9,) * 8, requests=60)
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


def _run(folder: Path, world: Spec | Truth, change: Change | None = None) -> RunSummary:
    run = written(folder / "run", world)
    if change is not None:
        change(run)
    return summarise(read_trace(run), "run")


Change = Callable[[Path], None]
"""Change of a run directory that no parameter of a simulated run makes."""


def _table(record: str, change: Callable[[pa.Table], pa.Table]) -> Change:
    def changed(run: Path) -> None:
        for path in run.glob(f"{record}-*.parquet"):
            pq.write_table(change(pq.read_table(path)), path)

    return changed


def _column(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    field = table.schema.field(name)
    return table.set_column(table.column_names.index(name), field, pa.array(values, field.type))


def _labels_over_time(table: pa.Table) -> pa.Table:
    """Return requests of which the first half has one label, the second half another."""
    starts = table["arrival_s"].to_pylist()
    middle = sorted(starts)[len(starts) // 2]
    return _column(table, "label", ["night" if start >= middle else "day" for start in starts])


def _half_finished(table: pa.Table) -> pa.Table:
    """Return the requests that ended in the first third of the recording."""
    ends = table["time_s"].to_pylist()
    limit = sorted(ends)[len(ends) // 3]
    return table.filter(pa.array([end <= limit for end in ends]))


def _nan_states(table: pa.Table) -> pa.Table:
    """Make the state of every chain NaN, as a drafter that overflows leaves it."""
    lists = [[float("nan")] * len(row) for row in table["fed_rms"].to_pylist()]
    return _column(table, "fed_rms", lists)


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
    "most requests unfinished": _alone(STEADY, _table("request", _half_finished)),
    "K by batch size": _alone(
        replace(STEADY, batches=(1, 2, 3, 6), k_by_batch=((2, 4), (4, 3), (6, 2)))
    ),
    "other traffic at night": _alone(
        replace(STEADY, change=(0.5, -1.0)), _table("request", _labels_over_time)
    ),
    "states are NaN": _alone(EVEN, _table("draft", _nan_states)),
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


def test_every_screen_is_kept(golden: dict[str, Any]) -> None:
    assert list(golden) == list(SCREENS)


@pytest.mark.parametrize("name", SCREENS)
def test_the_sentences_are_those_that_were_read(
    name: str, golden: dict[str, Any], tmp_path: Path
) -> None:
    assert _sentences(name, tmp_path) == golden[name]


if __name__ == "__main__":
    made = {name: _sentences(name, Path(tempfile.mkdtemp())) for name in SCREENS}
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    json.dump(made, sys.stdout, indent=1, ensure_ascii=False)
