"""A tiny drafter with the probe's taps on, without a recorder."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from support.tiny_drafter import AUX, HEADS, LAYERS, MAX_REQUESTS, Batch, by_hand

from driftscope.vocabulary import BY_DEPTH, MASSES
from driftscope_probes.buffers import ChainBuffers, Layout
from driftscope_probes.encoder import complete
from driftscope_probes.guard import Guard
from driftscope_probes.kernels import Kernels, TorchKernels
from driftscope_probes.meter import Meter
from driftscope_probes.taps import Taps
from driftscope_probes.vllm.drafter import VllmDrafter

SINKS = (0, 3)


class Bench:
    """A drafter with its taps on, in the hands of a proposer; records chains without a recorder."""

    make_kernels: ClassVar[Callable[[ChainBuffers], Kernels]] = TorchKernels
    use_triton: ClassVar = False

    def __init__(self, drafter: VllmDrafter, guard: Guard, *, in_graph: bool = False) -> None:
        layout = Layout(depths=drafter.k, layers=len(LAYERS), aux=AUX)
        self.drafter, self.proposer = drafter, SimpleNamespace(model=drafter.model)
        self.buffers = ChainBuffers(layout, MAX_REQUESTS, drafter.device)
        self.kernels = type(self).make_kernels(self.buffers)
        how = {"use_lse": not self.use_triton, "use_triton": self.use_triton}
        self.meter = Meter(drafter, self.buffers, SINKS, **how)
        self.taps = Taps(drafter, self.kernels, guard, in_graph=in_graph)
        self.taps.attach(self.proposer, "model")
        shape = (2, drafter.k, len(LAYERS), HEADS, len(MASSES))
        self.by_head = torch.full(shape, torch.nan)

    def record(self, batch: Batch) -> torch.Tensor:
        at = batch.on_device()
        self.taps.switch.serving()
        self.kernels.begin(at.rows, at.position)
        self.taps.switch.active = True
        drafts = batch.draft()
        self.noted = len(self.taps.switch.notes)
        self.taps.switch.flush_notes()
        self.taps.switch.active = False
        self.kernels.finish()
        self.meter.measure(batch.view, at, self.by_head)
        return drafts

    def found(self, name: str) -> np.ndarray:
        """[2, numbers]."""
        if name not in BY_DEPTH:
            return self.buffers.part(name, 2).numpy()
        depths = {each: self.buffers.part(each, 2).numpy().copy() for each in BY_DEPTH}
        complete(depths, self.taps.observer.aliased_columns)
        return depths[name]

    def figures_are_by_hand(self, batch: Batch) -> None:
        """Each figure of the chains of `batch` is that of `by_hand`."""
        for b, wanted in enumerate(by_hand(batch, self.drafter.model, SINKS)):
            names = (
                *BY_DEPTH,
                "aux_rms",
                "fc_rms",
                *["aux_norm_rms"] * bool(self.drafter.aux_norms),
            )
            for name in names:
                np.testing.assert_allclose(
                    self.found(name)[b], wanted[name], rtol=1e-5, err_msg=name
                )
            np.testing.assert_allclose(self.by_head[b], wanted["masses"], atol=1e-6)
            means = wanted["masses"].mean(2)
            np.testing.assert_allclose(self.found("masses")[b], means.reshape(-1), atol=1e-6)
            assert means[:, :, :4].sum(-1) == pytest.approx(1.0)
            assert (means[0, :, 3] == 0).all(), "a chain sees nothing of itself at depth 1"
            assert (means[1:, :, 3] > 0).all()
