"""SGLang's scheduler, worker and plugin: their hooks, their rows, and what is refused."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.answers import WordTokenizer
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


def test_the_first_request_with_the_content_of_the_warm_up_is_it() -> None:
    seen = WarmUp()
    seen.look(request(rid="HEALTH_CHECK_1", max_new_tokens=1))
    seen.look(request())
    seen.look(request(rid="b"))
    assert seen.name == "a"


def test_a_server_without_a_tokenizer_warms_up_with_token_ids() -> None:
    seen = WarmUp()
    seen.look(request(origin_input_text=None, origin_input_ids=[10, 11, 12]))
    assert seen.name == "a"


@pytest.mark.parametrize(
    "other",
    [
        {"origin_input_text": "The capital of France is"},
        {"max_new_tokens": 9},
        {"top_k": -1, "temperature": 0.5},
    ],
    ids=str,
)
def test_another_first_request_is_a_users(other: dict[str, Any]) -> None:
    seen = WarmUp()
    seen.look(request(**other))
    seen.look(request(rid="b"))
    assert seen.name == ""


def test_a_health_check_is_known_by_its_id() -> None:
    assert is_own_name("HEALTH_CHECK_17") and not is_own_name("a")


PROMPT = 10


def served(
    outputs: int, gained: int, *, drafted: int = 4, accepted: int = 0, decoding: bool = True
) -> ServedRequest:
    return ServedRequest(
        request="a",
        prompt=PROMPT,
        outputs=outputs,
        gained=gained,
        decoding=decoding,
        drafted=drafted,
        accepted=accepted,
    )


def finished(output_tokens: int, tokens: RequestTokens | None = None) -> EndedRequest:
    row = ended_row(time_s=9.0, arrival_s=1.0, prompt_tokens=PROMPT, output_tokens=output_tokens)
    own = RequestTokens(prompt_token_ids=[1], output_token_ids=[2])
    return EndedRequest(row=row, request=tokens or own)


def rows_of(
    *steps: tuple[float, ServedRequest], speculates: bool = True
) -> tuple[list[dict[str, Any]], StepTracker]:
    errors: list[BaseException] = []
    tracker = StepTracker(lambda _, error: errors.append(error), speculates=speculates)
    seen = [(time_s, [request]) for time_s, request in steps]
    rows = tracker.rows([*seen])
    assert not errors
    if not rows:
        return [], tracker
    (block,) = rows
    assert isinstance(block, Block)
    columns = block.columns
    return [
        {name: columns[name][i] for name in columns}  # type: ignore[index]
        for i in range(block.rows)
    ], tracker


def test_a_prompt_is_no_verification() -> None:
    rows, _ = rows_of((2.0, served(0, 1, drafted=0)))
    assert rows == []


def test_a_round_is_joined_by_its_last_verified_slot() -> None:
    rows, _ = rows_of((2.0, served(0, 1, drafted=0)), (3.0, served(1, 3, accepted=2)))
    (row,) = rows
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
    step = (3.0, served(5, 1, drafted=0, accepted=3, decoding=decoding))
    rows, _ = rows_of(step, speculates=speculates)
    assert [(r["verified"], r["accepted"], r["reason"]) for r in rows] == [(0, 0, reason)]


@pytest.mark.parametrize(("tokens", "tpot_s"), [(1, None), (5, 0.5)])
def test_times_of_a_request(tokens: int, tpot_s: float | None) -> None:
    _, tracker = rows_of((2.0, served(0, 1, drafted=0)), (4.0, served(1, 4, accepted=3)))
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
    ("tokenizer", "regions", "kinds"),
    [
        (TOKENIZER, regions_of(None), ["prose", "template", "json", "template"]),
        (TOKENIZER, regions_of(SimpleNamespace(tool_call_parser="mine")), ["prose"] * 2),
        (None, regions_of(None), None),
        (TOKENIZER, None, None),
    ],
    ids=["with a tokenizer", "with an unknown parser", "without one", "switched off"],
)
def test_an_answer_has_its_kinds_of_text(
    tokenizer: Any, regions: RequestRegions | None, kinds: list[str] | None
) -> None:
    tokens = RequestTokens(prompt_token_ids=[0], output_token_ids=[0, 1, 2, 3], tokenizer=tokenizer)
    errors: list[BaseException] = []
    tracker = StepTracker(lambda _, error: errors.append(error), None, regions)
    (row,) = tracker.rows([finished(4, tokens)])
    assert isinstance(row, RequestRow) and not errors
    codes = row.region_codes
    assert (None if codes is None else [Region.ALL[code] for code in codes]) == kinds
    assert (row.region_languages is None) == (kinds is None)


def test_a_tokenizer_that_fails_costs_the_kinds_and_not_the_row() -> None:
    tokens = RequestTokens(prompt_token_ids=[0], output_token_ids=[0], tokenizer=object())
    errors: list[str] = []
    tracker = StepTracker(lambda hook, _: errors.append(hook), None, regions_of(None))
    (row,) = tracker.rows([finished(1, tokens)])
    assert isinstance(row, RequestRow) and row.region_codes is None and errors == ["regions"]


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

    def step_ended(self, requests: int) -> None:
        self.calls.append(f"ended {requests}")

    def close(self) -> None:
        self.calls.append("closed")


def batch(**own: Any) -> Any:
    return SimpleNamespace(reqs=[SimpleNamespace(rid="a"), SimpleNamespace(rid="b")], **own)


def test_a_step_is_served_between_start_and_end() -> None:
    sink, result = Sink(), object()
    worker = SimpleNamespace(speculative_num_steps=4)
    verify = SimpleNamespace(draft_token=torch.arange(10))

    def run() -> object:
        assert probe.draft(lambda: verify, worker, batch()) is verify
        assert probe.extend(lambda: 5, worker, batch(), lambda: pytest.fail("no rows")) == 5
        return result

    probe = TimedWorker(sink)
    assert probe.step(run, batch()) is result
    assert sink.calls == ["started None", "draft 4", "ended 2"]
    assert sink.drafted_s > 0


def test_an_exception_of_the_engine_is_the_engines() -> None:
    def run() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        TimedWorker(Sink()).step(run, batch())


def test_after_a_prompt_the_wanted_rows_are_the_last_ones() -> None:
    rows = rows_after_prefill(batch(extend_lens=[3, 2], seq_lens=torch.tensor([3, 9])))
    states, results = torch.arange(5.0)[:, None], torch.tensor([[7.0], [8.0]])
    assert rows.inside(states).flatten().tolist() == [2, 4]
    assert rows.result(results).flatten().tolist() == [7, 8], "SGLang has pruned these already"


def test_after_a_verification_rejected_rows_are_left_out() -> None:
    rows = rows_after_verification(torch.tensor([1, 4], dtype=torch.int32), 4)
    states = torch.arange(8.0)[:, None]
    assert rows.inside(states).flatten().tolist() == [0, 7]
    assert rows.result(states).flatten().tolist() == [0, 7]


class Unasked:
    """A request that may not be looked at."""

    @property
    def rid(self) -> str:
        raise LookupError("a step that is not recorded asks for the names of its requests")


class Errors:
    """A writer that only counts errors."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def count_error(self, hook: str, error: BaseException) -> None:
        self.errors.append(f"{hook}: {error}")


