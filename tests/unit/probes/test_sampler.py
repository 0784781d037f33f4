"""Settings of the probe, and which steps are recorded: at a fixed rate, or as a budget allows."""

from __future__ import annotations

import itertools
import os
import random
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.command import run_python

from driftscope.boundary.bounds import MAX_LABEL_CHARS
from driftscope.errors import DriftscopeError, ProbeError
from driftscope.trace.schema import Pseudonyms
from driftscope_probes.engine import LABEL
from driftscope_probes.sampler import (
    CHOICES,
    EVERY_STEPS,
    FIRST_CHAINS,
    FIRST_RATE,
    LEAST_RATE,
    REMEMBERED_LABELS,
    RequestSelection,
    Sampler,
    detail_choices,
)
from driftscope_probes.settings import (
    DEFAULT_BUDGET,
    NAMES,
    REQUEST_KEY,
    Settings,
    fix_run_directory,
    prompt_key,
    request_key,
    settings_from,
)
from driftscope_probes.vllm.schedule import VllmSchedules, adapter_of, label_of

STEP_S = 0.010
PASSED_S = 1e-6


def _serve(
    sampler: Sampler,
    steps: int,
    *,
    recorded_s: float,
    step_s: float = STEP_S,
    encoding_s: float = 0.0,
    noise: Callable[[], float] = lambda: 1.0,
) -> tuple[int, float]:
    """Simulate steps; (recorded ones, the probe's share of the time without it)."""
    taken, spent = 0, 0.0
    for _ in range(steps):
        recorded = sampler.take()
        probe_s = (recorded_s if recorded else PASSED_S) * noise()
        sampler.note([step_s], [probe_s], recorded=recorded)
        if recorded:
            sampler.note_encoding(encoding_s)
        taken += recorded
        spent += probe_s + recorded * encoding_s
    return taken, spent / (steps * step_s)


def test_each_nth_draft_step_from_the_first() -> None:
    sampler = Sampler(every=3)
    assert sampler.rate == pytest.approx(1 / 3)
    assert [sampler.take() for _ in range(7)] == [True, False, False, True, False, False, True]
    _serve(sampler, 10 * EVERY_STEPS, recorded_s=1.0)
    assert sampler.rate == pytest.approx(1 / 3), "a fixed rate is not governed"


def test_the_first_rate_holds_until_something_is_known() -> None:
    sampler = Sampler(every=None)
    assert (sampler.rate, sampler.budget, sampler.overhead) == (FIRST_RATE, DEFAULT_BUDGET, 0.0)
    for _ in range(10 * EVERY_STEPS):
        sampler.note([STEP_S - PASSED_S], [PASSED_S], recorded=False)
    assert sampler.rate == FIRST_RATE, "without a recorded step nothing is known of its cost"
    assert sampler.overhead < DEFAULT_BUDGET
    taken = sum(Sampler(every=None, seed=seed).take() for seed in range(4000))
    assert taken == pytest.approx(4000 * FIRST_RATE, rel=0.2)


def test_a_short_run_has_enough_chains_whatever_the_budget() -> None:
    sampler = Sampler(every=None, budget=0.001, seed=4)
    taken, _ = _serve(sampler, round(FIRST_CHAINS / FIRST_RATE * 0.7), recorded_s=0.5 * STEP_S)
    assert sampler.rate == FIRST_RATE and taken > FIRST_CHAINS / 2
    _serve(sampler, round(FIRST_CHAINS / FIRST_RATE), recorded_s=0.5 * STEP_S)
    assert sampler.rate < FIRST_RATE / 10, "then the budget decides"


def test_what_the_writer_takes_in_any_case_is_of_the_budget() -> None:
    sampler = Sampler(every=None, budget=0.01, seed=1)
    sampler.note_writing(0.006 * STEP_S)
    _serve(sampler, 40 * EVERY_STEPS, recorded_s=0.1 * STEP_S)
    assert sampler.rate == pytest.approx((0.01 - 0.006 - PASSED_S / STEP_S) / 0.1, rel=0.05)
    assert sampler.overhead == pytest.approx(0.01, rel=0.05)
    sampler.note_writing(0.5 * STEP_S)
    sampler.note_writing(0.5 * STEP_S)
    _serve(sampler, EVERY_STEPS, recorded_s=0.1 * STEP_S)
    assert sampler.rate == LEAST_RATE, "nothing is left"


