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
from support.analyses import analysis_of
from support.runs import Spec, write_run
from support.simulate import Prompts, Truth, simulate

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
DEAD = Spec(conditional=(0.0, 0.0, 0.0, 0.0), rounds=30)
Run = Callable[..., RunSummary]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def one(
        spec: Spec, label: str = "run", *, ms: tuple[float, float, float] | None = None
    ) -> RunSummary:
        made = summarise(read_trace(write_run(tmp_path / label, spec)), label)
        return made if ms is None else replace(made, latency=_latency(*ms))

    return one


def _latency(low: float, middle: float, high: float) -> Latency:
    spread = Interval(low=low / 1000, high=high / 1000)
    return Latency(ttft_s=0.01, tpot_s=middle / 1000, tpot_s_interval=spread)


def _without(run: RunSummary, low: float, middle: float, high: float) -> BaselineRun:
    latency = _latency(low, middle, high)
    return BaselineRun(
        label="baseline",
        manifest=run.manifest,
        requests=40,
        latency=latency,
        cells=(),
        side=run.side,
    )


def _screen(found: Analysis) -> FirstScreen:
    return found.screen


def _lines(screen: FirstScreen) -> dict[Topic, str]:
    return {topic: " ".join(texts) for topic, texts in screen.lines}


def test_speeds_that_overlap_are_neither(run: Run) -> None:
    mine = run(EVEN, ms=(9.0, 10.0, 11.0))
    screen = _screen(conclude([mine], baseline=_without(mine, 9.0, 10.1, 11.2)))
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
    mine = run(spec, ms=(9.5, 10.0, 10.5))
    screen = _screen(conclude([mine], baseline=_without(mine, 19.0, 20.0, 21.0)))
    assert (screen.state, dict(screen.marks)[Topic.WHERE]) == (state, Answer.CANNOT_TELL)


@pytest.mark.parametrize(
    ("without", "beside"),
    [((10.3, 10.8, 11.3), "10.8 ms (−7%, not certain)"), ((19.0, 20.0, 21.0), "20.0 ms (−50%)")],
)
def test_a_change_beside_the_time_is_called_uncertain_if_it_is(
    run: Run, without: tuple[float, float, float], beside: str
) -> None:
    mine = run(EVEN, ms=(9.5, 10.0, 10.5))
    screen = _screen(conclude([mine], baseline=_without(mine, *without)))
    assert screen.figures[0].reference == f"without speculation {beside}"


def test_the_faster_of_two_runs_and_its_option(run: Run) -> None:
    runs = run(FALLING, "old", ms=(12.5, 13.0, 13.5)), run(EVEN, "new", ms=(9.2, 9.6, 10.0))
    screen = _screen(conclude(runs))
    assert screen.headline == (
        "new: serves 35% faster than old (17% to 57%; 9.6 ms per token, compared with 13.0 ms)."
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
    runs = run(FALLING, "old", ms=(10.5, 11.0, 11.5)), run(other, "new", ms=(9.2, 9.6, 10.0))
    screen = _screen(conclude(runs))
    against = [answer for answer in screen.answers if answer.reference]
    assert [answer.answer for answer in against] == [Answer.CANNOT_TELL] * 2
    assert all("but the runs also differ in prompts" in answer.statement for answer in against)
    assert against[0].advice.startswith(
        "To know, serve the same prompts with and without it: `driftscope pays tiny-target "
    )
    assert screen.headline.endswith("but the runs also differ in prompts.")
    assert not screen.actions[0].short_advice.startswith("Serve with")


def test_runs_of_equal_speed_are_told_by_acceptance(run: Run) -> None:
    runs = run(EVEN, "old", ms=(9.0, 10.0, 11.0)), run(FALLING, "new", ms=(9.0, 10.0, 11.0))
    screen = _screen(conclude(runs))
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
        for answer in _screen(conclude(runs)).answers
        if answer.topic is Topic.ACCEPTANCE and answer.reference
    )
    assert claim.answer is Answer.CANNOT_TELL
    assert claim.advice.startswith("Record about ")


