"""Hooks never raise into the engine; nothing on a step's path waits or loops over requests."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import driftscope_probes
from driftscope.trace.status import read_statuses
from driftscope.trace.writer import TraceWriter
from driftscope_probes.guard import CORE, Guard, hook_method, hook_object, is_hooked
from driftscope_probes.settings import Settings
from driftscope_probes.sglang import plugin as sglang
from driftscope_probes.sglang import scheduler
from driftscope_probes.sglang.scheduler import SchedulerObserver
from driftscope_probes.sglang.worker import PROBE, TimedWorker
from driftscope_probes.step_record import StepTimer
from driftscope_probes.vllm import plugin as vllm
from driftscope_probes.vllm.attach import RECORDER
from driftscope_probes.vllm.engine_core import _ATTRIBUTE as _WATCHED
from driftscope_probes.vllm.engine_core import EngineObserver


class _WordlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Bare(SimpleNamespace):
    """An object of an engine with none of the attributes that the probe knows."""

    def __hash__(self) -> int:
        return id(self)

    new_requests = "new_requests"  # of the probe's own ScheduleReader


def _observer(kind: type[Any], timer: StepTimer) -> Any:
    made = object.__new__(kind)
    vars(made).update(_guard=timer._guard, _scheduler=Bare())
    return made


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[TraceWriter]:
    made = TraceWriter(tmp_path, source="worker0-1")
    yield made
    made.close()


def test_what_a_hook_raises_is_swallowed_and_counted(writer: TraceWriter, tmp_path: Path) -> None:
    """But not an interrupt."""
    guard, seen = Guard(writer), {}
    assert guard.run("verify", lambda: 7) == 7
    assert not guard.failed
    assert guard.run("verify", lambda: seen["missing"]) is None
    assert guard.failed
    assert guard.run("attention", lambda: 1 / 0) is None
    assert guard.run("verify", lambda: seen["gone"]) is None

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard.run("verify", interrupted)
    writer.close()
    (status,) = read_statuses(tmp_path)
    assert status.errors == {"verify": 2, "attention": 1}
    assert status.first_error == "verify: KeyError: 'missing'"


def test_an_error_that_cannot_say_what_it_is_is_counted(writer: TraceWriter) -> None:
    def fail() -> None:
        raise _WordlessError

    assert Guard(writer).run("verify", fail) is None
    assert writer.status().first_error == "verify: _WordlessError"


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


def test_the_time_of_the_core_is_kept_for_the_workers_of_its_process(
    writer: TraceWriter, tmp_path: Path
) -> None:
    """Whether or not the hook works."""
    before, core, worker = CORE.probe_s, Guard(writer, adds_to=(writer, CORE)), Guard(writer)

    def slow() -> None:
        time.sleep(0.01)
        raise ValueError

    core.run("verify", slow)
    core.run("verify", lambda: time.sleep(0.01))
    worker.run("step_ended", lambda: time.sleep(0.01))
    assert core.taken_s >= 0.02
    assert CORE.probe_s - before == pytest.approx(core.taken_s, rel=1e-9)
    assert writer.probe_s == core.taken_s, "and that of a thread beside the engine by nobody"
    writer.close()
    assert read_statuses(tmp_path)[0].probe_s == pytest.approx(core.taken_s, abs=1e-6)


class Base:
    def step(self, tokens: int, *, draft: bool = False) -> tuple[int, bool]:
        """Return the arguments."""
        return tokens, draft


def _doubled(original: Any) -> Callable[..., Any]:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return 2 * original(self, *args, **kwargs)

    return step


def test_every_object_of_a_hooked_class_calls_the_hook() -> None:
    """The hooked method looks like the original."""
    module = SimpleNamespace(Base=type("Base", (Base,), {"step": Base.step}))
    before = module.Base()
    hook_method(module, "Base.step", _doubled)
    assert before.step(3, draft=True) == (3, True, 3, True)
    hooked = module.Base.step
    assert hooked(before, 1) == (1, False, 1, False)
    assert Base().step(3) == (3, False), "only of the class that was named"
    assert inspect.signature(hooked) == inspect.signature(Base.step)
    assert (hooked.__name__, hooked.__doc__) == ("step", Base.step.__doc__)
    assert hooked.__wrapped__ is Base.step
    for name in ("Base.gone", "Gone.step"):
        with pytest.raises(AttributeError):
            hook_method(module, name, _doubled)


def test_one_object_is_hooked_and_no_other() -> None:
    one, other = Base(), Base()
    hook_object(one, "step", _doubled)
    assert one.step(2) == (2, False, 2, False)
    assert other.step(2) == (2, False)
    with pytest.raises(AttributeError):
        hook_object(one, "gone", _doubled)
    assert not is_hooked(one, "gone"), "an engine that lacks the method loads its model"


FOLDER = Path(driftscope_probes.__file__).parent
STEP_PATH = (
    "vllm/drafter",
    "buffers",
    "guard",
    "kernels",
    "triton_kernels",
    "torch_masses",
    "triton_masses",
    "meter",
    "taps",
    "cpu_kernels",
    "chain",
    "near_misses",
    "recorder",
    "step_record",
    "vllm/runner_v1",
    "vllm/runner_v2",
)
WAITS = {
    "item",
    "tolist",
    "cpu",
    "numpy",
    "synchronize",
    "nonzero",
    "argwhere",
    "is_nonzero",
    "masked_select",
    "unique",
}
"""Methods that wait for the device when the tensor is there."""
CONVERSIONS = {"int", "float", "bool"}
"""Which do so too."""

MAY_WAIT = {
    "a CPU's memory": {
        "buffers": "HostRing.__init__ HostRing.send Landing.fill array_of",
        "cpu_kernels": "CompiledKernels.__init__ CompiledKernels.finish PackedMeter._keys "
        "PackedMeter.plan _blocks _floats",
        "kernels": "TorchKernels.__init__ TorchKernels.begin TorchKernels._measure_states "
        "_confidence",
        "meter": "Meter._chains Meter._room",
        "near_misses": "_measured",
        "vllm/drafter": "CpuAttnKeys.score",
    },
    "a number on the host": {
        "meter": "Meter.measure page_size",
        "recorder": "Recorder._on_draft_started",
        "vllm/runner_v1": "_LookupCall.on_device _ModelCall.on_device",
        "vllm/runner_v2": "_ModelCall.on_device _verification",
    },
    "at start-up": {
        "vllm/drafter": "LatentKeys.__init__ PagedKeys.__init__ VllmAttentionLayer.kind "
        "VllmAttentionLayer.query_size _numbers_apart drafter_of is_compiled open_drafter",
    },
    "for a job on a CPU, JOIN_S at most": {
        "cpu_kernels": "SideThread.join",
    },
    "a copy into pinned memory, which vLLM's own copy of the step waits for": {
        "vllm/runner_v2": "admitted_drafts",
    },
    "on the writer's thread": {
        "buffers": "Landing.failed Landing.spent_s Landing.take DeviceMarks.between",
    },
}
"""Reason why a call waits for nothing -> module -> functions with such calls."""
OF_REQUESTS = re.compile(
    r"\b(requests|req_ids|num_reqs|batch|chains|rows|prefilling|lengths|position)\b"
)
"""Names of what there is one of for each request."""
MAY_LOOP = {
    "in one recorded step of sixteen": {"near_misses": "KeptLogits.verified"},
    "on the writer's thread": {"step_record": "step_rows"},
    "over passes whose scores fit into memory": {"meter": "Meter._layer Meter.slot_weights"},
}
"""Reason why such a name is looped over -> module -> functions."""


def _functions(tree: ast.AST, outer: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every node with the qualified name of the function that it is in, kernels left out."""
    for node in ast.iter_child_nodes(tree):
        name = outer
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            if any("triton.jit" in ast.unparse(d) for d in node.decorator_list):
                continue  # runs on the device
            name = f"{outer}.{node.name}".lstrip(".")
        yield name, node
        yield from _functions(node, name)


