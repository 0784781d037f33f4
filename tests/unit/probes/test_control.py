"""Changes requested of a running probe, by RPC or by file, take effect; invalid ones are
counted."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.hostile import server as hostile
from support.hostile.server import Peer, Server, hostile_server

from driftscope.boundary.http_peer import Limits
from driftscope.errors import ControlError, UsageError
from driftscope.trace.control import CONTROL, Asked, Change, ask, read_control
from driftscope.trace.status import Status, read_statuses
from driftscope.trace.writer import TraceWriter
from driftscope_probes import control
from driftscope_probes.control import METHOD, Control, processes_in, reach
from driftscope_probes.sampler import RequestSelection, Sampler
from driftscope_probes.vllm.attach import recorder_of_runner
from driftscope_probes.vllm.worker import install_control

SOON_S = 5.0


class Parts:
    """A recorder's parts that can be changed, without its drafter."""

    def __init__(self, run: Path, *, every: int | None = 1) -> None:
        self.run, self.writer = run, TraceWriter(run, source="worker0-1")
        self.sampler, self.per_head = Sampler(every=every), False
        self.selection = RequestSelection()
        self.control = Control(run, self.writer, self.selection, self)  # type: ignore[arg-type]

    def status(self) -> Status:
        (status,) = read_statuses(self.run)
        return status

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SOON_S
        while not holds():
            assert time.monotonic() < deadline, "not taken up"
            time.sleep(0.02)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path)
    made.control.watch()
    yield made
    made.writer.close()


def test_rpc_changes_at_once_and_says_how_things_stand(parts: Parts) -> None:
    answer = parts.control.answer("set", {"every": 4, "per_head": True, "labels": ["a", "a", "b"]})
    assert (parts.sampler.every, parts.per_head) == (4, True)
    assert parts.selection.labels == ("a", "b")
    assert (answer["rate"], answer["recording"], answer["source"]) == (0.25, True, "worker0-1")
    assert answer["control"]["labels"] == ["a", "b"]
    json.dumps(answer)


def test_stop_and_start(parts: Parts) -> None:
    stopped = parts.control.answer("stop", {})
    assert (stopped["recording"], stopped["rate"]) == (False, 0.0)
    assert not parts.sampler.take()
    assert parts.control.answer("start", {})["recording"] is True
    assert parts.sampler.take()


@pytest.mark.parametrize(
    ("action", "values", "words"),
    [
        ("set", {"every": 0}, "every: give a whole number"),
        ("set", {"every": True}, "every: give a whole number"),
        ("set", {"every": 2, "budget": 0.1}, "give one of the two"),
        ("set", {"budget": float("nan")}, "budget: give a share"),
        ("set", {"labels": "a"}, "labels: give a list"),
        ("set", {"labels": [""]}, "labels: give at most"),
        ("set", {"per_head": "yes"}, "per_head: give true or false"),
        ("set", {"evry": 2}, "evry: known are recording, every"),
        ("explode", {}, "explode: give status, start or stop"),
        ("stop", {"every": 2}, "stop: give status"),
    ],
)
def test_rpc_that_is_wrong_changes_nothing(
    parts: Parts, action: str, values: dict[str, Any], words: str
) -> None:
    before = parts.control.answer("status", {})["control"]
    assert words in parts.control.answer(action, values)["error"]
    assert parts.control.answer("status", {})["control"] == before
    assert parts.sampler.recording


def test_the_file_is_followed_and_the_status_says_so_on_an_idle_engine(parts: Parts) -> None:
    asked = ask(parts.run, Change(recording=False, every=8, labels=("a",)))
    parts.until(lambda: parts.status().control.get("revision") == asked.revision)
    assert (parts.sampler.recording, parts.sampler.every) == (False, 8)
    assert parts.selection.labels == ("a",)
    status = parts.status()
    assert (status.recording, status.rate) == (False, 0.0)
    assert status.control["every"] == 8


@pytest.mark.parametrize("text", ["{", "[]", '{"every": 0}', '{"new": 1}', " " * 70_000, '"\udcff'])
def test_a_file_that_is_wrong_is_counted_once_and_shown(parts: Parts, text: str) -> None:
    whole = parts.run / "whole"
    whole.write_bytes(text.encode("utf-8", "surrogateescape"))
    whole.rename(parts.run / CONTROL)  # in one step: half a file would be a second one
    parts.until(lambda: parts.status().errors == {"control": 1})
    time.sleep(1.2)  # two more looks
    status = parts.status()
    assert status.errors == {"control": 1}
    assert CONTROL in (status.first_error or "")
    assert (parts.sampler.every, parts.sampler.recording) == (1, True)
    ask(parts.run, Change(every=3))
    parts.until(lambda: parts.sampler.every == 3)


def test_what_came_by_rpc_reaches_the_runs_other_processes(parts: Parts) -> None:
    core = TraceWriter(parts.run, source="engine0-2")
    selection = RequestSelection()
    Control(parts.run, core, selection).watch()
    ask(parts.run, Change(per_head=True))
    parts.until(lambda: parts.per_head)
    parts.control.answer("set", {"labels": ["a"]})
    parts.until(lambda: selection.labels == ("a",))
    assert read_control(parts.run).change == Change(per_head=True, labels=("a",))
    core.close()
    assert [s.recording for s in read_statuses(parts.run)] == [None, True]


