"""Hooks never raise into the engine: what they raise is counted, what they take is timed."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from driftscope.trace.status import read_statuses
from driftscope.trace.writer import TraceWriter
from driftscope_probes.guard import CORE, Guard, hook_method, hook_object


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[TraceWriter]:
    made = TraceWriter(tmp_path, source="worker0-1")
    yield made
    made.close()


def test_what_a_hook_raises_is_swallowed_and_counted(writer: TraceWriter, tmp_path: Path) -> None:
    guard, seen = Guard(writer), {}
    assert guard.run("verify", lambda: 7) == 7
    assert not guard.failed
    assert guard.run("verify", lambda: seen["missing"]) is None
    assert guard.failed
    assert guard.run("attention", lambda: 1 / 0) is None
    assert guard.run("verify", lambda: seen["gone"]) is None
    writer.close()
    (status,) = read_statuses(tmp_path)
    assert status.errors == {"verify": 2, "attention": 1}
    assert status.first_error == "verify: KeyError: 'missing'"


def test_an_interrupt_is_not_swallowed(writer: TraceWriter) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guard(writer).run("verify", interrupted)


def test_time_is_taken_whether_or_not_the_hook_works(writer: TraceWriter, tmp_path: Path) -> None:
    guard = Guard(writer, adds_to=(writer,))

    def slow() -> None:
        time.sleep(0.02)
        raise ValueError

    guard.run("verify", slow)
    guard.run("verify", lambda: time.sleep(0.02))
    assert 0.04 <= guard.taken_s < 1.0
    writer.close()
    assert read_statuses(tmp_path)[0].probe_s == pytest.approx(guard.taken_s, abs=1e-6)


@pytest.mark.parametrize(("when", "ran"), [("before", 0), ("after", 1)])
def test_the_test_switch_raises_in_every_hook(
    writer: TraceWriter, tmp_path: Path, when: str, ran: int
) -> None:
    guard, calls = Guard(writer, test_raise=when), []
    assert guard.run("verify", lambda: calls.append(1)) is None
    assert len(calls) == ran
    writer.close()
    (status,) = read_statuses(tmp_path)
    assert status.first_error == "verify: InjectedError: verify"


def test_the_time_of_the_core_is_kept_for_the_workers_of_its_process(writer: TraceWriter) -> None:
    before, core, worker = CORE.probe_s, Guard(writer, adds_to=(writer, CORE)), Guard(writer)
    for _ in range(2):
        core.run("verify", lambda: time.sleep(0.01))
    worker.run("step_ended", lambda: time.sleep(0.01))
    assert 0.02 <= core.taken_s < 1.0
    assert CORE.probe_s - before == pytest.approx(core.taken_s, rel=1e-9)
    assert writer.probe_s == core.taken_s, "and that of a thread beside the engine by nobody"


class Base:
    def step(self, tokens: int, *, draft: bool = False) -> tuple[int, bool]:
        """Return the arguments."""
        return tokens, draft


class Derived(Base):
    pass


def _doubled(original: Any) -> Callable[..., Any]:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return 2 * original(self, *args, **kwargs)

    return step


@pytest.fixture
def module() -> SimpleNamespace:
    return SimpleNamespace(Base=type("Base", (Base,), {"step": Base.step}), Derived=Derived)


def test_every_object_of_a_hooked_class_calls_the_hook(module: SimpleNamespace) -> None:
    before = module.Base()
    hook_method(module, "Base.step", _doubled)
    assert before.step(3, draft=True) == (3, True, 3, True)
    assert module.Base.step(before, 1) == (1, False, 1, False)
    assert Base().step(3) == (3, False), "only of the class that was named"


def test_a_hooked_method_looks_like_the_original(module: SimpleNamespace) -> None:
    hook_method(module, "Base.step", _doubled)
    hooked = module.Base.step
    assert inspect.signature(hooked) == inspect.signature(Base.step)
    assert (hooked.__name__, hooked.__doc__) == ("step", Base.step.__doc__)
    assert hooked.__wrapped__ is Base.step


def test_one_object_is_hooked_and_no_other() -> None:
    one, other = Derived(), Derived()
    hook_object(one, "step", _doubled)
    assert one.step(2) == (2, False, 2, False)
    assert other.step(2) == (2, False)


@pytest.mark.parametrize("name", ["Base.gone", "Gone.step"])
def test_what_is_not_there_cannot_be_hooked(module: SimpleNamespace, name: str) -> None:
    with pytest.raises(AttributeError):
        hook_method(module, name, _doubled)
    with pytest.raises(AttributeError):
        hook_object(Derived(), "gone", _doubled)
