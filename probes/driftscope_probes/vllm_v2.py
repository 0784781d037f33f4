"""vLLM's V2 model runner: the one module that knows its insides.

Read with vllm.v1.worker.gpu.model_runner and vllm.v1.worker.gpu.spec_decode, 0.31 and 0.32.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import wrapt

from driftscope_probes.attach import attach_recorder, recorder_of
from driftscope_probes.view import DeviceStep, DraftStep


def install_runner(module: Any) -> None:
    """Hook vllm.v1.worker.gpu.model_runner."""
    wrapt.wrap_function_wrapper(module, "GPUModelRunner.execute_model", _execute_model)
    wrapt.wrap_function_wrapper(module, "GPUModelRunner.sample_tokens", _sample_tokens)


def install_speculator(module: Any) -> None:
    """Hook vllm.v1.worker.gpu.spec_decode.eagle.speculator; its base was renamed in 0.32."""
    wrapt.wrap_function_wrapper(module, "EagleSpeculator.load_model", _load_model)
    wrapt.wrap_function_wrapper(module, "EagleSpeculator.propose", _propose)


def _load_model(wrapped: Any, speculator: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    attach_recorder(
        speculator,
        "v2",
        layer_names=set(speculator.draft_attn_layer_names),
        config=speculator.vllm_config,
    )
    return result


def _execute_model(wrapped: Any, runner: Any, args: Any, kwargs: Any) -> Any:
    if recorder := recorder_of(getattr(runner, "speculator", None)):
        recorder.step_started(args[0] if args else kwargs.get("scheduler_output"))
    return wrapped(*args, **kwargs)


def _sample_tokens(wrapped: Any, runner: Any, args: Any, kwargs: Any) -> Any:
    speculator = getattr(runner, "speculator", None)
    recorder = recorder_of(speculator)
    state = getattr(runner, "execute_model_state", None)
    if speculator is None or recorder is None or state is None:
        return wrapped(*args, **kwargs)
    speculator._driftscope_runner = runner
    try:
        result = wrapped(*args, **kwargs)
    finally:
        speculator._driftscope_runner = None
    recorder.step_ended(state.input_batch.num_reqs)
    return result


def _propose(wrapped: Any, speculator: Any, args: Any, kwargs: Any) -> Any:
    runner = getattr(speculator, "_driftscope_runner", None)
    recorder = recorder_of(speculator)
    if recorder is None or runner is None:
        return wrapped(*args, **kwargs)
    return recorder.draft(
        lambda: _draft_step(runner, speculator, wrapped, args, kwargs),
        lambda: wrapped(*args, **kwargs),
        # All that vLLM's profiling flag does here is to pass the graphs by.
        lambda: wrapped(*args, **{**kwargs, "is_profile": True}),
    )


@functools.cache
def _parameter_names(function: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)[1:]


def _parameters(method: Any) -> tuple[str, ...]:
    """Names of a bound method's parameters; looked up once, for it takes longer than the rest."""
    return _parameter_names(method.__func__)


def _draft_step(runner: Any, speculator: Any, propose: Any, args: Any, kwargs: Any) -> DraftStep:
    call = {**dict(zip(_parameters(propose), args, strict=False)), **kwargs}
    batch, metadata = call["input_batch"], call["attn_metadata"]
    count = batch.num_reqs

    def on_device() -> DeviceStep:
        rows = (batch.query_start_loc[1 : count + 1] - 1 - call["num_rejected"][:count]).long()
        return DeviceStep(
            rows=rows,
            position=batch.positions[rows].long(),
            block_tables={
                name: metadata[name].block_table for name in speculator.draft_attn_layer_names
            },
        )

    k = call.get("num_speculative_tokens")
    reached = batch.num_computed_prefill_tokens_np + batch.num_scheduled_tokens
    return DraftStep(
        requests=tuple(batch.req_ids[:count]),
        prompt_tokens=runner.req_states.prompt_len.np[batch.idx_mapping_np[:count]].astype("int64"),
        prefilling=(reached < batch.prefill_len_np)[:count],
        k=int(speculator.num_speculative_steps if k is None else k),
        max_context=int(batch.seq_lens_cpu_upper_bound[:count].max()),
        on_device=on_device,
    )
