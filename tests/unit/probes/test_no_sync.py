"""Nothing on the path of a step waits for the device, and nothing loops over its requests.

Read off the source: a wait that is harmless on a CPU would only show on a GPU, as a slower engine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import driftscope_probes

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
        "PackedMeter.part PackedMeter.plan _blocks _floats",
        "kernels": "TorchKernels.__init__ TorchKernels._measure_states _confidence",
        "vllm/drafter": "CpuAttnKeys.score",
    },
    "a number on the host": {
        "meter": "Meter.measure _page_size",
        "recorder": "Recorder._on_draft_started",
        "vllm/runner_v1": "_LookupCall.on_device _ModelCall.on_device",
        "vllm/runner_v2": "_ModelCall.on_device",
    },
    "at start-up": {
        "vllm/drafter": "LatentKeys.__init__ PagedKeys.__init__ VllmDrafter.aux_states "
        "VllmDrafter.compiled VllmDrafter.k VllmDrafter.max_requests VllmDrafter.max_slots "
        "VllmDrafter.samples _numbers_apart kind_of open_drafter query_size",
        "vllm/runner_v2": "_is_defined_in",
    },
    "for a job on a CPU, JOIN_S at most": {
        "cpu_kernels": "SideThread.join",
    },
    "on the writer's thread": {
        "buffers": "Landing.failed Landing.spent_s Landing.take Marks.between",
    },
}
"""Reason why a call waits for nothing -> module -> functions with such calls."""
MAY_LOOP = {
    "at start-up, or once": {
        "buffers": "ChainBuffers.nbytes Layout._sizes Layout.columns Layout.width",
        "cpu_kernels": "CompiledKernels.__init__ PackedMeter.__init__",
        "kernels": "TorchKernels.__init__ TorchKernels._places",
        "meter": "Meter.__init__",
        "recorder": "with_sinks",
        "taps": "Taps._module_hooks tap_residual",
        "vllm/drafter": "CpuAttnKeys._find_order CpuAttnKeys._round_trip VllmDrafter.__post_init__ "
        "VllmDrafter.backend VllmDrafter.final_norms VllmDrafter.shares_cache _extent "
        "_numbers_apart open_drafter",
        "vllm/runner_v2": "install_speculator",
    },
    "on the writer's thread": {
        "step_record": "StepTimer._rows _on_device prefilling_of step_rows",
    },
    "over depths": {
        "cpu_kernels": "CompiledKernels._described_logits",
        "kernels": "TorchKernels._gather_layer",
    },
    "over hooks and what they have seen": {
        "cpu_kernels": "CompiledKernels._described_states CompiledKernels._description",
        "guard": "Guard.run_all",
        "kernels": "TorchKernels._measure_states",
        "taps": "HookSet._remove_all HookSet.install",
    },
    "over jobs, on its own thread": {
        "cpu_kernels": "SideThread._work",
    },
    "over layers": {
        "cpu_kernels": "CompiledKernels._described_queries PackedMeter.plan PackedMeter.plan.fill",
        "kernels": "TorchKernels._gather_queries",
        "meter": "Meter.heads Meter.measure Meter.plan Meter.slot_weights",
        "triton_kernels": "TritonKernels.begin",
        "vllm/runner_v2": "_ModelCall.on_device",
    },
    "over passes whose scores fit into memory, on a CPU": {
        "meter": "Meter._layer",
    },
    "over quantities": {
        "buffers": "fold",
    },
    "over requests that decode and those that do not: two parts": {
        "vllm/runner_v2": "_block_table",
    },
    "over the accounts of its time, at most one": {
        "guard": "Guard.run",
    },
    "over the bins that hold several distances": {
        "torch_masses": "_by_distance",
    },
    "over the fields of vLLM's metadata": {
        "vllm/runner_v1": "_ModelCall.without_graphs",
    },
    "over two quantities": {
        "kernels": "TorchKernels._put_confidence",
    },
    "over two tensors": {
        "triton_kernels": "TritonKernels._enter",
    },
    "over what a forward returned": {
        "kernels": "TorchKernels.rms_of_outputs",
        "taps": "ForwardObserver._on_forward_out",
        "triton_kernels": "TritonKernels._launch_outputs TritonKernels._leave "
        "TritonKernels.rms_of_outputs _alike",
    },
}
"""Subject of the loop, never the requests -> module -> functions."""
LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


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


def _nodes(module: str) -> list[tuple[str, ast.AST]]:
    return list(_functions(ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))))


def waits(nodes: list[tuple[str, ast.AST]]) -> set[str]:
    """Functions with a call that may wait."""
    return {function for function, node in nodes if isinstance(node, ast.Call) and _waits(node)}


def _waits(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in CONVERSIONS
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return name in WAITS or (name == "to" and any(ast.unparse(a) == "'cpu'" for a in call.args))


def loops(nodes: list[tuple[str, ast.AST]]) -> set[str]:
    """Functions with a loop or a comprehension."""
    return {function for function, node in nodes if isinstance(node, LOOPS)}


def _excused(table: dict[str, dict[str, str]], module: str) -> set[str]:
    return {name for by_module in table.values() for name in by_module.get(module, "").split()}


@pytest.mark.parametrize("module", STEP_PATH)
def test_nothing_waits_for_the_device_or_loops_over_requests(module: str) -> None:
    nodes = _nodes(module)
    assert waits(nodes) == _excused(MAY_WAIT, module)
    assert loops(nodes) == _excused(MAY_LOOP, module)


@pytest.mark.parametrize(
    "line",
    [
        "x.item()",
        "x[0].tolist()",
        "x.cpu()",
        "x.detach().numpy()",
        "torch.cuda.synchronize()",
        "torch.cuda.current_stream().synchronize()",
        "int(x.max())",
        "float(x)",
        "x.to('cpu')",
        "mask.nonzero()",
    ],
)
def test_a_wait_would_be_found(line: str) -> None:
    nodes = list(_functions(ast.parse(f"def f(x):\n    return {line}")))
    assert waits(nodes) == {"f"}


@pytest.mark.parametrize(
    "line", ["[r for r in requests]", "sum(r for r in requests)", "{r: 1 for r in requests}"]
)
def test_a_loop_would_be_found(line: str) -> None:
    nodes = list(_functions(ast.parse(f"class C:\n    def f(self, requests):\n        {line}")))
    assert loops(nodes) == {"C.f"}