@pytest.mark.parametrize("budget", [0.002, 0.01, 0.05])
@pytest.mark.parametrize("seen", [1.0, 0.5])
@pytest.mark.parametrize(("recorded_s", "encoding_s"), [(0.002, 0.0), (0.0005, 0.0015)])
def test_the_probe_takes_what_its_budget_allows(
    budget: float, recorded_s: float, encoding_s: float, seen: float
) -> None:
    """What no clock sees is of the budget, too."""
    sampler = Sampler(every=None, budget=budget, seed=1, seen=seen)
    noise = random.Random(2)
    costs = {"recorded_s": recorded_s, "encoding_s": encoding_s}
    _serve(sampler, 2000, noise=lambda: noise.uniform(0.8, 1.2), **costs)
    _, share = _serve(sampler, 20_000, noise=lambda: noise.uniform(0.8, 1.2), **costs)
    assert share == pytest.approx(seen * budget, rel=0.15)
    assert sampler.overhead == pytest.approx(budget, rel=0.15)


def test_a_rate_follows_costs_that_change_and_no_one_off_costs() -> None:
    sampler = Sampler(every=None, budget=0.01, seed=3)
    _serve(sampler, 4000, recorded_s=0.001)
    cheap = sampler.rate
    assert cheap == pytest.approx(0.1, rel=0.1)
    sampler.note([1.0], [4.0], recorded=True)  # a kernel is compiled
    _serve(sampler, 2 * EVERY_STEPS, recorded_s=0.001)
    assert sampler.rate == pytest.approx(cheap, rel=0.05)
    _serve(sampler, 4000, recorded_s=0.004)
    assert sampler.rate == pytest.approx(cheap / 4, rel=0.1)


def test_the_rate_changes_only_between_decisions() -> None:
    sampler, rates = Sampler(every=None, budget=0.01), list[float]()
    for _ in range(8 * EVERY_STEPS):
        rates.append(sampler.rate)
        _serve(sampler, 1, recorded_s=0.001)
    changes = [i for i in range(1, len(rates)) if rates[i] != rates[i - 1]]
    assert changes, "the governor decides"
    assert all(i % EVERY_STEPS == 0 for i in changes)


