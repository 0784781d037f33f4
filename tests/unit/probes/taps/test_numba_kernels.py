"""Machine code for a CPU's taps writes what its twin in PyTorch does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from driftscope_probes.buffers import ChainBuffers, Layout
from driftscope_probes.kernels import Kernels, TorchKernels

pytest.importorskip("numba")
from driftscope_probes.cpu_kernels import CompiledKernels

LAYOUT = Layout(depths=3, layers=1, aux=3)
REQUESTS, TOKENS, SIZE, HEADS, VOCABULARY = 4, 11, 24, 2, 37
TYPES = [torch.float32, torch.bfloat16, torch.float16]
"""The last is measured by the twin itself."""


def _record(
    make: Callable[[ChainBuffers], Kernels],
    rows: list[int],
    dtype: torch.dtype,
    *,
    fleeting: bool = False,
    k: int = 3,
    special: float | None = None,
) -> ChainBuffers:
    """A chain of the same random tensors for whoever records it."""
    generator = torch.Generator().manual_seed(3)

    def some(*shape: int) -> torch.Tensor:
        return (3 * torch.randn(*shape, generator=generator)).to(dtype)

    def gone(x: torch.Tensor) -> None:
        if fleeting:
            x.fill_(99)

    buffers = ChainBuffers(LAYOUT, REQUESTS, torch.device("cpu"))
    buffers.add_layer("a", HEADS * 8, HEADS, dtype)
    kernels, batch = make(buffers), len(rows)
    kernels.begin(torch.tensor(rows), torch.arange(batch) + 70_000)
    captured = some(TOKENS, 3 * SIZE)
    kernels.rms_of_chunks(captured, "aux_rms", 3, fleeting=fleeting)
    gone(captured)
    kernels.rms_of_chunks(some(TOKENS, 2 * SIZE)[:, SIZE:], "aux_norm_rms", 1, 1)
    for depth in range(k):
        count = TOKENS if depth == 0 else batch + 2
        hidden, qkv, logits = some(count, SIZE), some(count, 40), some(batch + 2, VOCABULARY)
        if special is not None:
            logits[1, 5] = hidden[rows[1] if depth == 0 else 1, 7] = special
        kernels.advance(hidden)
        gone(hidden)
        kernels.copy_query("a", qkv[:, 8:24].view(count, HEADS, 8), fleeting=fleeting)
        kernels.rms(some(count, SIZE), "fed_rms")
        kernels.confidence(logits, fleeting=fleeting)
        gone(logits)
    kernels.finish()
    return buffers


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [[2, 5, 9], [7, 0, 3, 1]])
@pytest.mark.parametrize("fleeting", [False, True])
@pytest.mark.parametrize("k", [1, 3])
def test_every_figure_is_the_twins(
    rows: list[int], dtype: torch.dtype, fleeting: bool, k: int
) -> None:
    wanted = _record(TorchKernels, rows, dtype, fleeting=fleeting, k=k)
    found = _record(CompiledKernels, rows, dtype, fleeting=fleeting, k=k)
    torch.testing.assert_close(found.values, wanted.values, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert torch.equal(found.queries["a"], wanted.queries["a"])
    assert torch.equal(
        found.part("position", 4).view(torch.int32)[:, 0][: len(rows)],
        torch.arange(len(rows)) + 70_000,
    )
    assert not found.part("entropy", len(rows))[:, :k].isnan().any()
    assert found.values[len(rows) :].isnan().all()


@pytest.mark.parametrize("special", [float("-inf"), float("nan")])
def test_logits_after_a_mask_and_what_is_not_a_number(special: float) -> None:
    wanted = _record(TorchKernels, [2, 5, 9], torch.float32, special=special)
    found = _record(CompiledKernels, [2, 5, 9], torch.float32, special=special)
    torch.testing.assert_close(found.values, wanted.values, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert found.part("top1", 3)[1].isnan().all() == (special != special)
