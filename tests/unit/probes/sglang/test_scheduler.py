"""SGLang's scheduler, worker and plugin: their hooks, their rows, and what is refused."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.answers import WordTokenizer
from support.command import run_python
from support.schedules import ended_row

from driftscope.errors import ProbeError
from driftscope.trace.records import RequestRow
from driftscope.trace.schema import Block
from driftscope.vocabulary import Region
from driftscope_probes.engine import DraftCall
from driftscope_probes.guard import Guard
from driftscope_probes.request_rows import EndedRequest, RequestRegions
from driftscope_probes.sglang import worker as worker_module
from driftscope_probes.sglang.chain import AheadSampler, FirstDepths
from driftscope_probes.sglang.plugin import HOOKS, TESTED, check_version
from driftscope_probes.sglang.run_manifest import verification_of
from driftscope_probes.sglang.scheduler import (
    RequestTokens,
    ServedRequest,
    StepTracker,
    WarmUp,
    is_own_name,
    parsers_of,
    regions_of,
)
from driftscope_probes.sglang.worker import (
    PROBE,
    RecordedWorker,
    TimedWorker,
    rows_after_prefill,
    rows_after_verification,
)
from driftscope_probes.start_guard import install_hooks


def request(**changed: Any) -> Any:
    sampling = {"top_k": 1, "temperature": 1.0, "max_new_tokens": 8}
    own = {key: changed.pop(key) for key in list(changed) if key in sampling}
    usual = {
        "rid": "a",
        "origin_input_text": "The capital city of France is",
        "origin_input_ids": [5, 6],
        "sampling_params": SimpleNamespace(**{**sampling, **own}),
    }
    return SimpleNamespace(**{**usual, **changed})


@pytest.mark.parametrize(
    ("requests", "name"),
    [
        ([{"rid": "HEALTH_CHECK_1", "max_new_tokens": 1}, {}], "a"),
        ([{"origin_input_text": None, "origin_input_ids": [10, 11, 12]}], "a"),  # no tokenizer
        # Another first request is a user's.
        ([{"origin_input_text": "The capital of France is"}], ""),
        ([{"max_new_tokens": 9}], ""),
        ([{"top_k": -1, "temperature": 0.5}], ""),
    ],
    ids=str,
)
def test_the_first_request_with_the_content_of_the_warm_up_is_it(
    requests: list[dict[str, Any]], name: str
) -> None:
    seen = WarmUp()
    for changed in (*requests, {"rid": "b"}):
        seen.look(request(**changed))
    assert seen.name == name
    assert is_own_name("HEALTH_CHECK_17") and not is_own_name("a")


PROMPT = 10


def served(time_s: float, outputs: int, gained: int, **changed: Any) -> tuple[float, list[Any]]:
    plain = {"request": "a", "prompt": PROMPT, "decoding": True, "drafted": 4, "accepted": 0}
    return time_s, [ServedRequest(outputs=outputs, gained=gained, **{**plain, **changed})]


def finished(output_tokens: int, tokens: RequestTokens | None = None) -> EndedRequest:
    row = ended_row(time_s=9.0, arrival_s=1.0, prompt_tokens=PROMPT, output_tokens=output_tokens)
    own = RequestTokens(prompt_token_ids=[1], output_token_ids=[2])
    return EndedRequest(row=row, request=tokens or own)


def rows_of(
    *steps: tuple[float, list[Any]], speculates: bool = True
) -> tuple[list[dict[str, Any]], StepTracker]:
    errors: list[BaseException] = []
    tracker = StepTracker(lambda _, error: errors.append(error), speculates=speculates)
    blocks = tracker.rows([*steps])
    assert not errors and all(isinstance(block, Block) for block in blocks)
    return [row for block in blocks for row in block.to_batch().to_pylist()], tracker  # type: ignore[union-attr]


def test_a_round_is_joined_by_its_last_verified_slot() -> None:
    """A prompt is no verification."""
    (row,), _ = rows_of(served(2.0, 0, 1, drafted=0), served(3.0, 1, 3, accepted=2))
    assert (row["position"], row["verified"], row["accepted"], row["reason"]) == (9, 4, 2, None)
    assert (row["step"], row["time_s"]) == (2, 3.0)


@pytest.mark.parametrize(
    ("decoding", "speculates", "reason"),
    [
        (False, True, "preempted"),
        (True, True, "no_draft"),
        (False, False, "k_zero"),
        (True, False, "k_zero"),
    ],
)
def test_a_token_without_a_draft_says_why(decoding: bool, speculates: bool, reason: str) -> None:
    step = served(3.0, 5, 1, drafted=0, accepted=3, decoding=decoding)
    rows, _ = rows_of(step, speculates=speculates)
    assert [(r["verified"], r["accepted"], r["reason"]) for r in rows] == [(0, 0, reason)]


@pytest.mark.parametrize(("tokens", "tpot_s"), [(1, None), (5, 0.5)])
def test_times_of_a_request(tokens: int, tpot_s: float | None) -> None:
    _, tracker = rows_of(served(2.0, 0, 1, drafted=0), served(4.0, 1, 4, accepted=3))
    (row,) = tracker.rows([finished(tokens)])
    assert isinstance(row, RequestRow)
    assert (row.ttft_s, row.tpot_s) == (1.0, tpot_s)
    assert row.prompt_digest is None


TOKENIZER = WordTokenizer("word\n", "<tool_call>", '{"a": 1}', "</tool_call>")


def test_parsers_are_those_of_the_server_unless_it_chooses_them_by_the_template() -> None:
    arguments = SimpleNamespace(tool_call_parser="mine", reasoning_parser="auto")
    assert parsers_of(arguments) == ("mine", None)
    assert parsers_of(None) == (None, None)


@pytest.mark.parametrize(
    ("tokenizer", "regions", "kinds", "failed"),
    [
        (TOKENIZER, regions_of(None), ["prose", "template", "json", "template"], []),
        (TOKENIZER, regions_of(SimpleNamespace(tool_call_parser="mine")), ["prose"] * 2, []),
        (None, regions_of(None), None, []),
        (TOKENIZER, None, None, []),
        (object(), regions_of(None), None, ["regions"]),
    ],
    ids=["a tokenizer", "an unknown parser", "no tokenizer", "switched off", "a tokenizer fails"],
)
def test_an_answer_has_its_kinds_of_text(
    tokenizer: Any, regions: RequestRegions | None, kinds: list[str] | None, failed: list[str]
) -> None:
    tokens = RequestTokens(prompt_token_ids=[0], output_token_ids=[0, 1, 2, 3], tokenizer=tokenizer)
    errors: list[str] = []
    tracker = StepTracker(lambda hook, _: errors.append(hook), None, regions)
    (row,) = tracker.rows([finished(4, tokens)])
    assert isinstance(row, RequestRow) and errors == failed
    codes = row.region_codes
    assert (None if codes is None else [Region.ALL[code] for code in codes]) == kinds
    assert (row.region_languages is None) == (kinds is None)


class Sink:
    """A recorder that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.drafted_s = 0.0

    def step_started(self, scheduled: Any = None) -> None:
        self.calls.append(f"started {scheduled}")

    def draft(self, call: DraftCall) -> Any:
        self.calls.append(f"draft {call.k}")
        return call.serve()

    def add_draft_time(self, seconds: float) -> None:
        self.drafted_s += seconds

    def step_ended(self, requests: Callable[[], int]) -> None:
        self.calls.append(f"ended {requests()}")

    def close(self) -> None:
        self.calls.append("closed")


