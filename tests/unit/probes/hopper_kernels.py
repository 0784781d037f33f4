"""Compile the probe's Triton kernels for a Hopper GPU, which need not be there, at real shapes.

The taps and masses run as they do for one chain, except that a launch compiles its kernel and is
noted instead. Prints a JSON list of launches; run by `test_triton_kernels`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import triton.runtime
from support.tiny_drafter import chains_of
from triton.backends.compiler import GPUTarget

from driftscope_probes import triton_kernels, triton_masses
from driftscope_probes.buffers import ChainBuffers, Layout
from driftscope_probes.drafter import AttentionKind
from driftscope_probes.triton_kernels import TritonKernels

HIDDEN, HEADS, KV_HEADS, SIZE, VOCABULARY, PAGE, K = 4096, 32, 8, 128, 32_000, 16, 4
CONTEXT = 1000


class Compiler:
    """Takes a kernel's place: compiles it for each launch and notes that."""

    def __init__(self, kernel: Any, launches: list[dict[str, Any]], part: list[str]) -> None:
        self._kernel, self._launches, self._part = kernel, launches, part

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            compiled = self._kernel.warmup(*args, grid=grid, **kwargs)
            self._launches.append(
                {
                    "part": self._part[0],
                    "kernel": self._kernel.fn.__name__,
                    "machine_code_bytes": len(compiled.asm["cubin"]),
                    "shared_bytes": compiled.metadata.shared,
                }
            )

        return launch


def chain(batch: int, part: list[str], how: str) -> None:
    """Pass one chain of `batch` requests to the taps, as the observer does: of an eager drafter, of
    compiled code between whose pieces Python runs, or while a graph is captured."""
    compiled = how != "eager"
    bf16 = torch.bfloat16
    buffers = ChainBuffers(Layout(depths=K, layers=1, aux=3), 64, torch.device("cpu"))
    buffers.add_layer("layer", HEADS * SIZE, HEADS, bf16)
    kernels, rows = TritonKernels(buffers), torch.arange(batch)
    if how == "captured":
        kernels._on_gpu, triton_kernels.captures.place = True, 1
        torch.cuda.is_current_stream_capturing = lambda: True  # type: ignore[assignment]
    hidden = torch.empty(batch, HIDDEN, dtype=bf16)
    part[0] = "before"
    kernels.begin(rows, rows)
    kernels.rms_of_chunks(torch.empty(batch, 3 * HIDDEN, dtype=bf16), "aux_rms", 3)
    kernels.rms_of_chunks(hidden, "fc_rms", 1)
    for depth in range(1, K + 1):
        part[0] = f"depth {depth}"
        kernels.advance(hidden, attention_follows=how != "captured")
        query = torch.empty(batch, HEADS, SIZE, dtype=bf16)
        kernels.copy_query("layer", query, torch.empty(HEADS, batch))
        outputs = [("postnorm_rms", hidden), ("fed_rms", hidden)]
        if compiled:
            kernels.rms(hidden, "prenorm_rms", fleeting=True)
        else:
            outputs.insert(0, ("prenorm_rms", hidden))
        kernels.rms_of_outputs(outputs, fleeting=compiled)
        kernels.confidence(torch.empty(batch, VOCABULARY, dtype=bf16))
    kernels.finish()


def masses(batch: int, part: list[str], *, lse: bool, distances: bool) -> None:
    """Measure the masses of that chain."""
    part[0] = "masses"
    pages, bf16 = -(-CONTEXT // PAGE), torch.bfloat16
    triton_masses.paged_masses(
        torch.empty(batch, K, HEADS * SIZE, dtype=bf16),
        torch.empty(batch, 2, PAGE, KV_HEADS, SIZE, dtype=bf16)[:, 0],
        torch.zeros(batch, pages, dtype=torch.int32),
        chains_of(K, [0] * batch, [0] * batch, (0, 1, 2, 3)),
        AttentionKind(heads=HEADS, kv_heads=KV_HEADS, head_size=SIZE, scale=SIZE**-0.5),
        torch.empty(batch, K, 5),
        max_context=CONTEXT,
        lse=torch.empty(batch, K, HEADS) if lse else None,
        distances=torch.empty(batch, K, 16) if distances else None,
    )


def main() -> None:
    hopper = SimpleNamespace(  # the driver of a GPU of compute capability 9.0
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
    )
    triton.runtime.driver.set_active(hopper)
    part, launches = [""], []  # type: ignore[var-annotated]
    for module, names in (
        (triton_kernels, ("clear_chain", "enter_forward", "measure_state", "leave_forward")),
        (triton_masses, ("_partial", "_combine")),
    ):
        for name in names:
            setattr(module, name, Compiler(getattr(module, name), launches, part))
    runs = []
    for batch in (1, 8, 64):
        for how in ("eager", "compiled", "captured"):
            launches.clear()
            chain(batch, part, how)
            masses(batch, part, lse=how == "captured", distances=batch == 1)
            runs.append({"how": how, "launches": list(launches)})
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
