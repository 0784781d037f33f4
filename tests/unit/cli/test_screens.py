"""Screens of probe status, watch and inspect: what they say, within 80 columns and printable."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.command import run_command
from support.hostile.texts import TEXTS
from support.inspections import broken, inspection_document
from support.simulate import Truth, simulate

from driftscope.cli.gate_run import LAST_ROUNDS, runs_like
from driftscope.cli.screens.inspection import print_inspection
from driftscope.cli.screens.probe import show
from driftscope.cli.screens.watch import DRIFT_CHAINS, WIDTH, drift_line, screen, why_no_chains
from driftscope.cli.trial_run import loading_line
from driftscope.inspect.compare_run import InspectedAcceptance, read_inspection
from driftscope.inspect.trial.result import STOPPED, NotApplicable
from driftscope.pipeline import Inputs, analyze
from driftscope.telemetry import instruments as i
from driftscope.telemetry.instruments import Tally
from driftscope.telemetry.watch import View, view
from driftscope.trace.reader import read_trace


def _worker(**control: Any) -> dict[str, Any]:
    return {
        "source": "worker0-14423",
        "closed": False,
        "recording": True,
        "rate": 0.0244,
        "overhead": 0.0243,
        "rows": {"draft": 1_025_728},
        "dropped": {},
        "errors": {},
        "control": {"budget": 0.01, "labels": [], **control},
    }


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_steers_the_terminal(
    capsys: pytest.CaptureFixture[str], text: str, as_json: bool
) -> None:
    odd = {"source": text, "answered": False, "errors": {text: 1}, "first_error": text}
    show(Path("run"), [{**_worker(), **odd, "control": {"labels": [text]}}], as_json=as_json)
    out, err = capsys.readouterr()
    for line in [*out.splitlines(), *err.splitlines()]:
        assert line.isprintable(), line
    assert err.count("\n") == 2


def test_nothing_is_cut_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    show(Path("run"), [_worker()], as_json=False)
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "process" and "draft rows" in head
    for word in ("worker0-14423", "recording", "budget 1 %", "2.44 %", "2.43 %", "1,025,728"):
        assert word in row
    assert "requests" not in head


@pytest.mark.parametrize("command", ["watch A --once", "compare A B", "probe status A"])
def test_no_number_of_a_table_is_cut_in_a_narrow_terminal(command: str) -> None:
    runs = Path(__file__).parents[3] / "reports" / "gallery" / "traces"
    names = {"A": runs / "smollm2-eagle3", "B": runs / "smollm2-eagle3.1"}
    words = [names.get(word, word) for word in command.split()]
    wide, narrow = (run_command(*words, COLUMNS=columns).stdout for columns in ("80", "60"))
    rows = [line for line in wide.splitlines() if re.search(r"\d\S*  +\S*\d\S*  +", line)]
    assert rows and set(rows) <= set(narrow.splitlines())


def test_a_selection_of_requests_has_its_column(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    show(Path("run"), [_worker(labels=["chat"])], as_json=False)
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert row[head.index("requests") :].startswith("chat")


def _tally(k: int = 8, rounds: int = 677, **gauges: Any) -> Tally:
    tally = Tally()
    tally.set(i.CONFIGURED_K, k)
    tally.add(i.ROUNDS, rounds)
    for name, value in gauges.items():
        tally.set({"rate": i.RATE, "up": i.UP}[name], value, source="worker0")
    return tally


def _view(**gauges: Any) -> View:
    return view(_tally(**gauges).snapshot())


MORE = "; to record more:\n  driftscope probe set"
RECORDED, START = "of steps are recorded", "  driftscope probe start"


@pytest.mark.parametrize(
    ("target", "seen", "budget", "text"),
    [
        ("runs/a", _view(rate=0.002), 0.01, f"1 % pays for 0.2 % of steps{MORE} runs/a --every 4"),
        ("runs/b c", _view(rate=1 / 64), None, f"1.6 % {RECORDED}{MORE} 'runs/b c' --every 4"),
        ("http://host:9464", _view(rate=0.002), None, f"0.2 % {RECORDED}{MORE} latest --every 4"),
        ("runs/a", _view(rate=0.0), 0.01, f"recording is stopped; to resume it:\n{START} runs/a"),
        ("runs/a", _view(), None, "only acceptance and timing of this drafter are recorded"),
    ],
)
def test_why_there_are_no_chains(target: str, seen: View, budget: float | None, text: str) -> None:
    assert "\n".join(why_no_chains(target, seen, budget)) == f"0 chains: {text}"


def test_a_probe_that_is_down_a_run_that_has_ended_and_a_path_as_one_types_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally()
    tally.set(i.UP, 0, source="engine0", reason="directory")
    (line,) = why_no_chains("http://host:9464", view(tally.snapshot()), None)
    assert line == "nothing is recorded (reason: directory); the server's log says why"
    lines = why_no_chains("runs/a", _view(rate=0.002), 0.01, over=True)
    assert lines[-1] == "  --every 4, an option of driftscope serve"
    monkeypatch.chdir(tmp_path)
    lines = why_no_chains(str(tmp_path / "run"), _view(rate=0.002), 0.01)
    assert lines[1] == "  driftscope probe set run --every 4"


@pytest.mark.parametrize("rate", [None, 0.0, 1 / 4096, 0.5])
@pytest.mark.parametrize("budget", [None, 0.005, 0.01])
def test_every_line_fits(rate: float | None, budget: float | None) -> None:
    gauges = {} if rate is None else {"rate": rate}
    tally = _tally(rounds=1_234_567, **gauges)
    lines = _printed("driftscope-runs/20261124-120000", tally, budget)
    assert max(map(len, lines)) <= WIDTH
    assert any(line.startswith("0 chains: ") for line in lines)


def _printed(target: str, tally: Tally, budget: float | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=WIDTH, highlight=False)
    seen = view(tally.snapshot())
    console.print(screen(target, seen, span="since the start", state="recording", budget=budget))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_no_reason_steers_the_terminal(text: str) -> None:
    tally = Tally()
    tally.add(i.UNDRAFTED_STEPS, 1, reason=text)
    assert all(line.isprintable() for line in _printed(f"runs/{text}", tally))


def test_a_screen_of_odd_figures() -> None:
    """A rate above one draws no longer bar, and every reason for a missing draft is named."""
    tally = _tally(k=1, rounds=1)
    reasons = ("k_zero", "preempted", "structured_output", "token_budget")
    for reason in reasons:
        tally.add(i.UNDRAFTED_STEPS, 1, reason=reason)
    text = " ".join(_printed("runs/a", tally))
    assert "…" not in text and all(f"{reason} " in text for reason in reasons)
    tally.add(i.REACHED, 1e15, depth=1)
    assert max(line.count("█") for line in _printed("runs/a", tally)) == 10


@pytest.mark.parametrize(("verified", "said"), [(677 * 8, False), (677 * 5, True)])
def test_drafts_that_are_shorter_than_k_are_said_to_be(verified: int, said: bool) -> None:
    tally = _tally()
    tally.add(i.VERIFIED, verified)
    tally.add(i.ACCEPTED, 900)
    found = "a round verified 5.0 draft tokens of K = 8" in "\n".join(_printed("run", tally))
    assert found is said


def test_drift_is_shown_once_there_are_enough_chains() -> None:
    tally = _tally(k=2)
    tally.add(i.CHAINS, DRIFT_CHAINS - 1)
    words = f"drift: {DRIFT_CHAINS - 1} of the {DRIFT_CHAINS} chains that a figure needs"
    assert drift_line(view(tally.snapshot())) == words
    tally.add(i.CHAINS, 1)
    tally.observe(i.GROWTH, [2.0, 4.0])
    for depth, mass in ((1, 0.3), (2, 0.1)):
        tally.observe(i.MASS, [mass], depth=depth, **{"class": "sink"})
    line = drift_line(view(tally.snapshot()))
    assert line == "drift: hidden state 3.00x that at depth 1; sink 30.0% at depth 1, 10.0% at 2"


def test_a_password_of_an_endpoint_is_not_printed() -> None:
    assert "s3cret" not in "".join(_printed("http://me:s3cret@host:9464", Tally()))
    assert _printed("runs/a@b", Tally())[0].startswith("runs/a@b ")


def _printed_inspection(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_what_was_not_tried_is_listed_once_for_each_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inspection = broken(tmp_path)
    assert inspection.trial is not None
    print_inspection(inspection)
    assert "Ctrl-C" not in _printed_inspection(capsys)
    left_out = (
        NotApplicable(id="drafters_template", reason="none was saved"),
        *(NotApplicable(id=repair, reason=STOPPED) for repair in ("rope_theta", "fc_norm")),
    )
    trial = replace(inspection.trial, not_applicable=left_out, stopped=True)
    print_inspection(replace(inspection, trial=trial))
    printed = _printed_inspection(capsys)
    assert "not tried: drafters_template: none was saved" in printed
    assert "not tried: rope_theta, fc_norm: stopped by Ctrl-C" in printed
    assert "stopped by Ctrl-C: another repair may help more" in printed


K = 4
TRUTH = Truth(k=K, requests=40, rounds=20)


@pytest.fixture
def inspected(tmp_path: Path) -> InspectedAcceptance:
    return read_inspection(inspection_document(tmp_path, (0.7, 0.6, 0.5, 0.4)))


def test_the_last_rounds_of_answers_are_left_out(
    tmp_path: Path, inspected: InspectedAcceptance
) -> None:
    path = simulate(tmp_path / "run", TRUTH)
    inputs = Inputs(sources=[path], labels=["run"])
    (run,), notes = runs_like(inspected, inputs)
    trace = read_trace(path)
    ends = {
        row["request"]: row["prompt_tokens"] + row["output_tokens"]
        for row in trace.request.to_pylist()
    }
    rows = trace.verify.to_pylist()
    within = sum(row["position"] + 1 + K < ends.get(row["request"], 0) for row in rows)
    assert notes == ()
    assert 0 < run.rounds == within < analyze(inputs).runs[0].rounds
    for file in path.glob("request-*"):
        file.unlink()
    (run,), notes = runs_like(inspected, inputs)
    assert notes == (LAST_ROUNDS,), "where the ends are not known all rounds count"
    assert run.rounds == analyze(inputs).runs[0].rounds > 0


@pytest.mark.parametrize(("size", "words"), [(7_100_000, "7.1 MB"), (2_500_000_000, "2.5 GB")])
def test_it_tells_how_much_is_loaded(tmp_path: Path, size: int, words: str) -> None:
    for name in ("model-1.safetensors", "model-2.safetensors"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size // 2)  # a hole: no disk is used
    assert loading_line(tmp_path) == f"loading the target: {words} in {tmp_path}"
