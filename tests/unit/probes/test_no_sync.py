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
    "vllm/layers/attention_layer",
    "buffers",
    "guard",
    "kernels",
    "triton_kernels",
    "vllm/layers/key_readers",
    "vllm/layers/latent_attention",
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
    (
        "buffers",
        "Landing.take",
        "synchronize",
    ): "the writer's thread, for a copy that is under way",
    ("buffers", "Marks.between", "synchronize"): "the writer's thread",
    (
        "buffers",
        "Marks.between",
        "float",
    ): "of what an event says, once it was waited for",
    ("kernels", "TorchKernels.__init__", "numpy"): "a CPU's memory, as below",
    (
        "kernels",
        "TorchKernels._measure_states",
        "numpy",
    ): "the same: the twin runs nowhere else",
    ("kernels", "_confidence", "numpy"): "the same",
    ("vllm/layers/key_readers", "CpuAttnKeys.score", "numpy"): "a CPU's memory",
    ("cpu_kernels", "SideThread.join", "synchronize"): "for a job on a CPU, JOIN_S at most",
    ("cpu_kernels", "CompiledKernels.__init__", "numpy"): "a CPU's memory",
    ("cpu_kernels", "CompiledKernels.finish", "numpy"): "a CPU's memory",
    ("cpu_kernels", "PackedMeter.plan", "numpy"): "a CPU's memory",
    ("cpu_kernels", "PackedMeter._keys", "numpy"): "a CPU's memory",
    ("cpu_kernels", "_floats", "numpy"): "a CPU's memory",
    ("cpu_kernels", "_blocks", "numpy"): "a CPU's memory",
    ("cpu_kernels", "PackedMeter.part", "numpy"): "a CPU's memory, once for each shape",
    ("buffers", "Landing.failed", "synchronize"): "the writer's thread, for a job under way",
    ("buffers", "Landing.failed", "bool"): "of what a job says, once it was waited for",
    ("buffers", "Landing.spent_s", "float"): "the same",
    ("buffers", "Landing.fill", "numpy"): "a CPU's memory, beside the engine",
    ("buffers", "HostRing.__init__", "numpy"): "pinned host memory",
    ("buffers", "HostRing.send", "numpy"): "a CPU's memory, where there is no GPU",
    ("meter", "_page_size", "int"): "of a shape",
    ("vllm/layers/key_readers", "PagedKeys.__init__", "int"): "of an attribute, at start-up",
    ("vllm/layers/attention_layer", "kind_of", "int"): "of attributes, at start-up",
    ("vllm/layers/attention_layer", "kind_of", "float"): "of attributes, at start-up",
    ("vllm/layers/latent_attention", "query_size", "int"): "of attributes, at start-up",
    ("vllm/layers/latent_attention", "LatentKeys.__init__", "int"): "of attributes, at start-up",
    ("buffers", "array_of", "numpy"): "a CPU's memory",
    ("meter", "Meter.measure", "int"): "of an array on the host",
    (
        "recorder",
        "Recorder._on_draft_started",
        "int",
    ): "a number that vLLM has on the host",
    ("vllm/runner_v1", "_ModelCall.on_device", "int"): "a number that vLLM has on the host",
    ("vllm/runner_v1", "_LookupCall.on_device", "int"): "an array that vLLM has on the host",
    ("vllm/runner_v2", "_is_defined_in", "bool"): "of a class, at start-up",
    ("vllm/runner_v2", "_ModelCall.on_device", "int"): "a tensor that vLLM has on the host",
}
"""(module, function, call) -> why it waits for nothing."""
MAY_LOOP = {
    ("buffers", "fold"): "over quantities",
    ("buffers", "ChainBuffers.nbytes"): "over layers, at start-up",
    ("triton_kernels", "TritonKernels.begin"): "over layers",
    ("triton_kernels", "TritonKernels.rms_of_outputs"): "over what a forward returned",
    ("triton_kernels", "TritonKernels._enter"): "over two tensors",
    ("triton_kernels", "TritonKernels._launch_outputs"): "over what a forward returned",
    ("triton_kernels", "TritonKernels._leave"): "over what a forward returned",
    ("triton_kernels", "_alike"): "over what a forward returned",
    ("buffers", "Layout.columns"): "over quantities, at start-up",
    ("buffers", "Layout.width"): "over quantities, at start-up",
    ("buffers", "Layout._sizes"): "over quantities, at start-up",
    ("kernels", "TorchKernels.__init__"): "over quantities, at start-up",
    ("kernels", "TorchKernels.rms_of_outputs"): "over what a forward returned",
    ("kernels", "TorchKernels._measure_states"): "over what the taps have seen",
    ("kernels", "TorchKernels._gather_queries"): "over layers",
    ("kernels", "TorchKernels._gather_layer"): "over depths",
    ("kernels", "TorchKernels._put_confidence"): "over two quantities",
    ("kernels", "TorchKernels._places"): "over what the taps have seen, once for each sort",
    ("recorder", "with_sinks"): "over a manifest's notes, once",
    ("step_record", "StepTimer._rows"): "over steps, on the writer's thread",
    ("step_record", "step_rows"): "the same",
    ("step_record", "prefilling_of"): "the same",
    ("step_record", "_on_device"): "the same",
    ("vllm/layers/key_readers", "CpuAttnKeys._find_order"): "over two digits, once",
    ("vllm/layers/key_readers", "CpuAttnKeys._round_trip"): "over two digits, once",
    ("torch_masses", "_by_distance"): "over the bins that hold several distances",
    ("meter", "Meter.__init__"): "over layers, at start-up",
    ("meter", "Meter.heads"): "over layers",
    ("meter", "Meter.measure"): "over layers",
    ("meter", "Meter._layer"): "over passes whose scores fit into memory, on a CPU",
    ("meter", "Meter.plan"): "over layers",
    ("cpu_kernels", "CompiledKernels.__init__"): "over quantities, at start-up",
    ("cpu_kernels", "CompiledKernels._description"): "over what the taps have seen",
    ("cpu_kernels", "CompiledKernels._described_states"): "over what the taps have seen",
    ("cpu_kernels", "CompiledKernels._described_queries"): "over layers and depths",
    ("cpu_kernels", "CompiledKernels._described_logits"): "over depths",
    ("cpu_kernels", "SideThread._work"): "over jobs, on its own thread",
    ("cpu_kernels", "PackedMeter.__init__"): "over layers, at start-up",
    ("cpu_kernels", "PackedMeter.plan"): "over layers",
    ("cpu_kernels", "PackedMeter.plan.fill"): "over layers, beside the engine",
    (
        "meter",
        "Meter.slot_weights",
    ): "over layers, and passes as above, while a sink is looked for",
    ("taps", "tap_residual"): "over taps, at start-up",
    ("taps", "Taps._module_hooks"): "over layers and hooks, at start-up",
    ("taps", "HookSet.install"): "over hooks, where steps that are recorded follow others",
    ("taps", "HookSet._remove_all"): "over hooks, as above",
    ("guard", "Guard.run"): "over the accounts of its time, at most one",
    ("guard", "Guard.run_all"): "over what hooks have seen, and as above",
    ("taps", "ForwardObserver._on_forward_out"): "over what a forward returns",
    ("vllm/runner_v2", "install_speculator"): "over classes, at start-up",
    (
        "vllm/runner_v2",
        "_block_table",
    ): "over requests that decode and those that do not: two parts",
    ("vllm/runner_v1", "_ModelCall.without_graphs"): "over the fields of vLLM's metadata",
    ("vllm/runner_v2", "_ModelCall.on_device"): "over layers",
}
"""(module, function) -> over what it loops, never over requests."""
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