def test_a_step_that_is_not_recorded_asks_for_nothing() -> None:
    errors, sampler = Errors(), AheadSampler(every=1000)
    sampler.take()  # the first of a thousand
    sink: Any = Sink()
    sink.guard = Guard(errors)  # type: ignore[arg-type]
    unused: Any = None
    sink.sampler, sink.taps, sink.selection = sampler, unused, unused
    probe = RecordedWorker(sink, FirstDepths(8), (), unused)
    worker = SimpleNamespace(speculative_num_steps=4)
    mode = SimpleNamespace(is_extend=lambda: False)
    served = SimpleNamespace(reqs=[Unasked(), Unasked()], forward_mode=mode)
    verify = SimpleNamespace(draft_token=torch.arange(10))

    def run() -> None:
        assert probe.draft(lambda: verify, worker, served) is verify
        assert probe.extend(lambda: 5, worker, served, lambda: pytest.fail("no rows")) == 5

    probe.step(run, served)
    assert errors.errors == [] and sink.calls[1:] == ["draft 4", "ended 2"]


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


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A hooked worker; its class is restored."""
    hooked = type("NGRAMWorker", (NGRAMWorker,), dict(vars(NGRAMWorker)))
    sink = Sink()

    def attach(view: Any) -> None:
        setattr(view, PROBE, TimedWorker(sink))

    monkeypatch.setattr(worker_module, "attach", attach)
    module = "sglang.srt.speculative.ngram_worker"
    install_hooks(HOOKS["worker"], SimpleNamespace(__name__=module, NGRAMWorker=hooked))
    made = hooked()
    made.sink = sink
    assert made.alloc_memory_pool() == "allocated"
    return made


def test_a_decode_step_is_timed_with_its_draft(worker: Any) -> None:
    asked = ngram_batch(decode=True)
    assert worker.forward_batch_generation(asked) == "served"
    assert worker.sink.calls == ["started None", "draft 3", "ended 2"]
    assert worker.prepared == [asked]


def test_a_prefill_drafts_nothing(worker: Any) -> None:
    asked = ngram_batch(decode=False)
    assert worker.forward_batch_generation(asked) == "served"
    assert worker.sink.calls == ["started None", "ended 2"] and worker.prepared == [asked]


def test_a_batch_without_requests_is_no_step(worker: Any) -> None:
    assert worker.forward_batch_generation(ngram_batch(decode=True, requests=0)) == "served"
    assert worker.sink.calls == []


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
    hooked, sink = type("TpModelWorker", (TpModelWorker,), dict(vars(TpModelWorker))), Sink()
    monkeypatch.setattr(
        worker_module, "attach", lambda view: setattr(view, PROBE, TimedWorker(sink))
    )
    module = "sglang.srt.managers.tp_worker"
    install_hooks(HOOKS["worker"], SimpleNamespace(__name__=module, TpModelWorker=hooked))
    made = hooked(**how)
    assert made.init_attention_backends() == "initialised"
    assert made.forward_batch_generation(None, "a forward batch of a drafter") == "served"
    assert made.forward_batch_generation(ngram_batch(decode=True)) == "served"
    assert sink.calls == calls


REGISTER = "import os, sys; from driftscope_probes.sglang.plugin import register; register(); "


def _python(
    code: str, path: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DRIFTSCOPE_")}
    places = [str(path), *sys.path] if path else sys.path
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", REGISTER + code],
        env={**clean, "PYTHONPATH": os.pathsep.join(places), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _installed(folder: Path, version: str) -> Path:
    """Return a folder in which an SGLang of that version seems to be installed."""
    info = folder / f"sglang-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    return folder


@pytest.mark.process
@pytest.mark.parametrize(
    "environ", [{}, {"DRIFTSCOPE_TRACE": "/runs/a", "DRIFTSCOPE_DISABLE": "1"}]
)
def test_off_it_imports_and_hooks_nothing(environ: dict[str, str]) -> None:
    found = _python("print({'torch', 'wrapt', 'pyarrow', 'sglang'} & set(sys.modules))", **environ)
    assert (found.returncode, found.stdout, found.stderr) == (0, "set()\n", "")


@pytest.mark.process
@pytest.mark.parametrize("version", ["0.5.9", "0.6.0"])
def test_an_unknown_version_costs_one_line(tmp_path: Path, version: str) -> None:
    path = _installed(tmp_path / "site", version)
    found = _python("print('wrapt' in sys.modules)", path, DRIFTSCOPE_TRACE=str(tmp_path / "run"))
    assert (found.returncode, found.stdout) == (0, "False\n")
    (line,) = found.stderr.splitlines()
    assert f"SGLang {version} is not supported" in line and TESTED[0] in line
    assert not (tmp_path / "run").exists()


@pytest.mark.process
def test_a_tested_version_is_hooked_when_it_is_imported(tmp_path: Path) -> None:
    path = _installed(tmp_path / "site", TESTED[0])
    found = _python("print('sglang' in sys.modules)", path, DRIFTSCOPE_TRACE=str(tmp_path / "run"))
    assert (found.returncode, found.stdout, found.stderr) == (0, "False\n", "")


@pytest.mark.process
def test_strict_ends_the_process(tmp_path: Path) -> None:
    path = _installed(tmp_path / "site", "0.5.9")
    trace = str(tmp_path / "run")
    found = _python("print('served')", path, DRIFTSCOPE_TRACE=trace, DRIFTSCOPE_STRICT="1")
    assert found.returncode == 1 and not found.stdout and "not supported" in found.stderr


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