def batch(**own: Any) -> Any:
    return SimpleNamespace(reqs=[SimpleNamespace(rid="a"), SimpleNamespace(rid="b")], **own)


def _step(probe: TimedWorker, served: Any, result: object = None) -> object:
    """Run a step of a worker that drafts and extends, both of which give out what they gave."""
    worker = SimpleNamespace(speculative_num_steps=4)
    verify = SimpleNamespace(draft_token=torch.arange(10))

    def run() -> object:
        assert probe.draft(lambda: verify, worker, served) is verify
        assert probe.extend(lambda: 5, worker, served, lambda: pytest.fail("no rows")) == 5
        return result

    return probe.step(run, served)


def test_a_step_is_served_between_start_and_end() -> None:
    sink: Any = Sink()
    result = object()
    assert _step(TimedWorker(sink), batch(), result) is result
    assert sink.calls == ["started None", "draft 4", "ended 2"]
    assert sink.drafted_s > 0
    with pytest.raises(ZeroDivisionError):
        TimedWorker(sink).step(lambda: 1 / 0, batch())


def test_rows_that_are_wanted_after_a_prompt_and_after_a_verification() -> None:
    """The last ones of each prompt; and rejected rows are left out."""
    rows = rows_after_prefill(batch(extend_lens=[3, 2], seq_lens=torch.tensor([3, 9])))
    states, results = torch.arange(8.0)[:, None], torch.tensor([[7.0], [8.0]])
    assert rows.inside(states[:5]).flatten().tolist() == [2, 4]
    assert rows.result(results).flatten().tolist() == [7, 8], "SGLang has pruned these already"
    rows = rows_after_verification(torch.tensor([1, 4], dtype=torch.int32), 4)
    for found in (rows.inside(states), rows.result(states)):
        assert found.flatten().tolist() == [0, 7]