def waits(nodes: list[tuple[str, ast.AST]]) -> set[tuple[str, str]]:
    """(function, call) of each that may wait."""
    found = set()
    for function, node in nodes:
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr in WAITS:
            found.add((function, node.func.attr))
        elif isinstance(node.func, ast.Name) and node.func.id in CONVERSIONS:
            found.add((function, node.func.id))
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            found |= {
                (function, "to cpu") for a in node.args if ast.unparse(a).strip("'\"") == "cpu"
            }
    return found


def loops(nodes: list[tuple[str, ast.AST]]) -> set[str]:
    """Functions with a loop or a comprehension."""
    return {function for function, node in nodes if isinstance(node, LOOPS)}


@pytest.mark.parametrize("module", STEP_PATH)
def test_nothing_waits_for_the_device(module: str) -> None:
    allowed = {(function, call) for name, function, call in MAY_WAIT if name == module}
    assert waits(_nodes(module)) == allowed


@pytest.mark.parametrize("module", STEP_PATH)
def test_nothing_loops_over_requests(module: str) -> None:
    allowed = {function for name, function in MAY_LOOP if name == module}
    assert loops(_nodes(module)) == allowed


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
    assert {function for function, _ in waits(nodes)} == {"f"}


@pytest.mark.parametrize(
    "line", ["[r for r in requests]", "sum(r for r in requests)", "{r: 1 for r in requests}"]
)
def test_a_loop_would_be_found(line: str) -> None:
    nodes = list(_functions(ast.parse(f"class C:\n    def f(self, requests):\n        {line}")))
    assert loops(nodes) == {"C.f"}
