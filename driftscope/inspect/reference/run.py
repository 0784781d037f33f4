"""Writes a run directory from the reference engine, with the same records as a live server's."""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import torch

from driftscope.inspect.reference.chain import Chain
from driftscope.inspect.reference.config import EOS_ID
from driftscope.inspect.reference.engine import Generation, Round, generate
from driftscope.inspect.reference.model import load_drafter, load_target
from driftscope.inspect.reference.replay import DEFAULT_N_SINK
from driftscope.inspect.weights_digest import weights_digest
from driftscope.trace.manifest import (
    AUX_FROM_CONFIG,
    AUX_FROM_ENGINE,
    GREEDY,
    Manifest,
    Model,
)
from driftscope.trace.records import DraftRow, RequestRow, StepRow, VerifyRow, edges_of
from driftscope.trace.writer import TraceWriter
from driftscope.trace.writer_files import check_unused, create_run
from driftscope.version import __version__
from driftscope.vocabulary import Execution


class ReferenceRun:
    """Generates requests one after the other and records them; a context manager.

    Raises TraceError if `run` already holds a run or cannot be written.
    """

    def __init__(
        self, run: Path, target: Path, drafter: Path, *, k: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self._target = load_target(target, dtype)
        layers = self._target.config.num_hidden_layers
        self._drafter = load_drafter(drafter, dtype, target_layers=layers)
        self._layers = self._drafter.config.layer.num_hidden_layers
        self._k, self._requests, self._steps = k, 0, 0
        check_unused(run)
        self._writer = TraceWriter(run, source=f"reference-{os.getpid()}")
        create_run(run, self._manifest(target, drafter, str(dtype).removeprefix("torch.")))

    def __enter__(self) -> ReferenceRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()

    def generate(
        self, prompt_ids: Sequence[int], *, max_tokens: int, label: str | None = None
    ) -> Generation:
        """Generate greedily from a prompt and record each round as it ends."""
        name = f"reference-{self._requests}"
        self._requests += 1
        arrival_s = time.time()
        result = self._generated(prompt_ids, max_tokens, lambda done: self._record(name, done))
        self._writer.put(_request_row(name, label, arrival_s, prompt_ids, max_tokens, result))
        return result

    def _generated(
        self, prompt_ids: Sequence[int], max_tokens: int, on_round: Callable[[Round], None]
    ) -> Generation:
        return generate(
            self._target,
            self._drafter,
            prompt_ids,
            max_tokens,
            self._k,
            eos_token_id=EOS_ID,
            on_round=on_round,
        )

    def _record(self, request: str, done: Round) -> None:
        self._steps += 1
        now = time.time()
        self._writer.put(
            StepRow(
                step=self._steps,
                time_s=now,
                requests=1,
                chains=1,
                k=done.drafted,
                recorded=True,
                step_s=done.step_s,
                draft_s=done.draft_s,
                probe_s=0.0,
                execution=Execution.EAGER,
            )
        )
        self._writer.put(_draft_row(self._steps, now, request, done.chain, self._layers))
        self._writer.put(
            VerifyRow(
                step=self._steps,
                time_s=now,
                request=request,
                position=done.chain.position,
                drafted=done.drafted,
                accepted=done.accepted,
                reason=None,
            )
        )

    def _manifest(self, target: Path, drafter: Path, dtype: str) -> Manifest:
        config = self._drafter.config
        return Manifest(
            run_id=uuid.uuid4().hex[:12],
            created_s=time.time(),
            driftscope_version=__version__,
            engine="reference",
            engine_version=__version__,
            runner="reference",
            mode="eager",
            recording="taps",
            method="eagle3",
            k=self._k,
            target=_model(target, "LlamaForCausalLM", dtype),
            drafter=_model(drafter, config.to_hf()["architectures"][0], dtype),
            norm_flags={
                "fc_norm": config.fc_norm,
                "norm_output": config.norm_output,
                "norm_before_fc": config.norm_before_fc,
                "norm_before_residual": config.norm_before_residual,
            },
            drafter_layers=config.layer.num_hidden_layers,
            aux_layers=tuple(config.aux_layers),
            aux_layers_source=AUX_FROM_CONFIG if config.names_aux_layers else AUX_FROM_ENGINE,
            draft_sampling=GREEDY,
            attention_backend="torch",
            kv_cache_dtype="auto",
            sink_tokens=DEFAULT_N_SINK,
            sink_source="default",
            distance_edges=edges_of(self._k),
            distance_every=1,
        )


def _model(path: Path, architecture: str, dtype: str) -> Model:
    digest = hashlib.sha256((path / "config.json").read_bytes()).hexdigest()[:16]
    return Model(
        name=str(path),
        architecture=architecture,
        config_digest=digest,
        dtype=dtype,
        weights_digest=weights_digest(str(path)),
    )


def _draft_row(step: int, now: float, request: str, chain: Chain, layers: int) -> DraftRow:
    return DraftRow(
        step=step,
        time_s=now,
        request=request,
        position=chain.position,
        prompt_tokens=chain.prompt_tokens,
        batch=1,
        k=len(chain.token_ids),
        layers=layers,
        chunked_prefill=False,
        sink_mass=chain.sink_mass,
        prompt_mass=chain.prompt_mass,
        generated_mass=chain.generated_mass,
        self_mass=chain.self_mass,
        null_mass=None,
        distance_mass=chain.distance_mass,
        in_rms=chain.in_rms,
        prenorm_rms=chain.prenorm_rms,
        postnorm_rms=chain.postnorm_rms,
        fed_rms=chain.fed_rms,
        top1=chain.top1,
        entropy=chain.entropy,
        aux_rms=chain.aux_rms,
        aux_norm_rms=chain.aux_norm_rms,
        fc_rms=chain.fc_rms,
        token_ids=None,
        execution=Execution.EAGER,
    )


def _request_row(
    name: str,
    label: str | None,
    arrival_s: float,
    prompt: Sequence[int],
    max_tokens: int,
    result: Generation,
) -> RequestRow:
    count = len(result.token_ids)
    digest = _digest(prompt)
    return RequestRow(
        time_s=time.time(),
        request=name,
        label=label,
        arrival_s=arrival_s,
        prompt_tokens=len(prompt),
        output_tokens=count,
        ttft_s=result.ttft_s,
        tpot_s=(result.duration_s - result.ttft_s) / (count - 1) if count > 1 else None,
        finish_reason=result.finish_reason,
        temperature=0.0,
        max_tokens=max_tokens,
        prompt_digest=digest,
        conversation=digest,
    )


def _digest(prompt: Sequence[int]) -> str:
    """Return a hash of the token ids, 16 hex digits. It has no key: the prompts of this engine are
    no user's."""
    ids = np.array(prompt, dtype=np.int64).tobytes()
    return hashlib.blake2b(ids, digest_size=8).hexdigest()
