"""Tests of what two runs have in common, what differs between them, and what was measured."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.analyses import (
    analyzed,
    client_row,
    finding_ids,
    summary_of,
    write_replay,
)
from support.command import assert_fails, run_command
from support.runs import Spec, manifest
from support.simulate import Prompts, Truth, simulate
from support.simulate.sums import side
from support.stub_server import stub_server

from driftscope.analysis.comparability import (
    DRAFTER,
    Claim,
    Comparability,
    RunDifference,
    comparability_of,
    comparability_of_clocks,
    models_differ,
)
from driftscope.analysis.compare import verdict
from driftscope.analysis.figures.requests import Load
from driftscope.analysis.figures.rounds import Side
from driftscope.analysis.gate import RuleResult, rule_of
from driftscope.analysis.pairing import BY_DIGEST, UNPAIRED, Pairing
from driftscope.analysis.replays import CONTENDER, SPECULATION
from driftscope.analysis.validity import IGNORES_STOP, PROMPT_TEXT, RANDOM, TEXT, kind_of_text
from driftscope.cli.gate_run import judge_analysis, run_gate
from driftscope.errors import EXIT_GATE_FAILED, EXIT_OK
from driftscope.findings.finding import Answer, Topic
from driftscope.pipeline import Inputs, compare, conclude, measure
from driftscope.trace.manifest import Manifest
from driftscope.workloads.suites.prompts import prompts_of

pytestmark = pytest.mark.slow

TRUTH = Truth(requests=40, rounds=10, k=4)
WARM = (Prompts(temperature=0.7),)


def _two(folder: Path, first: Truth, second: Truth) -> tuple[Path, Path]:
    return simulate(folder / "old", first), simulate(folder / "new", replace(second, seed=9))


@pytest.mark.parametrize(
    ("other", "thing"),
    [
        (replace(TRUTH, prompts=WARM), "temperature (0 against 0.7)"),
        (replace(TRUTH, runner="v1"), "runner (vllm v2 against vllm v1)"),
        (replace(TRUTH, prompts_seed=99), "prompts"),
        (replace(TRUTH, target="other-target"), "target (simulated-target against other-target)"),
    ],
)
def test_one_thing_is_named(tmp_path: Path, other: Truth, thing: str) -> None:
    notes = analyzed(*_two(tmp_path, TRUTH, other)).notes
    (said,) = (note.statement for note in notes if note.id == "unlike")
    assert said.startswith(f"these runs differ in their {thing}: that, not the drafter")


def _manifest(engine: str, config: str, weights: str | None, layers: tuple[int, ...]) -> Manifest:
    plain = manifest(Spec(runner="", aux_layers=layers))
    model = replace(plain.target, config_digest=config, weights_digest=weights)
    return replace(plain, engine=engine, engine_version="", target=model, drafter=model)


@pytest.mark.parametrize(
    ("engine", "weights", "differ"),
    [
        ("sglang", "w", False),
        ("sglang", "other", True),
        ("sglang", None, True),
        ("vllm", "w", True),
    ],
)
def test_two_engines_read_one_checkpoint(engine: str, weights: str | None, differ: bool) -> None:
    """Their configs differ, because each engine completes it; the weights tell."""
    mine, theirs = _manifest("vllm", "a", "w", ()), _manifest(engine, "b", weights, ())
    assert models_differ(mine, theirs, DRAFTER) is differ


def _names(mine: Manifest, theirs: Manifest) -> list[str]:
    none = np.empty(0, dtype=np.int64)
    pairing = Pairing(how=BY_DIGEST, first=none, second=none, alone=0)
    found = comparability_of((SIDE, SIDE), (mine, theirs), pairing)
    return [difference.words for difference in found.differences]


def test_a_layer_shift_between_engines_is_named() -> None:
    mine, theirs = _manifest("vllm", "a", "w", (1, 2, 3)), _manifest("sglang", "b", "w", (2, 3, 4))
    assert _names(mine, theirs) == [
        "runner (vllm  against sglang )",
        "captured layers (1, 2, 3 against 2, 3, 4)",
    ]


def test_engines_give_mimos_head_other_states_of_the_target() -> None:
    plain = _manifest("vllm", "vllm", "w", ())
    vllm, sglang = (
        replace(plain, engine=engine, drafter=replace(plain.drafter, architecture=name))
        for engine, name in (("vllm", "MiMoMTPModel"), ("sglang", "MiMoMTP"))
    )
    _, state = _names(vllm, sglang)
    assert state == (
        "the target's state that MiMo's head reads (before its final norm against after its final "
        "norm)"
    )
    assert _names(vllm, vllm) == []


def test_labels_at_other_temperatures_may_differ_by_that(tmp_path: Path) -> None:
    """Without another drafter on the same prompts, the page says so."""
    cold = Prompts(label="cold", share=0.5, shift=0.7)
    warm = Prompts(label="warm", share=0.5, shift=-0.7)
    for temperature in (0.0, 1.0):
        truth = Truth(requests=120, prompts=(cold, replace(warm, temperature=temperature)))
        run = summary_of(tmp_path / f"{temperature}", truth)
        (found,) = [f for f in conclude([run]).findings if f.id == "template_sensitivity"]
        told = "but the two labels also differ in temperature (0 against 1)" in found.statement
        assert told == bool(temperature)


@pytest.mark.parametrize(("recorded", "comparable"), [(20, True), (10, False)])
def test_a_server_that_recorded_half_of_the_requests_disagrees_with_nobody(
    recorded: int, comparable: bool
) -> None:
    clocks = comparability_of_clocks(20, recorded)
    assert clocks.decides(Claim.SPEED) is comparable
    doubted = "clients and server also differ in requests" in clocks.doubt(Claim.SPEED)
    assert doubted is not comparable


def test_other_hardware_explains_speed_alone() -> None:
    mine = _manifest("vllm", "a", "w", ())
    theirs = replace(mine, hardware="NVIDIA H200")
    assert _names(replace(mine, hardware="NVIDIA H100"), theirs) == [
        "hardware (NVIDIA H100 against NVIDIA H200)"
    ]
    assert _names(mine, theirs) == [], "hardware that was not recorded differs from no other"


SIDE: Side = side(Truth(requests=8, rounds=4, k=2))


ALONG = replace(TRUTH, prompts=(Prompts(tokens=(40, 60)),), context=-0.4)
"""Acceptance that falls with the position in the answer."""
ONE_LENGTH = replace(TRUTH, prompts=(Prompts(tokens=(512, 512)),))


def _sampled(share: float) -> tuple[Prompts, ...]:
    return Prompts(temperature=0.0, share=1 - share), Prompts(temperature=1.0, share=share)


CONFOUNDED = {
    "answer length": (ALONG, replace(ALONG, rounds=40)),
    "temperature": (
        replace(TRUTH, prompts=_sampled(0.2)),
        replace(TRUTH, prompts=_sampled(0.6)),
    ),
    "prompts": (ONE_LENGTH, replace(ONE_LENGTH, prompts_seed=12)),
    "rule of verification": (
        replace(TRUTH, verification="exact"),
        replace(TRUTH, verification="block"),
    ),
}
GATE = "no_worse(acceptance.mean_length, 50%)"


@pytest.mark.parametrize("name", CONFOUNDED)
def test_what_explains_a_difference_is_told_by_every_command(tmp_path: Path, name: str) -> None:
    old, new = _two(tmp_path, *CONFOUNDED[name])
    measured = measure(Inputs(sources=[new], labels=["new"], baseline=old))
    found = conclude(measured.runs, (), measured.baseline)
    (answer,) = [about for about in found.answers if about.topic is Topic.ACCEPTANCE]
    assert answer.answer is Answer.CANNOT_TELL
    assert f"but the runs also differ in {name}" in answer.statement
    assert answer.advice
    assert not [f for f in found.findings if f.id == "runs_part" and f.asks]
    (comparison,) = [case.comparison for case in found.cases if case.comparison]
    assert verdict(comparison).startswith("which run accepts more cannot be told: they differ in")
    (judged,) = judge_analysis([rule_of(GATE, required=True)], found, measured.baseline)
    assert judged.outcome is RuleResult.UNDECIDED
    assert f"the runs also differ in {name}" in judged.line()


@pytest.mark.parametrize(
    ("rounds", "answer"), [(8, Answer.CANNOT_TELL), (60, Answer.YES), (90, Answer.YES)]
)
def test_a_drafter_is_not_judged_by_answers_that_are_cut(
    tmp_path: Path, rounds: int, answer: Answer
) -> None:
    """Prompts that get longer answers without speculation: what it accepts there is not known."""
    old, new = _two(
        tmp_path, replace(TRUTH, rounds=60, k_zero_above=0), replace(TRUTH, rounds=rounds)
    )
    answers = analyzed(new, baseline=old).answers
    (found,) = [one for one in answers if one.topic is Topic.PAYS]
    assert found.answer is answer, found.statement
    assert ("also differ in answer length" in found.statement) == (rounds == 8)


def test_another_load_explains_speed_and_not_acceptance(tmp_path: Path) -> None:
    """Of the same prompts, at depths that both runs verified."""
    old, new = _two(tmp_path, replace(TRUTH, batches=(1,)), replace(TRUTH, batches=(10,)))
    rules = (GATE, "no_worse(latency.tpot_s, 90%)")
    acceptance, speed = run_gate([new], (), baseline=old, require=rules)
    assert acceptance.outcome is RuleResult.HELD
    assert speed.outcome is RuleResult.UNDECIDED and "also differ in load" in speed.line()


@pytest.mark.parametrize("name", ["answer length", "temperature"])
def test_what_runs_have_in_common_is_compared_as_advised(tmp_path: Path, name: str) -> None:
    """What the advice says, typed as it says it."""
    runs = _two(tmp_path, *CONFOUNDED[name])
    said = run_command("compare", *runs).stdout
    (option,) = re.findall(r"--where '([^']+)'", " ".join(said.split()))
    again = run_command("compare", *runs, "--where", option)
    assert again.returncode == 0, again.stderr
    words = " ".join(again.stdout.split())
    assert "no difference" in words
    assert f"{name} (" not in words and "requests at once" not in words


def test_a_gate_is_about_another_engine_and_compare_is_not(tmp_path: Path) -> None:
    old, new = _two(tmp_path, TRUTH, replace(TRUTH, runner="v1"))
    (judged,) = run_gate([new], (), baseline=old, require=(GATE,))
    assert judged.outcome is RuleResult.HELD
    assert "cannot be told" in run_command("compare", old, new).stdout


def test_requests_of_one_length_are_no_evidence_and_others_are(tmp_path: Path) -> None:
    """Without digests, equal ids of requests of other lengths show that the prompts are equal."""
    for truth, assumed in ((TRUTH, True), (ONE_LENGTH, False)):
        unknown = replace(truth, digests=False)
        found = compare(*_two(tmp_path / str(assumed), unknown, unknown), ("a", "b"))
        assert found.assumed is assumed
        assert found.comparability.decides(Claim.ACCEPTANCE) is assumed


def test_other_requests_of_the_same_few_lengths_are_not_paired(tmp_path: Path) -> None:
    """Nearly all of them have a partner of their length in the other run, at another place."""
    few = replace(TRUTH, requests=400, rounds=2, prompts=(Prompts(tokens=(50, 54)),), digests=False)
    runs = _two(tmp_path, few, replace(few, prompts_seed=12))
    assert compare(*runs, ("a", "b")).pairing == UNPAIRED


def test_equal_requests_at_another_speed_are_one_load() -> None:
    """Requests that arrive in one rhythm: a slower server has more of them at once."""
    arrival_s = np.arange(100.0)
    loads = [
        Load(at_once=at_once, met=at_once, gaps_s=np.diff(arrival_s)) for at_once in (2.0, 4.0)
    ]
    assert loads[0].is_like(loads[1])
    assert not loads[0].is_like(replace(loads[1], gaps_s=np.diff(3 * arrival_s)))


@pytest.mark.parametrize(
    ("prompts", "how", "told"),
    [
        (WARM, "greedy", True),
        (TRUTH.prompts, "greedy", False),
        (WARM, "probabilistic", False),
    ],
)
def test_greedy_drafts_for_sampled_requests_are_said(
    tmp_path: Path, prompts: tuple[Prompts, ...], how: str, told: bool
) -> None:
    run = summary_of(tmp_path / "run", replace(TRUTH, prompts=prompts))
    run = replace(run, manifest=replace(run.manifest, draft_sampling=how))
    assert ("greedy_drafts" in {note.id for note in conclude([run]).notes}) is told


_WRITTEN = Path(__file__).parents[1] / "ingest/written"
_TEXT = (
    "The council of the town met on the first day of the year, and the mayor of the town read the "
    "report of the committee to the council, as the rules of the council ask of the mayor."
)


def _tokens(words: int, seed: int = 0) -> str:
    source = random.Random(seed)
    return " ".join("".join(source.choices("abcdefghijklmnop", k=6)) for _ in range(words))


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        ([_TEXT], TEXT),
        ([_tokens(120)], RANDOM),
        ([_tokens(120)] * 9, RANDOM),
        ([_tokens(120, seed) for seed in range(9)], RANDOM),
        ([prompt.last_text for prompt in prompts_of("trio")], TEXT),
        ([f"{_TEXT} {_tokens(24)}"] * 9, TEXT),
        ([Path(__file__).read_text(encoding="utf-8")[:2000]], TEXT),
        (["What is the capital of France?"], None),
        ([], None),
    ],
    ids=[
        *("prose", "random", "the same random prompt again", "several", "shipped prompts"),
        *("text with a list of names", "code", "too short", "none"),
    ],
)
def test_text_is_told_from_random_tokens(texts: list[str], kind: str | None) -> None:
    assert kind_of_text(texts) == kind


_VALID = {PROMPT_TEXT: TEXT, IGNORES_STOP: False}


@pytest.mark.parametrize(
    ("content", "more", "valid", "words"),
    [
        (_VALID, {}, True, "ends them; 40 different prompts; 1 warm-up"),
        (_VALID, {"finish_reason": "length"}, True, "40 of 40 answers cut at max_tokens"),
        (_VALID, {"loops": 2}, True, "2 of 40 end in a repetition loop"),
        (_VALID, {"loops": 30}, False, "75% of the answers end in a repetition loop"),
        ({**_VALID, IGNORES_STOP: True}, {}, False, "ignore_eos"),
        ({**_VALID, PROMPT_TEXT: RANDOM}, {}, False, "random tokens"),
        ({}, {}, None, "what the prompts are made of is not recorded"),
    ],
)
def test_a_replay_says_what_it_is_of(
    tmp_path: Path, content: dict[str, Any], more: dict[str, Any], valid: bool | None, words: str
) -> None:
    loops = more.pop("loops", 0)
    rows = [
        client_row(n, digest=f"d{n}", looping=n < loops, accepted=[n % 4, 3], **more)
        for n in range(40)
    ]
    run = write_replay(tmp_path / "run", [*rows, client_row(40, warmup=True)], **content)
    analysis = analyzed(run)
    (sender,) = analysis.senders
    assert sender.validity.content_valid is valid and words in sender.validity.words
    assert words in " ".join(analysis.verdict)
    assert ("not_content_valid" in finding_ids(analysis)) is (valid is False)
    checked = run_command("check", run, "--fail-on", "not_content_valid")
    assert checked.returncode == {True: 0, False: 3, None: 4}[valid], checked.stderr


def test_speed_on_random_tokens_decides_nothing(tmp_path: Path) -> None:
    for name, speculates, tpot_s in (("with", True, 0.01), ("without", False, 0.03)):
        for kind in (TEXT, RANDOM):
            rows = [client_row(n, tpot_s=tpot_s * (1 + n % 3 / 50)) for n in range(40)]
            content = {**_VALID, PROMPT_TEXT: kind, SPECULATION: speculates, CONTENDER: name}
            write_replay(tmp_path / f"{kind} {name}", rows, **content)
    for kind, answer in ((TEXT, "yes"), (RANDOM, "cannot tell")):
        analysis = analyzed(*(tmp_path / f"{kind} {name}" for name in ("without", "with")))
        (pays,) = [one for one in analysis.answers if one.id == "pays_for_clients"]
        assert pays.answer == answer and ("not content-valid" in pays.statement) is (kind == RANDOM)


@pytest.mark.parametrize("ignores", [False, True])
def test_the_client_records_what_it_asks(tmp_path: Path, ignores: bool) -> None:
    suite, mine = tmp_path / "plain.yaml", tmp_path / "mine.jsonl"
    settings = "{max_tokens: 8, ignore_eos: true}" if ignores else "{max_tokens: 8}"
    suite.write_text(f"{{prompts: chat, baseline: a, conditions: {{a: []}}, settings: {settings}}}")
    text = _tokens(120) if ignores else _TEXT
    mine.write_text("".join(json.dumps({"prompt": f"{n} {text}"}) + "\n" for n in range(3)))
    with stub_server() as stub:
        asked = ("--suite", suite, "--prompts", mine, "--warmup", 0, "-o", tmp_path / "run")
        done = run_command("replay", stub.url, *asked)
    assert done.returncode == 0, done.stderr
    (sender,) = analyzed(tmp_path / "run").senders
    assert sender.validity.ignores_stop is ignores
    assert sender.validity.prompts == (RANDOM if ignores else TEXT)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("sglang-0.5.23/bench.jsonl", "the prompts are random tokens"),
        ("guidellm-0.8/benchmarks.json", "answers go on after their end"),
        ("aiperf-0.13/profile_export_aiperf.json", ""),
    ],
)
def test_a_tools_file_says_it_where_it_is_known(tmp_path: Path, file: str, words: str) -> None:
    read = run_command("ingest", _WRITTEN / file, "-o", tmp_path / "run")
    assert (words in " ".join(read.stdout.split())) and bool(words) is (
        "not content-valid" in read.stdout
    )
    (sender,) = analyzed(tmp_path / "run").senders
    assert sender.validity.content_valid is (not words)


BEFORE = Truth(
    k=3,
    requests=80,
    rounds=20,
    conditional=(0.8, 0.7, 0.6),
    prompts=(Prompts(label="kept", share=0.5), Prompts(label="lost", share=0.5)),
    rates=(1.0,),
)
AFTER = replace(
    BEFORE, seed=8, prompts=(BEFORE.prompts[0], Prompts(label="lost", share=0.5, shift=-2.0))
)
RULE = "no_worse(acceptance.mean_length, 10%)"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return simulate(folder / "before", BEFORE), simulate(folder / "after", AFTER)


@pytest.mark.parametrize(("label", "differs"), [("kept", False), ("lost", True)])
def test_a_comparison_and_a_gate_are_of_the_part_that_was_asked_for(
    runs: tuple[Path, Path], label: str, differs: bool
) -> None:
    where = ("--where", f"label = '{label}'")
    done = run_command("compare", *runs, *where)
    assert done.stdout.startswith(f"Of both runs only --where label = '{label}'.")
    assert ("differs" in done.stdout) == differs
    document = json.loads(run_command("compare", *runs, *where, "--json").stdout)
    assert document["where"] == where[1]
    checked = run_command("check", runs[1], "--baseline", runs[0], *where, "--require", RULE)
    assert checked.returncode == (EXIT_GATE_FAILED if differs else EXIT_OK), checked.stderr


def test_a_run_without_speculation_has_no_rounds(runs: tuple[Path, Path], tmp_path: Path) -> None:
    plain = simulate(tmp_path / "plain", replace(BEFORE, k_zero_above=0))
    checked = ("check", runs[0], "--baseline", plain, "--require", "k == 3")
    for words in (checked, ("compare", runs[0], plain)):
        assert_fails(run_command(*words, "--where", "label = 'kept'"), 2, "need speculation")


def test_another_target_is_explanation_enough() -> None:
    found = [
        RunDifference(name=name, explains=(Claim.ACCEPTANCE,), settle=f"Settle the {name}.")
        for name in ("runner", "target", "prompts")
    ]
    settled = [
        Comparability(differences=tuple(some)).settle(Claim.ACCEPTANCE)
        for some in (found, found[::2])
    ]
    assert settled == ["Settle the target.", "Settle the runner. Settle the prompts."]
