"""Rounds by circumstance, one by one in the close-up, and by the unit of inference of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import ibis
import numpy as np
import pyarrow as pa
import pytest
from support.analyses import analyzed, finding_ids
from support.runs import Spec, rows, write_run
from support.simulate import Prompts, Truth, simulate

from driftscope.analysis.circumstances import TRAFFIC, origin_of, origins
from driftscope.analysis.closeup import MAX_ROUNDS, OPENED_EACH, OpenedRequest, regions_of
from driftscope.analysis.query.record_views import IN_BUCKETS, cut, open_run
from driftscope.analysis.query.row_filters import Bucket
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.catalogue import REPEATS_UNSEEN
from driftscope.findings.finding import Severity, Trust
from driftscope.pipeline import summarise
from driftscope.trace.reader import Trace, read_trace
from driftscope.trace.records import RequestRow
from driftscope.vocabulary import Region

pytestmark = pytest.mark.slow

TRUTH = Truth(
    requests=60,
    rounds=12,
    batches=(1, 4, 12),
    rates=(1.0,),
    k_zero_above=8,
    prompts=(
        Prompts(label="cold"),
        Prompts(label="hot", temperature=0.8, shift=-0.8),
        Prompts(label="unsaid", temperature=None),
    ),
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read_trace(simulate(tmp_path_factory.mktemp("groups") / "run", TRUTH))


@pytest.fixture(scope="module")
def run(trace: Trace) -> RunSummary:
    return summarise(trace, "run")


def test_batch_sizes_are_those_of_the_steps(trace: Trace, run: RunSummary) -> None:
    """Decode steps without a draft count for a step's size, and are no rounds."""
    verify = trace.verify.to_pylist()
    size = Counter((row["replica"], row["step"]) for row in verify)
    rounds, tokens = Counter[int](), Counter[int]()
    for row in verify:
        if row["verified"]:
            power = size[row["replica"], row["step"]].bit_length() - 1
            rounds[power] += 1
            tokens[power] += row["accepted"] + 1
    assert len(rounds) > 2
    names = ["1" if not p else f"{2**p} to {2 ** (p + 1) - 1}" for p in sorted(rounds)]
    assert [group.name for group in run.groups.batch] == names
    for power, group in zip(sorted(rounds), run.groups.batch, strict=True):
        assert group.rounds == rounds[power]
        assert group.mean_length == pytest.approx(tokens[power] / rounds[power])


@pytest.mark.parametrize(
    ("label", "origin"),
    [
        ("chat", TRAFFIC),
        ("replay", TRAFFIC),
        ("replay/alone", TRAFFIC),
        ("my/replay/x", TRAFFIC),
        ("replay/template/no BOS", "replay/template/"),
        ("replay/template/a/b", "replay/template/"),
    ],
)
def test_the_origin_of_a_label(label: str, origin: str) -> None:
    assert origin_of(label) == origin


def test_a_request_of_a_suite_names_the_suite() -> None:
    label_of = pytest.importorskip("driftscope.workloads.client.replay").label_of
    assert label_of("template", "no BOS") == "replay/template/no BOS"
    assert origin_of(label_of("my/own", "as asked")) == "replay/my-own/"
    assert len(label_of("s" * 300, "c")) == 256
    assert origins(["b", "replay/a/x", "c", "replay/a/y"]) == (TRAFFIC, "replay/a/")


@pytest.mark.parametrize(
    ("labels", "compared"),
    [
        (("code", "prose"), True),
        (("replay/template/regular", "replay/template/no BOS"), True),
        (("code", "replay/template/no BOS"), False),
        (("replay/template/regular", "replay/agent/tools"), False),
    ],
)
def test_only_labels_of_one_origin_are_compared(
    tmp_path: Path, labels: tuple[str, str], compared: bool
) -> None:
    """Half of the requests accept far less, under another label: known truth."""
    best, worst = labels
    truth = Truth(
        requests=80,
        rounds=20,
        prompts=(Prompts(label=best, share=0.5), Prompts(label=worst, share=0.5, shift=-1.5)),
    )
    found = finding_ids(analyzed(simulate(tmp_path / "run", truth)))
    assert ("template_sensitivity" in found) is compared


GOOD = Truth(k=1, conditional=(0.92,), requests=80, rounds=60, between=0.8)
LOOP_ROUNDS = 25


