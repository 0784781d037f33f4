"""Steps and drafts of SGLang's worker are reported in order, and served unchanged."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from driftscope_probes.engine import DraftCall
from driftscope_probes.guard import Guard
from driftscope_probes.sglang import worker as worker_module
from driftscope_probes.sglang.chain import AheadSampler, FirstDepths
from driftscope_probes.sglang.worker import (
    PROBE,
    ChainParts,
    RecordedWorker,
    TimedWorker,
    rows_after_prefill,
    rows_after_verification,
)


class Sink:
    """A StepSink that notes its calls."""

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
    parts = ChainParts(
        recorder=sink,
        taps=unused,
        sampler=sampler,
        first=FirstDepths(8),
        layers=(),
        writer=unused,
    )
    probe, worker = RecordedWorker(parts), SimpleNamespace(speculative_num_steps=4)
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
    worker_module.install_ngram(SimpleNamespace(__name__="ngram_worker", NGRAMWorker=hooked))
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