class Unasked:
    """A request that may not be looked at."""

    @property
    def rid(self) -> str:
        raise LookupError("a step that is not recorded asks for the names of its requests")


def test_a_step_that_is_not_recorded_asks_for_nothing() -> None:
    errors, sampler = list[BaseException](), AheadSampler(every=1000)
    sampler.take()  # the first of a thousand
    writer: Any = SimpleNamespace(count_error=lambda _, error: errors.append(error))
    sink: Any = Sink()
    unused: Any = None
    sink.guard, sink.sampler, sink.taps, sink.selection = Guard(writer), sampler, unused, unused
    mode = SimpleNamespace(is_extend=lambda: False)
    served = SimpleNamespace(reqs=[Unasked(), Unasked()], forward_mode=mode)
    _step(RecordedWorker(sink, FirstDepths(8), (), unused), served)
    assert errors == [] and sink.calls[1:] == ["draft 4", "ended 2"]


def hooked(monkeypatch: pytest.MonkeyPatch, kind: type, module: str) -> tuple[Any, Sink]:
    """Return a hooked subclass, so that `kind` is left as it is, and what its probes call."""
    subclass, sink = type(kind.__name__, (kind,), dict(vars(kind))), Sink()
    attach = lambda view: setattr(view, PROBE, TimedWorker(sink))  # type: ignore[arg-type]  # noqa: E731
    monkeypatch.setattr(worker_module, "attach", attach)
    named: Any = SimpleNamespace(__name__=f"sglang.srt.{module}", **{kind.__name__: subclass})
    install_hooks(HOOKS["worker"], named)
    return subclass, sink


class NGRAMWorker:
    """A worker with the methods and attributes that are hooked or read."""

    server_args, device, target_worker, draft_token_num = object(), "cpu", object(), 4

    def __init__(self) -> None:
        self.prepared: list[Any] = []

    def alloc_memory_pool(self) -> str:
        return "allocated"

    def forward_batch_generation(self, ngram_batch: Any) -> str:
        self._prepare_for_speculative_decoding(ngram_batch)
        return "served"

    def _prepare_for_speculative_decoding(self, ngram_batch: Any) -> None:
        self.prepared.append(ngram_batch)


def ngram_batch(*, decode: bool, requests: int = 2) -> Any:
    mode = SimpleNamespace(is_decode=lambda: decode)
    return SimpleNamespace(reqs=[object()] * requests, forward_mode=mode)


@pytest.mark.parametrize(
    ("asked", "calls"),
    [
        (ngram_batch(decode=True), ["started None", "draft 3", "ended 2"]),
        (ngram_batch(decode=False), ["started None", "ended 2"]),  # a prefill drafts nothing
        (ngram_batch(decode=True, requests=0), []),
    ],
)
def test_a_decode_step_is_timed_with_its_draft(
    monkeypatch: pytest.MonkeyPatch, asked: Any, calls: list[str]
) -> None:
    kind, sink = hooked(monkeypatch, NGRAMWorker, "speculative.ngram_worker")
    worker = kind()
    assert worker.alloc_memory_pool() == "allocated"
    assert worker.forward_batch_generation(asked) == "served"
    assert (sink.calls, worker.prepared) == (calls, [asked])


class TpModelWorker:
    """A target's worker with the methods and attributes that are hooked or read."""

    device = "cpu"

    def __init__(self, algorithm: str | None, *, generates: bool = True) -> None:
        self.server_args = SimpleNamespace(speculative_algorithm=algorithm)
        self.model_config = SimpleNamespace(is_generation=generates)

    def init_attention_backends(self) -> str:
        return "initialised"

    def forward_batch_generation(self, *_: Any) -> str:
        return "served"