def _loops(trace: Trace) -> bool:
    return "looks_like_a_loop" in finding_ids(analyzed(trace, labels=["run"]))


def _looping(trace: Trace, share: float) -> Trace:
    """Return the trace with the last rounds of some requests accepted whole."""
    rows = trace.verify.sort_by([("request", "ascending"), ("time_s", "ascending")])
    names = rows["request"].to_numpy(zero_copy_only=False)
    accepted = rows["accepted"].to_numpy().copy()
    drafted = rows["verified"].to_numpy()
    requests = np.unique(names)
    for name in requests[: int(share * len(requests))]:
        last = np.flatnonzero(names == name)[-LOOP_ROUNDS:]
        accepted[last] = drafted[last]
    at = rows.schema.get_field_index("accepted")
    column = pa.array(accepted, rows.schema.field(at).type)
    return replace(trace, verify=rows.set_column(at, rows.schema.field(at), column))


@pytest.mark.parametrize("seed", range(3))
def test_a_good_drafter_of_one_token_does_not_loop(seed: int, tmp_path: Path) -> None:
    assert not _loops(read_trace(simulate(tmp_path / "run", replace(GOOD, seed=seed))))


@pytest.mark.parametrize("conditional", [(0.6,), (0.6, 0.6, 0.6)])
def test_a_loop_is_found_at_every_k(conditional: tuple[float, ...], tmp_path: Path) -> None:
    truth = replace(GOOD, k=len(conditional), conditional=conditional)
    trace = read_trace(simulate(tmp_path / "run", truth))
    assert not _loops(trace)
    assert _loops(_looping(trace, 0.2))


SPEC = Spec(requests=2 * OPENED_EACH, rounds=40)
UNKNOWN = 3
"""Number of requests without regions."""
Kind = tuple[str, bool] | None