def test_a_file_from_before_an_rpc_does_not_undo_it(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    ask(tmp_path, Change(every=2))
    waiting: list[Any] = []
    parts.writer.put = lambda item: bool(waiting.append(item) or True)  # type: ignore[method-assign]
    parts.control.answer("set", {"every": 5})
    parts.control._look()
    assert parts.sampler.every == 5
    for kept in waiting:
        kept()
    parts.control._look()
    assert parts.sampler.every == 5
    assert read_control(tmp_path).change.every == 5
    parts.writer.close()


def test_an_rpc_does_not_wait_for_a_disk_that_hangs(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered on the engine's thread, between two steps."""
    hangs, over = threading.Event(), threading.Event()

    def hanging(run: Path) -> Asked:
        found = read_control(run)
        hangs.set()
        over.wait(20)
        return found

    monkeypatch.setattr("driftscope_probes.control.read_control", hanging)
    ask(parts.run, Change(every=2))
    assert hangs.wait(20)
    begun = time.monotonic()
    answer = parts.control.answer("set", {"every": 5})
    waited_s = time.monotonic() - begun
    over.set()
    assert waited_s < 5 and answer["control"]["every"] == 5
    parts.until(lambda: parts.status().control["revision"] == 2)
    assert parts.sampler.every == 5, "the older request does not undo it"


def test_the_file_holds_all_that_was_asked_for(tmp_path: Path) -> None:
    for change in (Change(every=2), Change(labels=("a",)), Change(budget=0.1), Change(labels=())):
        asked = ask(tmp_path, change)
    assert asked.revision == 4
    assert read_control(tmp_path).change == Change(budget=0.1, labels=())
    assert [path.name for path in tmp_path.iterdir()] == [CONTROL]


def test_the_worker_answers_by_rpc_and_never_raises(parts: Parts) -> None:
    class WorkerBase:
        model_runner: Any = None
        vllm_config: Any = None

    install_control(SimpleNamespace(WorkerBase=WorkerBase))
    worker = WorkerBase()
    assert getattr(worker, METHOD)() == {"error": "this worker has no drafter that is recorded"}
    stages = SimpleNamespace(pipeline_parallel_size=2, rank=0)
    worker.vllm_config = SimpleNamespace(parallel_config=stages)
    assert getattr(worker, METHOD)() is None, "a stage that does not draft"
    worker.vllm_config = None
    for name in ("drafter", "speculator"):
        proposer = SimpleNamespace(_driftscope_recorder=parts)
        worker.model_runner = SimpleNamespace(**{name: proposer})
        assert recorder_of_runner(worker.model_runner) is parts
        assert getattr(worker, METHOD)("set", every=6)["control"]["every"] == 6
    worker.model_runner = SimpleNamespace(drafter=SimpleNamespace(_driftscope_recorder=object()))
    assert "records no chains" in getattr(worker, METHOD)()["error"]
    worker.model_runner = SimpleNamespace(
        drafter=SimpleNamespace(_driftscope_recorder=SimpleNamespace(control=object()))
    )
    assert "AttributeError" in getattr(worker, METHOD)()["error"]


KEY = "sk-0123456789abcdef"


def _echo(peer: Peer, asked: hostile.Asked) -> None:
    peer.answer('{"results": [{"error": "no: ' + asked.headers.get("authorization", "") + '"}]}')


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with hostile_server(echo=_echo) as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "LIMITS", Limits(seconds=1.0, octets=control.LIMITS.octets))


@pytest.mark.process
@pytest.mark.parametrize("behaviour", [*sorted(hostile.CONTROL), "redirect"])
def test_one_line_in_time(server: Server, behaviour: str) -> None:
    begun = time.monotonic()
    with pytest.raises(ControlError) as caught:
        reach(server.url(behaviour)).change(Change(every=4))
    assert time.monotonic() - begun < 2.5
    assert str(caught.value).isprintable() and len(str(caught.value)) < 500
    assert server.elsewhere is not None and server.elsewhere.asked == []


@pytest.mark.process
def test_a_key_from_the_environment_is_sent_and_not_shown(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", KEY)
    with pytest.raises(ControlError, match=r"no: Bearer \*\*\*") as caught:
        reach(server.url("echo"), api_key_env="MINE").status()
    assert server.asked[-1].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in str(caught.value)
    monkeypatch.setenv(control.API_KEY, KEY)
    with pytest.raises(ControlError):
        reach(server.url("echo")).status()
    assert server.asked[-1].headers["authorization"] == f"Bearer {KEY}"
    with pytest.raises(
        UsageError, match="ABSENT: --api-key-env names this environment variable, but it is not set"
    ):
        reach(server.url("echo"), api_key_env="ABSENT")


@pytest.mark.process
def test_a_password_is_not_shown(server: Server) -> None:
    for url in (server.url("echo", user="me:s3cret-word"), "http://me:s3cret-word@h:port/"):
        with pytest.raises(ControlError) as caught:
            reach(url).status()
        assert "s3cret" not in str(caught.value) and "bWU6" not in str(caught.value)


def test_what_a_worker_says_is_taken_as_it_is() -> None:
    status = Status(
        source="worker0-1",
        closed=False,
        flushed_s=1.5,
        rows={"draft": 2},
        rate=0.5,
        control={"every": None, "budget": 0.01, "per_head": True, "labels": ["a"], "revision": 3},
    )
    worker = {"run": "/runs/a", **asdict(status)}
    content = json.dumps({"results": [None, worker, {**worker, "newer": 1.0}]})
    assert processes_in(content.encode()) == [worker, worker]
