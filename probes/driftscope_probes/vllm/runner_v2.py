"""vLLM's V2 model runner; the only module that knows its internals.

Written against vllm.v1.worker.gpu.model_runner and vllm.v1.worker.gpu.spec_decode, 0.31 and 0.32.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from driftscope.trace.manifest import GREEDY, PROBABILISTIC
from driftscope_probes.discovery import ROWS, made_up
from driftscope_probes.drafter import captured_by
from driftscope_probes.engine import (
    DeviceStep,
    DraftCallBase,
    DraftStep,
    Verification,
    make_draft_call,
)
from driftscope_probes.guard import hook_unhooked
from driftscope_probes.vllm.attach import (
    RECORDER,
    STILL,
    LoadedModels,
    LoadedProposer,
    attach_recorder,
    begin_recording,
    recorder_of,
)
from driftscope_probes.vllm.schedule import ADMITTED

ONE_MODULE_PER_DEPTH = "MultiModuleMTPSpeculator"
LOOKUP = "NgramGPUSpeculator"
_PASSES_GRAPHS_BY = "is_profile"
"""vLLM's flag of a profiling run; its only effect in a speculator is to avoid CUDA graphs."""


def models_loaded(runner: Any) -> None:
    """Begin the run, with a timer for a drafter that cannot be recorded."""
    speculator, config = runner.speculator, runner.vllm_config
    begin_recording(
        speculator,
        LoadedModels(
            runner="v2",
            config=config,
            captured=lambda: captured_by(
                runner.get_model(), lambda: _layers_in_config(config.speculative_config)
            ),
            timed=type(speculator).__name__ in (LOOKUP, ONE_MODULE_PER_DEPTH),
            hook=lambda proposer: hook_unhooked(proposer, "propose", _propose),
            draft_sampling=_draft_sampling(speculator),
        ),
    )
    recorder, sampler = recorder_of(speculator), getattr(runner, "rejection_sampler", None)
    # With adaptive verification only the device knows which rows are a request's; with a sharded
    # batch, a rank has some of the requests.
    partial = ("adaptive_verification", "batch_sharder")
    whole = all(getattr(runner, name, None) is None for name in partial)
    if sampler is not None and whole:
        setattr(sampler, RECORDER, recorder)


