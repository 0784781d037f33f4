"""A worker that drafts with the tiny drafter and records it, as a real one does."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from support.runs import Spec, manifest
from support.tiny_drafter import Batch, Call, K

from driftscope.trace.reader import Trace, read_trace
from driftscope.trace.writer import TraceWriter
from driftscope.trace.writer_files import create_run
from driftscope_probes.recorder import assemble_recorder
from driftscope_probes.settings import Settings
from driftscope_probes.vllm.drafter import VllmDrafter
from driftscope_probes.vllm.schedule import VllmSchedules


@dataclass
class Worker:
    """Calls a recorder like vLLM's hooks do, around a drafter that runs with or without graphs."""

    drafter: VllmDrafter
    settings: Settings
    calls: list[str] = field(default_factory=list)
    """How each chain was drafted."""
    drafts: list[torch.Tensor] = field(default_factory=list)
    """Tokens that were served."""
    batches: list[Batch] = field(default_factory=list)

    def __post_init__(self) -> None:
        path = self.settings.trace
        create_run(path, manifest(Spec()))
        self.proposer = SimpleNamespace(model=self.drafter.model)
        self.writer = TraceWriter(path, source="worker0-1")
        self.recorder = assemble_recorder(
            self.drafter, self.settings, self.writer, schedules=VllmSchedules()
        )
        self.recorder.taps.attach(self.proposer, "model")

    def step(self, prefilling: tuple[bool, bool] | None = (False, False), k: int = K) -> None:
        """One step of the engine; None: the drafter does not run."""
        self.recorder.step_started()
        if prefilling is not None:
            batch = Batch(self.proposer, prefilling, k=k)
            self.batches.append(batch)
            self.drafts.append(
                self.recorder.draft(
                    Call(
                        batch,
                        lambda: self._draft("served", batch),
                        lambda: self._draft("eager", batch),
                    )
                )
            )
        self.recorder.step_ended(2)

    def _draft(self, how: str, batch: Batch) -> torch.Tensor:
        self.calls.append(how)
        return batch.draft()

    def trace(self) -> Trace:
        """End the run and read it."""
        self.recorder.close()
        return read_trace(self.settings.trace)
