"""SGLang's n-gram worker is timed: a prefill drafts nothing, a decode step drafts K nodes."""

from types import SimpleNamespace
from typing import Any

import pytest

from driftscope_probes.sglang import worker as worker_module
from driftscope_probes.sglang.worker import PROBE, TimedWorker


class NGRAMWorker:
    """A worker with the methods and attributes that are hooked or read."""

    server_args, device, target_worker, draft_token_num = object(), "cpu", object(), 4

    def __init__(self) -> None:
        self.prepared: list[Any] = []

    def alloc_memory_pool(self) -> str:
        return "allocated"

    def forward_batch_generation(self, batch: Any) -> str:
        self._prepare_for_speculative_decoding(batch)
        return "served"

    def _prepare_for_speculative_decoding(self, batch: Any) -> None:
        self.prepared.append(batch)


class Sink:
    """A StepSink that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def step_started(self, scheduled: Any = None) -> None:
        self.calls.append(f"started {scheduled}")

    def draft(self, call: Any) -> Any:
        self.calls.append(f"draft {call.k}")
        return call.serve()

    def step_ended(self, requests: int) -> None:
        self.calls.append(f"ended {requests}")


def batch(*, decode: bool, requests: int = 2) -> Any:
    mode = SimpleNamespace(is_decode=lambda: decode)
    return SimpleNamespace(reqs=[object()] * requests, forward_mode=mode)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A hooked worker; its class is restored."""
    hooked = type("NGRAMWorker", (NGRAMWorker,), dict(vars(NGRAMWorker)))
    sink = Sink()

    def attach(view: Any) -> None:
        setattr(view, PROBE, TimedWorker(sink))  # type: ignore[arg-type]

    monkeypatch.setattr(worker_module, "attach", attach)
    worker_module.install_ngram(SimpleNamespace(__name__="ngram_worker", NGRAMWorker=hooked))
    made = hooked()
    made.sink = sink
    assert made.alloc_memory_pool() == "allocated"
    return made


def test_a_decode_step_is_timed_with_its_draft(worker: Any) -> None:
    asked = batch(decode=True)
    assert worker.forward_batch_generation(asked) == "served"
    assert worker.sink.calls == ["started None", "draft 3", "ended 2"]
    assert worker.prepared == [asked]


def test_a_prefill_drafts_nothing(worker: Any) -> None:
    asked = batch(decode=False)
    assert worker.forward_batch_generation(asked) == "served"
    assert worker.sink.calls == ["started None", "ended 2"] and worker.prepared == [asked]


def test_a_batch_without_requests_is_no_step(worker: Any) -> None:
    assert worker.forward_batch_generation(batch(decode=True, requests=0)) == "served"
    assert worker.sink.calls == []