@pytest.mark.parametrize("seed", range(5))
def test_weighting_by_the_rate_in_force_is_unbiased(seed: int) -> None:
    """A quantity that goes with the very costs that move the rate: unweighted it would be off."""
    sampler, steps = Sampler(every=None, budget=0.02, seed=seed), 40_000
    drawn = list[tuple[float, float]]()
    for i in range(steps):
        busy = (i // 4000) % 2
        rate, recorded = sampler.rate, sampler.take()
        probe_s = (0.003 if busy else 0.0005) if recorded else PASSED_S
        sampler.note([STEP_S], [probe_s], recorded=recorded)
        if recorded:
            drawn.append((1 / rate, 3.0 if busy else 1.0))
    weights = sum(weight for weight, _ in drawn)
    truth = 2.0
    assert weights == pytest.approx(steps, rel=0.15), "the weights stand for all steps"
    assert sum(w * value for w, value in drawn) / weights == pytest.approx(truth, rel=0.1)
    plain = sum(value for _, value in drawn) / len(drawn)
    assert plain < truth * 0.85, "without weights the busy half is too rare"


def test_steps_are_drawn_whatever_came_before() -> None:
    sampler = Sampler(every=None, seed=5)
    sampler.rate = 0.5
    drawn = [sampler.take() for _ in range(20_000)]
    after = [b for a, b in itertools.pairwise(drawn) if a]
    assert sum(drawn) / len(drawn) == pytest.approx(0.5, abs=0.02)
    assert sum(after) / len(after) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("every", [None, 1])
def test_nothing_is_recorded_between_stop_and_start(every: int | None) -> None:
    sampler = Sampler(every=every)
    sampler.rate = 1.0
    sampler.stop()
    assert not sampler.recording
    assert not any(sampler.take() for _ in range(50))
    assert sampler.rate == 1.0, "the rate for when recording goes on"
    sampler.start()
    assert sampler.recording
    assert all(sampler.take() for _ in range(50))


def test_set_fixes_the_rate_or_has_it_governed_again() -> None:
    sampler = Sampler(every=None, budget=0.01)
    _serve(sampler, 1000, recorded_s=0.002)
    sampler.set(every=2)
    assert sampler.rate == 0.5
    assert [sampler.take() for _ in range(4)] == [True, False, True, False]
    governed = 0.01 * STEP_S / 0.002
    _serve(sampler, 400, recorded_s=0.002)
    sampler.set(budget=0.05)
    assert (sampler.every, sampler.budget) == (None, 0.05)
    assert sampler.rate == pytest.approx(governed, rel=0.1), "known meanwhile, and not 0.5"
    sampler.note([STEP_S - PASSED_S], [PASSED_S], recorded=False)
    assert sampler.rate == pytest.approx(5 * governed, rel=0.1)
    _serve(sampler, 4000, recorded_s=0.002)
    assert sampler.overhead == pytest.approx(0.05, rel=0.05)
    unknown = Sampler(every=1)
    unknown.set(budget=0.1)
    assert unknown.rate == FIRST_RATE, "nothing is known yet"


@pytest.mark.parametrize("every", [3, 7])
def test_ranks_that_hear_of_a_change_one_after_the_other_agree_again(every: int) -> None:
    ranks = [Sampler(every=2), Sampler(every=2)]
    for step in range(40):
        for rank, heard in zip(ranks, (11, 16), strict=True):
            if step == heard:
                rank.stop()
                rank.set(every=every)
            if step == heard + 3:
                rank.start()
        taken = {rank.take() for rank in ranks}
        assert len(taken) == 1 or 11 <= step < 19


@pytest.mark.parametrize(
    ("every", "interval"), [(1, 1), (2, 1), (8, 1), (50, 1), (8, 2), (8, 8), (8, 16), (8, 64)]
)
def test_one_step_in_so_many_carries_them(every: int, interval: int) -> None:
    """Steps that are recorded at an interval are chosen as often."""
    chosen, steps = detail_choices(every), max(CHOICES, 4000)
    assert len(chosen) == CHOICES
    hits = [chosen[number * interval % CHOICES] for number in range(steps)]
    assert sum(hits) == pytest.approx(steps / every, rel=0.2)


LONG = 105_000
"""Characters of a label that one HTTP request can carry."""


def _request(name: str, label: Any) -> Any:
    sampling = SimpleNamespace(extra_args={LABEL: label})
    return SimpleNamespace(req_id=name, sampling_params=sampling)


def _learned(selection: RequestSelection, *requests: Any) -> RequestSelection:
    """Learn the labels of new requests, as a schedule of vLLM has them."""
    scheduled = SimpleNamespace(scheduled_new_reqs=requests)
    selection.learn(VllmSchedules().labels(scheduled))
    return selection


def test_a_selection_knows_requests_from_before_it_was_made() -> None:
    pooled = SimpleNamespace(req_id="p", sampling_params=None)
    plain = SimpleNamespace(req_id="3", sampling_params=SimpleNamespace(extra_args=None))
    selection = RequestSelection()
    _learned(selection, _request("1", "a"), _request("2", 7), pooled)
    _learned(selection, plain)
    ids = ("1", "2", "3", "p", "unseen")
    assert selection.chosen(ids) is None
    assert selection.selects(None)
    selection.labels = ("a", "7")
    chosen = selection.chosen(ids)
    assert chosen is not None and chosen.tolist() == [True, True, False, False, False]
    assert (selection.selects("a"), selection.selects(None)) == (True, False)


@pytest.mark.parametrize(
    ("label", "kept"),
    [
        (None, None),
        ("", ""),
        ("chat", "chat"),
        (7, "7"),
        ("x" * MAX_LABEL_CHARS, "x" * MAX_LABEL_CHARS),
        ("x" * (MAX_LABEL_CHARS + 1), "x" * MAX_LABEL_CHARS),
        (["y" * LONG], "['" + "y" * (MAX_LABEL_CHARS - 2)),
    ],
    ids=["none", "empty", "short", "number", "longest", "too-long", "list"],
)
def test_a_label_is_cut(label: Any, kept: str | None) -> None:
    """A request without a label has that of its adapter."""
    request = _request("1", label)
    assert label_of(request) == kept
    request.lora_request = SimpleNamespace(lora_name="sql")
    assert (label_of(request), adapter_of(request)) == ("sql" if kept is None else kept, "sql")


def test_so_many_labels_are_remembered() -> None:
    named = (_request(f"r{n}", "a") for n in range(REMEMBERED_LABELS + 1))
    chosen = _learned(RequestSelection(["a"]), *named).chosen(["r0", "r1", f"r{REMEMBERED_LABELS}"])
    assert chosen is not None and chosen.tolist() == [False, True, True]


def _trace(trace: str, **settings: str) -> Settings:
    given = {"TRACE": trace, **settings}
    found = settings_from({f"DRIFTSCOPE_{name}": value for name, value in given.items()})
    assert found is not None
    return found


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"TRACE": "", "EVERY": "never"},
        *(
            {"DISABLE": value, "TRACE": "/runs/a", "EVERY": "not a number"}
            for value in ("1", "true", "YES", " on ", "perhaps", "2")
        ),
    ],
)
def test_off_unless_something_asks_for_a_trace_and_nothing_disables_it(
    environ: dict[str, str],
) -> None:
    assert settings_from({f"DRIFTSCOPE_{name}": value for name, value in environ.items()}) is None