def _verify(original: Any) -> Callable[..., Any]:
    def verify(sampler: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(sampler, *args, **kwargs)
        recorder: Any = getattr(sampler, RECORDER, None)
        near_misses = getattr(recorder, "near_misses", None)  # a timer has none
        if near_misses is not None and near_misses.waiting:
            recorder.verified(functools.partial(_verification, sampler, result, *args, **kwargs))
        return result

    return verify


def _verification(
    sampler: Any, result: Any, logits: Any, input_batch: Any, *_: Any, **__: Any
) -> Verification:
    """Return the view of a step's verification, from the arguments of the sampler's call."""
    batch = input_batch
    count, ends = batch.num_reqs, batch.cu_num_logits_np
    states, at = sampler.sampler.sampling_states, batch.idx_mapping
    given = (states.temperature, states.top_k, states.top_p)
    greedy = not states.temperature.np[batch.idx_mapping_np].any()
    return Verification(
        requests=batch.req_ids[:count],
        first_rows=ends[:count].tolist(),
        drafted=(ends[1 : count + 1] - ends[:count] - 1).tolist(),
        logits=logits,
        sampled=result.sampled_token_ids,
        accepted=result.num_sampled - 1,
        sampling=(None, None, None) if greedy else tuple(x.gpu[at] for x in given),
    )


def _layers_in_config(speculation: Any) -> Any:
    """Return the captured layers that this runner finds in the drafter's config, if any."""
    from vllm.v1.worker.gpu.spec_decode.eagle import eagle3_utils

    return eagle3_utils.get_eagle3_aux_layers_from_config(speculation)


def _draft_sampling(speculator: Any) -> str | None:
    """Return how V2 samples drafts: it keeps logits if it draws from them; None if unknown."""
    if not hasattr(speculator, "draft_logits"):
        return None
    return GREEDY if speculator.draft_logits is None else PROBABILISTIC


def _load_model(original: Any) -> Callable[..., Any]:
    def load_model(speculator: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(speculator, *args, **kwargs)
        if type(speculator).__name__ != ONE_MODULE_PER_DEPTH:
            attach_recorder(speculator, _loaded)
        return result

    return load_model


def _loaded(speculator: Any) -> LoadedProposer:
    non_causal = getattr(speculator, "requires_non_causal", None)
    return LoadedProposer(
        runner="v2",
        layer_names=frozenset(speculator.draft_attn_layer_names),
        without_graphs=_PASSES_GRAPHS_BY in inspect.signature(speculator.propose).parameters,
        draft_sampling=_draft_sampling(speculator),
        inputs=_inputs(speculator),
        unmeasured=_unmeasured(speculator),
        causal=None if non_causal is None else not non_causal,
        queries=getattr(speculator, "num_query_per_req", None),
    )


def _unmeasured(speculator: Any) -> str | None:
    """Return why the masses of any attention would be wrong on this runner."""
    if not getattr(speculator, "advance_draft_positions", True):
        return STILL
    layers = speculator.vllm_config.compilation_config.static_forward_context
    if any(hasattr(layers[n], "attention_chunk_size") for n in speculator.draft_attn_layer_names):
        return "this runner's block tables are those of chunks"
    return None


def _inputs(speculator: Any) -> dict[str, torch.Tensor]:
    """Return made-up arguments of a forward, of the shapes that the speculator's own buffers
    have."""
    buffers, states = speculator.input_buffers, getattr(speculator, "hidden_states", None)
    given = {
        "input_ids": torch.zeros_like(buffers.input_ids[:ROWS]),
        "positions": torch.zeros_like(buffers.positions[:ROWS]),
    }
    return given if states is None else {**given, "hidden_states": made_up(states[:ROWS])}


def _execute_model(original: Any) -> Callable[..., Any]:
    def execute_model(runner: Any, *args: Any, **kwargs: Any) -> Any:
        speculator = getattr(runner, "speculator", None)
        recorder = getattr(runner if speculator is None else speculator, RECORDER, None)
        if recorder is not None:
            recorder.step_started(args[0] if args else kwargs.get("scheduler_output"))
        return original(runner, *args, **kwargs)

    return execute_model


def _sample_tokens(original: Any) -> Callable[..., Any]:
    def sample_tokens(runner: Any, *args: Any, **kwargs: Any) -> Any:
        speculator = getattr(runner, "speculator", None)
        recorder = getattr(runner if speculator is None else speculator, RECORDER, None)
        state = getattr(runner, "execute_model_state", None)
        if recorder is None or state is None:
            return original(runner, *args, **kwargs)
        admitted = admitted_drafts(runner, getattr(state, "input_batch", None))
        if speculator is None:
            result = original(runner, *args, **kwargs)
        else:
            speculator._driftscope_runner = runner
            try:
                result = original(runner, *args, **kwargs)
            finally:
                speculator._driftscope_runner = None
        recorder.step_ended(lambda: state.input_batch.num_reqs)
        if admitted is not None and result is not None:
            with contextlib.suppress(Exception):  # the border: the scheduler counts what it misses
                setattr(getattr(result, "model_runner_output", result), ADMITTED, admitted)
        return result

    return sample_tokens


def admitted_drafts(runner: Any, batch: Any) -> torch.Tensor | None:
    """Return the draft tokens of each request that this step verifies, [requests] int32 on the
    host; None unless the runner chooses them by confidence.

    The copy is on the main stream, for whose work vLLM's own copy of the step's tokens waits: they
    are there when the scheduler reads these.
    """
    if getattr(runner, "adaptive_verification", None) is None:
        return None
    with contextlib.suppress(Exception):  # the border, as above
        ends = batch.cu_num_logits[: batch.num_reqs + 1]
        admitted: torch.Tensor = ends.diff() - runner.model_state.num_new_sampled_tokens_per_step
        return admitted.to("cpu", non_blocking=True)
    return None


def _propose(original: Any) -> Callable[..., Any]:
    def propose(speculator: Any, *args: Any, **kwargs: Any) -> Any:
        runner = getattr(speculator, "_driftscope_runner", None)
        recorder = getattr(speculator, RECORDER, None)
        if recorder is None or runner is None:
            return original(speculator, *args, **kwargs)
        k = kwargs.get("num_speculative_tokens")  # passed by keyword, if at all
        if k is None:
            k = getattr(speculator, "num_speculative_steps", None)
        return recorder.draft(
            make_draft_call(_ModelCall, (k, runner, speculator, original, args, kwargs))
        )

    return propose


class _ModelCall(DraftCallBase):
    """A call of a speculator's `propose`."""

    __slots__ = ()

    def step(self) -> DraftStep:
        batch = self.argument("input_batch")
        count = batch.num_reqs
        done = batch.num_computed_prefill_tokens_np + batch.num_scheduled_tokens
        prefilling = (done < batch.prefill_len_np)[:count].tobytes()
        return DraftStep(tuple(batch.req_ids[:count]), prefilling, self.k)

    def on_device(self) -> DeviceStep:
        batch, metadata = self.argument("input_batch"), self.argument("attn_metadata")
        count, speculator = batch.num_reqs, self.owner
        rows = self._last_rows()
        prompts = self.runner.req_states.prompt_len.np[batch.idx_mapping_np[:count]]
        return DeviceStep(
            rows=_rows_drafted_from(speculator, rows),
            position=batch.positions[rows].long(),
            block_tables={
                name: _block_table(metadata[name]) for name in speculator.draft_attn_layer_names
            },
            prompt_tokens=prompts.astype("int64"),
            max_context=int(batch.seq_lens_cpu_upper_bound[:count].max()),
        )

    def _last_rows(self) -> torch.Tensor:
        """Return [B] int64: the row of each request's last verified token."""
        batch = self.argument("input_batch")
        ends = batch.query_start_loc[1 : batch.num_reqs + 1] - 1
        rows: torch.Tensor = (ends - self.argument("num_rejected")[: batch.num_reqs]).long()
        return rows

    def without_graphs(self) -> Any:
        return self.original(self.owner, *self.args, **{**self.kwargs, _PASSES_GRAPHS_BY: True})

    def argument(self, name: str) -> Any:
        """Return an argument of the call, whether passed by position or by keyword."""
        if name in self.kwargs:
            return self.kwargs[name]
        return self.args[_parameter_names(self.original).index(name)]


@functools.cache
def _parameter_names(function: Any) -> tuple[str, ...]:
    """Return a method's parameter names without `self`, cached because the lookup is slow."""
    return tuple(inspect.signature(function).parameters)[1:]


def _rows_drafted_from(speculator: Any, rows: torch.Tensor) -> torch.Tensor:
    """Return the rows of the drafter's first forward, which may differ from the target's.

    `rows` [B]: rows of the last verified slots in the target's forward.
    """
    count = functools.partial(torch.arange, device=rows.device)
    if hasattr(speculator, "requires_non_causal"):  # a block, perhaps after the newest token
        size = speculator.num_query_per_req
        drafted = count(size - speculator.num_speculative_steps, size)
        own: torch.Tensor = count(len(rows))[:, None] * size + drafted
        return own.flatten()
    if type(speculator).__name__ == "StandaloneARSpeculator":  # one more row, for the newest token
        after: torch.Tensor = rows + count(len(rows)) + 1
        return after
    return rows


def _block_table(metadata: Any) -> torch.Tensor:
    """Return [B, blocks]; latent attention has its own for decoding requests, which come first."""
    if hasattr(metadata, "block_table"):
        table: torch.Tensor = metadata.block_table
        return table
    parts = [part for part in (metadata.decode, metadata.prefill) if part is not None]
    whole: torch.Tensor = torch.cat([part.block_table for part in parts])
    return whole
