"""Measure the taps' time on a GPU, kernel by kernel, against the minimum for their memory traffic.

Uses Llama-3.1-8B's shapes in bf16. Each time is a CUDA-event median of a captured graph of 20
launches, so that launch overhead of the host does not count. The lower bound is the number of bytes
over the bandwidth of a large copy measured in the same process. A row gives the cost of one launch
(`begin`, `rms`, `logits`, `outputs and logits`), of one chain without masses (`chain`: 1 + 3 K
launches) or of its masses. `host` is what the same launches take of the host, one after another and
outside of a graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.results_file import ResultsFile
from driftscope_probes.buffers import ChainBuffers, Layout
from driftscope_probes.drafter import AttentionKind
from driftscope_probes.torch_masses import Chains, sink_mask
from driftscope_probes.triton_kernels import TritonKernels
from driftscope_probes.triton_masses import paged_masses

HIDDEN, HEADS, KV_HEADS, SIZE, VOCABULARY, PAGE, K = 4096, 32, 8, 128, 32_000, 16, 4
LAUNCHES = 20
REPEATS = 25


def graph_time_s(launch: Callable[[], Any]) -> float:
    """Return the median time of one launch in a replayed graph, in seconds."""
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            launch()
    times = []
    for _ in range(REPEATS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1000 / LAUNCHES)
    return sorted(times)[REPEATS // 2]


def host_time_s(launch: Callable[[], Any]) -> float:
    """Return the median time that the host needs for one launch that is not in a graph, in
    seconds."""
    times = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(LAUNCHES):
            launch()
        times.append((time.perf_counter() - begun) / LAUNCHES)
    return sorted(times)[REPEATS // 2]


def bandwidth() -> float:
    """Return the bandwidth of a large device copy, read and write, in bytes per second."""
    a, b = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    return 2 * a.numel() / graph_time_s(lambda: b.copy_(a))


def taps(batch: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each launch of the taps, and for those of a chain, at a batch size."""
    device = torch.device("cuda")
    buffers = ChainBuffers(Layout(depths=K, layers=1, aux=3), 64, device)
    buffers.add_layer("layer", HEADS * SIZE, HEADS, torch.bfloat16)
    kernels = TritonKernels(buffers)
    rows = torch.arange(batch, device=device)
    hidden, fed = torch.randn(2, batch, HIDDEN, device=device, dtype=torch.bfloat16)
    query = torch.randn(batch, HEADS, SIZE, device=device, dtype=torch.bfloat16)
    logits = torch.randn(batch, VOCABULARY, device=device, dtype=torch.bfloat16)
    lse = torch.randn(HEADS, batch, device=device)

    def outputs() -> None:
        kernels.rms_of_outputs([("postnorm_rms", hidden), ("fed_rms", fed)])
        kernels.confidence(logits)

    def chain() -> None:
        kernels.begin(rows, rows)
        for _ in range(K):
            kernels.advance(hidden)
            kernels.copy_query("layer", query, lse)
            kernels.rms(hidden, "prenorm_rms")
            outputs()

    of_state, of_logits = 2 * batch * HIDDEN, 2 * logits.numel()
    copied = 2 * 2 * query.numel() + 2 * 4 * lse.numel()
    chain()
    launches = {
        "begin": (lambda: kernels.begin(rows, rows), 4 * buffers.values[:batch].numel()),
        "rms": (lambda: kernels.rms(hidden, "in_rms"), of_state),
        "logits": (lambda: kernels.confidence(logits), of_logits),
        "outputs and logits": (outputs, of_logits + 2 * of_state),
        "chain": (chain, K * (of_logits + 4 * of_state + copied)),
    }
    for name, (launch, size) in launches.items():
        buffers.depth.fill_(2)
        seconds = graph_time_s(launch)
        host = host_time_s(launch)
        yield {
            "kernel": name,
            "batch": batch,
            "seconds": seconds,
            "host_s": host,
            "bytes": size,
        }
    kernels.skip()
    seconds = graph_time_s(lambda: kernels.rms(hidden, "in_rms"))
    yield {"kernel": "rms, gate shut", "batch": batch, "seconds": seconds, "bytes": 0}


def masses(batch: int, context: int, use_lse: bool, generated: int = 256) -> dict[str, Any]:
    """Return the row of the masses of one step's chains; its bytes are those of the keys that must
    be read."""
    device = torch.device("cuda")
    pages = -(-(context + K) // PAGE)
    cache = torch.randn(batch * pages, 2, PAGE, KV_HEADS, SIZE, device=device, dtype=torch.bfloat16)
    table = torch.randperm(batch * pages, device=device).view(batch, pages).int()
    chains = Chains(
        k=K,
        position=torch.full((batch,), context - 1, device=device),
        prompt_tokens=torch.full((batch,), context - generated, device=device),
        sink_slots=torch.arange(4, device=device),
        is_sink=sink_mask((0, 1, 2, 3)).to(device),
    )
    kind = AttentionKind(heads=HEADS, kv_heads=KV_HEADS, head_size=SIZE, scale=SIZE**-0.5)
    queries = torch.randn(batch, K, HEADS * SIZE, device=device, dtype=torch.bfloat16)
    lse = torch.full((batch, K, HEADS), 10.0, device=device) if use_lse else None
    out = torch.empty(batch, K, 5, device=device)

    def launch() -> None:
        paged_masses(queries, cache[:, 0], table, chains, kind, out, max_context=context, lse=lse)

    slots = 4 + generated + K if use_lse else context + K
    return {
        "kernel": f"masses {'lse' if use_lse else 'keys'} @{context}",
        "batch": batch,
        "seconds": graph_time_s(launch),
        "host_s": host_time_s(launch),
        "bytes": batch * slots * KV_HEADS * SIZE * 2,
    }


def run(file: ResultsFile, _out: Path, _deadline: float) -> None:
    """Measure, print and store the results; on a CPU there is nothing to measure."""
    if file.device == "cpu":
        words = "no times on a CPU; tests/unit/probes compares the kernels with their twins"
        file.write(complete=True, verdict=words)
        return
    rate = bandwidth()
    rows: list[dict[str, Any]] = []
    for batch in (1, 16, 64):
        rows += taps(batch)
    for batch, context in ((1, 1000), (1, 8000), (1, 100_000), (16, 8000), (64, 1000), (64, 8000)):
        for use_lse in (False, True):
            rows.append(masses(batch, context, use_lse))
    print(f"{torch.cuda.get_device_name()}: a large copy moves {rate / 1e12:.2f} TB/s")
    for row in rows:
        floor = row["bytes"] / rate
        print(
            f"{row['kernel']:24} batch {row['batch']:3} {row['seconds'] * 1e6:8.2f} us "
            f"floor {floor * 1e6:8.2f} us host {row.get('host_s', 0.0) * 1e6:8.2f} us"
        )
    slowest = max(rows, key=lambda row: row["seconds"])
    verdict = (
        f"{len(rows)} rows; the slowest, {slowest['kernel']} at batch {slowest['batch']}, takes "
        f"{slowest['seconds'] * 1e6:.1f} us"
    )
    file.write(complete=True, verdict=verdict, bytes_per_s=rate, rows=rows)