@pytest.fixture(scope="module")
def opened_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose answers change their kind of text, and are copied, at any token."""
    random, content = np.random.default_rng(7), list(rows(SPEC))
    answers = [at for at, row in enumerate(content) if isinstance(row, RequestRow)]
    for at in answers[UNKNOWN:]:
        content[at] = replace(content[at], **_regions(random, content[at].output_tokens))
    return write_run(tmp_path_factory.mktemp("agree") / "run", SPEC, content)


def _regions(random: np.random.Generator, tokens: int) -> dict[str, Any]:
    starts = [0, *_places(random, tokens, tokens // 3)]
    copies = _places(random, tokens, 2 * (tokens // 9))
    return {
        "region_starts": starts,
        "region_codes": random.integers(len(Region.ALL), size=len(starts)).tolist(),
        "region_boundaries": starts[1::2],
        "region_copies": copies,
    }


def _places(random: np.random.Generator, tokens: int, number: int) -> list[int]:
    return sorted((1 + random.choice(tokens - 1, size=number, replace=False)).tolist())


def queried(opened_run: Path) -> dict[tuple[str, int], Kind]:
    """Return the region of each round and whether it is copied, by request and position."""
    tables = open_run(opened_run)
    names = frozenset(("region", "copied"))
    cut(tables, "verify", "verify", Bucket(sql="region || '|' || copied", names=names))
    schema = {"request": "string", "position": "int64", "bucket": "string"}
    found: pa.Table = tables.engine.rows(ibis.table(schema, name=f"verify_{IN_BUCKETS}"))
    tables.close()
    kinds: dict[tuple[str, int], Kind] = {}
    for row in found.to_pylist():
        region, _, copied = (row["bucket"] or "").partition("|")
        kinds[row["request"], row["position"]] = (region, copied == "1") if region else None
    return kinds


def shown(opened: OpenedRequest) -> list[Kind]:
    """Return the same of the rounds of a request, as its close-up shows them."""
    if not opened.region:
        return [None] * len(opened.position)
    return list(zip(opened.region, opened.copied, strict=True))


def test_each_round_of_each_opened_request_has_the_same_kind(opened_run: Path) -> None:
    opened, wanted = summarise(open_run(opened_run), "run").closeup.opened, queried(opened_run)
    assert len(opened) == SPEC.requests
    seen: list[Kind] = []
    for request in opened:
        assert request.steps <= MAX_ROUNDS
        kinds = shown(request)
        assert kinds == [wanted[request.request, position] for position in request.position]
        seen += kinds
    assert len(seen) == len(wanted)
    assert {kind[0] for kind in seen if kind} == set(Region.ALL)
    assert {kind[1] for kind in seen if kind} == {True, False}
    assert seen.count(None) == UNKNOWN * SPEC.rounds


PROMPT = 100
ANSWER: dict[str, Any] = {
    "prompt_tokens": PROMPT,
    "region_starts": [0, 10, 20],
    "region_codes": [Region.ALL.index(name) for name in ("prose", "json", "prose")],
    "region_boundaries": [10, 20],
    "region_copies": [5, 13],
}


def at(*tokens: int) -> list[int]:
    """Return the positions of rounds that draft from these tokens of the answer on."""
    return [PROMPT + token - 2 for token in tokens]


def test_a_round_has_the_region_of_the_first_token_that_it_drafts() -> None:
    regions, copied = regions_of(at(1, 9, 10, 19, 20, 99), ANSWER)
    assert regions == ("prose", "prose", "json", "json", "prose", "prose")
    assert copied == (False, True, True, False, False, False)


REPEATED = Truth(requests=80, repeats=5, rounds=20)
CROSSED = Truth(
    requests=200,
    repeats=10,
    sessions=20,
    alike=0.5,
    rounds=10,
    undrafted={"structured_output": 0.1},
)


def _width(run: RunSummary) -> float:
    interval = run.acceptance.mean_length_interval
    return interval.high - interval.low


def test_repeated_prompts_widen_every_interval(tmp_path: Path) -> None:
    path = simulate(tmp_path / "run", REPEATED)
    by_prompt = summarise(path, "a")
    by_request = summarise(replace(open_run(path), cluster="request"), "a")
    known = by_prompt.independence
    assert (known.noun, known.clusters, known.requests) == ("prompt", 16, 80)
    assert known.design_effect > 2
    assert known.worth == pytest.approx(80 / known.design_effect)
    assert _width(by_prompt) > 1.4 * _width(by_request)
    for name in ("conditional", "died", "self_mass", "growth"):
        pairs = zip(by_prompt.spread[name], by_request.spread[name], strict=True)
        clusters = [(a.clusters, b.clusters) for a, b in pairs if a and b]
        assert clusters and all(a < 17 < b for a, b in clusters), name
    share = by_prompt.fallback_spread.rejected
    assert share is not None and share.clusters is not None and share.clusters < 17


OLD = replace(REPEATED, requests=400, repeats=1, digests=False, conditional=(0.05,) * 7)


def test_an_old_trace_cannot_show_repeats_and_is_never_certain(tmp_path: Path) -> None:
    new = analyzed(simulate(tmp_path / "new", replace(OLD, digests=True)))
    old = analyzed(simulate(tmp_path / "old", OLD))
    rest = [f.id for f in new.findings if f.severity is Severity.HIGH]
    assert rest, "without this the test says nothing"
    judged = {finding.id: finding for finding in old.findings}
    for name in rest:
        low = [value for key, value in judged[name].evidence.items() if key.endswith("_low")]
        if any(value is not None for value in low):
            assert judged[name].severity is Severity.MEDIUM
            assert judged[name].confidence is not Trust.HIGH
            assert REPEATS_UNSEEN in judged[name].because
    told = ["repeats_unseen" in {note.id for note in found.notes} for found in (old, new)]
    assert told == [True, False]


def test_every_figure_has_the_variance_over_prompts_and_sessions_that_cross(
    tmp_path: Path,
) -> None:
    path = simulate(tmp_path / "run", CROSSED)
    both = summarise(path, "a")
    known = both.independence
    assert (known.noun, known.clusters, known.crossed) == ("session", 20, 20)
    by_prompt = summarise(replace(open_run(path), cluster="prompt_digest"), "a")
    by_session = summarise(replace(open_run(path), cluster="session"), "a")

    def widths(one: RunSummary) -> list[float]:
        found = [
            one.hidden.growth_interval,
            one.spread["top1"][0],
            one.latency.tpot_s_interval,
            one.fallback_spread.undrafted,
        ]
        return [interval.high - interval.low for interval in found if interval]

    assert _width(both) >= max(_width(by_prompt), _width(by_session)) - 1e-9
    pairs = zip(widths(both), widths(by_prompt), widths(by_session), strict=True)
    for either, prompt, session in pairs:
        assert either >= max(prompt, session) * 0.999