def _sampled(run: RunSummary, temperature: float, *, wrongly: bool) -> RunSummary:
    assert run.side is not None and run.side.requests is not None
    asked = np.full(len(run.side.requests), temperature)
    side = replace(run.side, requests=replace(run.side.requests, temperature=asked))
    return replace(run, side=side, manifest=replace(run.manifest, samples_wrongly=wrongly))


def test_wrong_tokens_are_said_first_and_nothing_of_the_drafter(run: Run) -> None:
    """Even of one request; and a good run beside it is told by its own figure."""
    wrong = _sampled(run(replace(DEAD, requests=1)), 0.7, wrongly=True)
    found = conclude([wrong])
    screen = _screen(found)
    assert screen.state is State.ACT
    assert screen.headline == (
        "The engine returns wrong tokens at temperature > 0: this run says nothing about the "
        "drafter."
    )
    assert [finding.id for finding in found.findings] == ["wrong_tokens"]
    assert not screen.lines
    assert screen.actions[0].short_advice.startswith("Send requests at temperature 0,")
    both = conclude([wrong, run(EVEN, "good")])
    assert not any("run" in finding.runs and "good" in finding.runs for finding in both.findings)
    beside = _screen(both)
    assert beside.headline.startswith("run: the engine returns wrong tokens")
    assert "and a round yields" in _lines(beside)[Topic.ACCEPTANCE]


def test_what_holds_for_both_runs_stands_once(run: Run) -> None:
    lines = dict(_screen(conclude([run(EVEN, "old"), run(FALLING, "new")])).lines)
    assert lines[Topic.PAYS][1] == (
        "old and new: whether speculation pays is not known, because there is no run without it."
    )
    assert lines[Topic.GROUND] == ("old and new: 40 requests, 400 rounds, K = 4, no rows lost.",)


def test_the_published_pattern_without_norm_is_drift_and_with_it_is_none(run: Run) -> None:
    """The figures are those of arXiv 2605.09992."""
    before = replace(EVEN, sink=(0.46, 0.08), near=0.14, self_last=0.31, growth=3.6)
    found = conclude([run(replace(before, norm_output=False), "before")])
    (moves,) = (finding for finding in found.findings if finding.id == "attention_moves_to_chain")
    assert moves.answer is Answer.NO
    assert moves.statement.startswith("at depth 4 the last 3 tokens get +17.0 points")
    assert moves.statement.endswith("it moves to the drafter's own guesses")
    assert _screen(found).state is State.LOOK
    after = replace(EVEN, sink=(0.11, 0.10), near=0.50, self_last=0.53)
    screen = _screen(conclude([run(after, "after")]))
    assert _lines(screen)[Topic.INSIDE].startswith("Attention does not drift over depth: ")
    assert (screen.state, dict(screen.marks)[Topic.INSIDE]) == (State.NOTHING_SEEN, Answer.YES)


def test_a_finding_that_asks_is_the_cause_below_a_good_headline(run: Run) -> None:
    """Badge, cause and first action are about it."""
    screen = _screen(conclude([run(FALLING)]))
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
DEAD_WORLD = Spec(conditional=(0.0,) * 4, rounds=30)
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


def _step_latency(milliseconds: float) -> Latency:
    seconds = milliseconds / 1000
    spread = Interval(low=0.95 * seconds, high=1.05 * seconds)
    return Latency(ttft_s=0.01, tpot_s=seconds, tpot_s_interval=spread)


def _beside_none(run: RunSummary, mine_ms: float, without_ms: float) -> Analysis:
    """Return a run that is compared with one without speculation."""
    plain = BaselineRun(
        label="baseline",
        manifest=run.manifest,
        requests=40,
        latency=_step_latency(without_ms),
        cells=(),
        side=run.side,
    )
    return conclude([replace(run, latency=_step_latency(mine_ms))], baseline=plain)


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
    "dead drafter": _alone(DEAD_WORLD),
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