def test_every_setting_can_be_given() -> None:
    """By a variable and in the file; the sink's source follows from whether it was, and four
    names together say where figures go."""
    telemetry = {"otlp", "prometheus", "metric_labels"}
    attributes = {field.name for field in fields(Settings)} - {"sink_source", "telemetry"}
    assert set(NAMES) == attributes | telemetry


def test_every_setting_has_a_variable() -> None:
    environ = {
        "TRACE": "/runs/a",
        "EVERY": "3",
        "BUDGET": "2%",
        "DISTANCE_EVERY": "0",
        "LABELS": "a, b,,a",
        "SINK_TOKENS": "1",
        "TOKEN_IDS": "yes",
        "IDENTIFIERS": "off",
        "RECORDING": "shadow",
        "MAX_MB": "7",
        "TEST_RAISE": "after",
    }
    assert settings_from({f"DRIFTSCOPE_{k}": v for k, v in environ.items()}) == Settings(
        trace=Path("/runs/a"),
        every=3,
        budget=0.02,
        distance_every=0,
        labels=("a", "b"),
        sink_tokens=1,
        sink_source="given",
        token_ids=True,
        identifiers=False,
        max_mb=7,
        test_raise="after",
        recording="shadow",
    )


UNFIT: dict[str, tuple[str, ...]] = {
    "EVERY": ("often", "0", "-1", "1.5", "1000001"),
    "SINK_TOKENS": ("0", "4097", "four", "1,x", "0,4096", ",", "-1,2"),
    "TRACE": ("~no-such-user/run",),
    "TOKEN_IDS": ("maybe",),
    "IDENTIFIERS": ("hashed",),
    "MAX_MB": ("0", "2GB"),
    "BUDGET": ("0", "1.5", "1%%", "nan", "a little"),
    "DISTANCE_EVERY": ("-1", "all"),
    "TEST_RAISE": ("during",),
    "LABELS": ("x" * (MAX_LABEL_CHARS + 1),),
    "RECORDING": ("live",),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in UNFIT.items() for value in values]
)
def test_a_value_that_cannot_be_used_is_named(name: str, value: str) -> None:
    with pytest.raises(ProbeError) as caught:
        settings_from({"DRIFTSCOPE_TRACE": "/a", f"DRIFTSCOPE_{name}": value})
    assert re.fullmatch(rf"DRIFTSCOPE_{name}={value!r}: give [^\n]+", str(caught.value))


