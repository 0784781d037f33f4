"""Operations that a recorded round adds on the serving thread, as docs/overhead.md and docs/gpu.md
state them.

They are counted, not timed: a count says the same on every machine.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from support.recording_worker import Worker
from torch.utils._python_dispatch import TorchDispatchMode

from driftscope_probes.buffers import ChainBuffers, Layout
from driftscope_probes.cpu_kernels import CompiledKernels
from driftscope_probes.vllm.drafter import VllmDrafter

DOCS = Path(__file__).parents[4] / "docs"
OPERATORS, CALLS = "torch operators", "calls of the probe's functions"
PER_DEPTH = {OPERATORS: 0, CALLS: 36}
"""Operations of a depth from the third on, of a drafter with two layers of attention."""
STEPS = 16


class Operators(TorchDispatchMode):
    """Counts the torch operators of this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def calls_in(step: Callable[[], None]) -> int:
    """Return how many of the probe's functions a step calls on this thread."""
    found: Counter[bool] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found["driftscope_probes" in frame.f_code.co_filename] += 1

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return found[True]


def operations(worker: Worker, k: int) -> Counter[str]:
    """Return the most frequent count of each kind in a step that drafts chains of `k` tokens."""
    worker.step(k=k)
    every: dict[str, list[int]] = {OPERATORS: [], CALLS: []}
    for _ in range(STEPS):
        with Operators() as operators:
            worker.step(k=k)
        every[OPERATORS].append(operators.count)
        every[CALLS].append(calls_in(lambda: worker.step(k=k)))
    return Counter({kind: Counter(counts).most_common(1)[0][0] for kind, counts in every.items()})


@pytest.fixture
def drafter(make_drafter: Callable[..., VllmDrafter]) -> VllmDrafter:
    """Drafts greedily, so that nothing changes the logits that it keeps."""
    made = make_drafter(k=8)
    made.config.speculative_config.draft_sample_method = "greedy"
    return made


def test_a_depth_adds_no_torch_operator(
    start: Callable[..., Worker], drafter: VllmDrafter, tmp_path: Path
) -> None:
    added = {}
    for every in (1, 1 << 30):
        worker = start(drafter, every=every, trace=tmp_path / str(every))
        assert isinstance(worker.recorder._chain.kernels, CompiledKernels)
        seven, eight = (operations(worker, k) for k in (7, 8))
        added[every] = {kind: eight[kind] - seven[kind] for kind in eight}
        worker.recorder.close()
    recorded, passed = added[1], added[1 << 30]
    assert passed[CALLS] == 0, "hooks rest in steps that are not recorded"
    assert {kind: recorded[kind] - passed[kind] for kind in recorded} == PER_DEPTH
    assert f"only {PER_DEPTH[CALLS]} calls" in (DOCS / "overhead.md").read_text("utf-8")


def test_the_page_about_gpus_says_how_much_a_round_copies() -> None:
    row = ChainBuffers(Layout(depths=4, layers=1, aux=3), 1, torch.device("cpu")).values
    assert f"moves {row.nbytes} bytes for each request" in (DOCS / "gpu.md").read_text("utf-8")