def waits(nodes: list[tuple[str, ast.AST]]) -> set[str]:
    """Functions with a call that may wait."""
    return {function for function, node in nodes if isinstance(node, ast.Call) and _waits(node)}


def _waits(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in CONVERSIONS
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return name in WAITS or (name == "to" and any(ast.unparse(a) == "'cpu'" for a in call.args))


def loops(nodes: list[tuple[str, ast.AST]]) -> set[str]:
    """Functions that loop over requests."""
    return {
        function
        for function, node in nodes
        for over in _looped_over(node)
        if OF_REQUESTS.search(ast.unparse(over))
    }


def _looped_over(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.For):
        return [node.iter]
    if isinstance(node, ast.While):
        return [node.test]
    return [part.iter for part in getattr(node, "generators", ())]


@pytest.mark.parametrize("module", STEP_PATH)
def test_nothing_waits_for_the_device_or_loops_over_requests(module: str) -> None:
    nodes = list(_functions(ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))))
    for found, table in ((waits(nodes), MAY_WAIT), (loops(nodes), MAY_LOOP)):
        excused = " ".join(functions.get(module, "") for functions in table.values())
        assert found == set(excused.split())


@pytest.mark.parametrize(
    ("line", "finds"),
    [
        ("torch.cuda.current_stream().synchronize()", waits),
        ("float(x)", waits),
        ("x.to('cpu')", waits),
        ("for r in requests: ...", loops),
        ("sum(r for r in requests)", loops),
    ],
)
def test_a_wait_or_a_loop_would_be_found(line: str, finds: Any) -> None:
    text = f"class C:\n    def f(self, x, requests):\n        {line}"
    assert finds(list(_functions(ast.parse(text)))) == {"C.f"}


HOOKED = {
    f"{engine.__name__.split('.')[1]} {hook.name}": hook.around
    for engine in (vllm, sglang)
    for hooks in engine.HOOKS.values()
    for hook in hooks
    if hook.around
}
"""Replacement of each method of both engines that is hooked."""


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", HOOKED)
def test_an_engine_whose_objects_lack_everything_goes_on(
    name: str, recorded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its methods are given, by position or by name, with and without a recorder."""
    monkeypatch.delenv("DRIFTSCOPE_TRACE", raising=False)
    module, _, function = HOOKED[name].rpartition(".")
    holder = Bare()
    timer = StepTimer(Settings(trace=tmp_path), TraceWriter(tmp_path, source="x-1"), Bare())
    if recorded:
        observer, worker = _observer(EngineObserver, timer), TimedWorker(timer)
        vars(holder).update({RECORDER: timer, _WATCHED: observer, PROBE: worker})
        holder.drafter = holder.speculator = holder.scheduler = holder
        monkeypatch.setattr(scheduler, "_observers", [_observer(SchedulerObserver, timer)])
    seen: list[Any] = []

    def original(*args: Any, **kwargs: Any) -> str:
        seen.append((args, kwargs))
        return "its result"

    hooked = getattr(importlib.import_module(module), function)(original)
    batch = Bare(reqs=[Bare()])
    for args, kwargs in (
        ((), {}),
        ((batch,), {}),
        ((batch, batch), {}),
        ((), {"request": 1, "new": 2}),
        ((batch, None, 3), {"more": 4}),
    ):
        if "sglang" in name and len(args) < 2:  # of one version, whose arguments are known
            continue
        assert hooked(holder, *args, **kwargs) in ("its result", None)
        assert seen.pop() == ((holder, *args), kwargs)
    timer.close()