@pytest.mark.parametrize(
    ("how", "calls"),
    [
        ({"algorithm": None}, ["started None", "ended 2"]),
        ({"algorithm": "EAGLE3"}, []),
        ({"algorithm": None, "generates": False}, []),
    ],
    ids=["no drafter", "a drafter", "embeddings"],
)
def test_steps_of_an_engine_without_a_drafter_are_timed(
    monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], calls: list[str]
) -> None:
    kind, sink = hooked(monkeypatch, TpModelWorker, "managers.tp_worker")
    made = kind(**how)
    assert made.init_attention_backends() == "initialised"
    assert made.forward_batch_generation(None, "a forward batch of a drafter") == "served"
    assert made.forward_batch_generation(ngram_batch(decode=True)) == "served"
    assert sink.calls == calls


REGISTER = "import sys; from driftscope_probes.sglang.plugin import register; register(); "


def _python(code: str, *path: Path, **environ: str) -> tuple[int, str, str]:
    done = run_python("-W", "error", "-c", REGISTER + code, path=path, **environ)
    return done.returncode, done.stdout, done.stderr


def _installed(folder: Path, version: str) -> Path:
    """Return a folder in which an SGLang of that version seems to be installed."""
    info = folder / "site" / f"sglang-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    return info.parent


@pytest.mark.process
@pytest.mark.parametrize(
    "environ", [{}, {"DRIFTSCOPE_TRACE": "/runs/a", "DRIFTSCOPE_DISABLE": "1"}]
)
def test_off_it_imports_and_hooks_nothing(environ: dict[str, str]) -> None:
    code = "print({'torch', 'wrapt', 'pyarrow', 'sglang'} & set(sys.modules))"
    assert _python(code, **environ) == (0, "set()\n", "")


@pytest.mark.process
@pytest.mark.parametrize("version", ["0.5.9", "0.6.0"])
def test_an_unknown_version_costs_one_line(tmp_path: Path, version: str) -> None:
    path, run = _installed(tmp_path, version), tmp_path / "run"
    code = "print('wrapt' in sys.modules)"
    *found, said = _python(code, path, DRIFTSCOPE_TRACE=str(run))
    assert found == [0, "False\n"]
    (line,) = said.splitlines()
    assert f"SGLang {version} is not supported" in line and TESTED[0] in line
    assert not run.exists()
    *found, said = _python(code, path, DRIFTSCOPE_TRACE=str(run), DRIFTSCOPE_STRICT="1")
    assert found == [1, ""] and "not supported" in said


@pytest.mark.process
def test_a_tested_version_is_hooked_when_it_is_imported(tmp_path: Path) -> None:
    path, code = _installed(tmp_path, TESTED[0]), "print('sglang' in sys.modules)"
    found = _python(code, path, DRIFTSCOPE_TRACE=str(tmp_path / "run"))
    assert found == (0, "False\n", "")


def test_local_builds_of_a_tested_version_are_known() -> None:
    check_version(f"{TESTED[0]}+cpu")
    with pytest.raises(ProbeError, match="doctor --engine sglang"):
        check_version("0.5.24")


def test_entry_point_is_installed() -> None:
    text = (Path(__file__).parents[4] / "probes/pyproject.toml").read_text()
    assert 'entry-points."sglang.srt.plugins"' in text
    for entry in importlib.metadata.entry_points(group="sglang.srt.plugins", name="driftscope"):
        assert entry.value == "driftscope_probes.sglang.plugin:register"


@pytest.mark.parametrize(
    ("options", "simulates", "rule"),
    [
        ({}, "", "exact"),
        ({"speculative_accept_threshold_single": 1.0}, "-1", "exact"),
        ({"speculative_use_block_verification": True}, "", "block"),
        ({"speculative_accept_threshold_acc": 0.5}, "", "relaxed (thresholds 1 and 0.5)"),
        ({"speculative_accept_threshold_single": 0.0}, "", "relaxed (thresholds 0 and 1)"),
        ({}, "3.5", "simulated"),
    ],
)
def test_the_rule_of_verification(
    options: dict[str, Any], simulates: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", simulates)
    assert verification_of(SimpleNamespace(**options)) == rule