@pytest.mark.parametrize("name", ["DRIFTSCOPE_SINK_TOKENS", "OTEL_METRIC_EXPORT_INTERVAL"])
def test_a_number_of_5000_digits_is_refused(name: str) -> None:
    telemetry = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    with pytest.raises(DriftscopeError, match=f"{name}=.*give "):
        settings_from({"DRIFTSCOPE_TRACE": "/a", **telemetry, name: "9" * 5000})


def test_a_run_directory_is_fixed_to_where_the_engine_starts_once_for_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _trace("runs/a").trace == tmp_path / "runs" / "a"
    monkeypatch.setenv("DRIFTSCOPE_TRACE", "/runs/{time}-{pid}")
    fix_run_directory(_trace("/runs/{time}-{pid}"))
    fixed = os.environ["DRIFTSCOPE_TRACE"]
    assert re.fullmatch(rf"/runs/\d{{8}}-\d{{6}}-{os.getpid()}", fixed)
    fix_run_directory(_trace(fixed))
    assert os.environ["DRIFTSCOPE_TRACE"] == fixed


@pytest.mark.parametrize(
    ("value", "tokens", "slots", "source"),
    [
        ("3", 3, (0, 1, 2), "given"),
        ("17, 0,1,0", (0, 1, 17), (0, 1, 17), "given"),
        ("7,", (7,), (7,), "given"),
        ("auto", None, (), "sought"),
        (" Auto ", None, (), "sought"),
    ],
)
def test_a_sink_set_by_number_by_slot_or_looked_for(
    value: str, tokens: object, slots: tuple[int, ...], source: str
) -> None:
    found = _trace("/a", SINK_TOKENS=value)
    assert (found.sink_tokens, found.sink_slots, found.sink_source) == (tokens, slots, source)


_CHILD = """
from driftscope.trace.schema import Pseudonyms
from driftscope_probes.settings import request_key
print(Pseudonyms(request_key()).name("cmpl-7"))
"""


@pytest.mark.process
def test_processes_of_one_start_hash_alike_and_another_start_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = []
    for _ in range(2):
        monkeypatch.setenv("DRIFTSCOPE_TRACE", "/runs/a")
        monkeypatch.setenv(REQUEST_KEY, "")  # monkeypatch then takes back what is set below
        monkeypatch.delenv(REQUEST_KEY)
        fix_run_directory(Settings(trace=Path("/runs/a"), identifiers=False))
        names.append(Pseudonyms(request_key()).name("cmpl-7"))
        child = run_python("-c", _CHILD, **{REQUEST_KEY: os.environ[REQUEST_KEY]})
        assert child.stdout.strip() == names[-1]
    assert names[0] != names[1]


def test_prompts_are_hashed_with_a_key_of_the_salt_or_of_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No key is made where nothing is hashed with it."""
    monkeypatch.setenv("DRIFTSCOPE_TRACE", "/runs/a")
    monkeypatch.delenv(REQUEST_KEY, raising=False)
    salted = [Settings(trace=Path("/runs/a"), prompt_salt=s) for s in ("", "of all", "other")]
    for kept in (replace(salted[0], prompt_digests=False), salted[1]):
        fix_run_directory(kept)
        assert REQUEST_KEY not in os.environ
    keys = []
    for start in ("0a" * 16, "0b" * 16):
        monkeypatch.setenv(REQUEST_KEY, start)
        keys += [prompt_key(settings) for settings in salted]
    assert keys[1] == keys[4]
    assert keys[2] == keys[5]
    assert len(set(keys)) == 4


@pytest.mark.parametrize("key", ["", "secret", "ab", "zz" * 16, "ab" * 64])
def test_a_key_that_is_no_key_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv(REQUEST_KEY, key)
    with pytest.raises(ProbeError) as caught:
        request_key()
    assert re.fullmatch(rf"{REQUEST_KEY}: give 32 random hex digits, or [^\n]+", str(caught.value))
