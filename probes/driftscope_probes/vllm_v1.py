"""vLLM's V1 model runner: the one module that knows its insides.

Read with vllm.v1.worker.gpu_model_runner and vllm.v1.spec_decode.llm_base_proposer, 0.27 to 0.32.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
import wrapt

from driftscope_probes.attach import (
    RECORDER,
    attach_recorder,
    attach_timer,
    check_attached,
    recorder_of,
)
from driftscope_probes.drafter_cache import DrafterCache
from driftscope_probes.view import DeviceStep, Drafting, DraftStep

LOOKUPS = ("NgramProposer", "NgramProposerGPU", "SuffixDecodingProposer")
"""Proposers without a model."""
_CHOOSES_GRAPH = "_determine_batch_execution_and_padding"


def install_runner(module: Any) -> None:
    """Hook vllm.v1.worker.gpu_model_runner."""
    wrapt.wrap_function_wrapper(module, "GPUModelRunner.execute_model", _execute_model)
    wrapt.wrap_function_wrapper(module, "GPUModelRunner.sample_tokens", _sample_tokens)


def install_proposer(module: Any) -> None:
    """Hook vllm.v1.spec_decode.llm_base_proposer."""
    wrapt.wrap_function_wrapper(module, "SpecDecodeBaseProposer.load_model", _load_model)
    wrapt.wrap_function_wrapper(module, "SpecDecodeBaseProposer.propose", _propose)


def install_medusa(module: Any) -> None:
    """Hook vllm.v1.spec_decode.medusa, whose proposer has nothing in common with the others."""
    wrapt.wrap_function_wrapper(module, "MedusaProposer.load_model", _load_medusa)
    wrapt.wrap_function_wrapper(module, "MedusaProposer.propose", _propose_medusa)


def models_loaded(runner: Any) -> None:
    """Time a drafter without a model; refuse one that no hook has seen."""
    drafter, config = runner.drafter, runner.vllm_config
    if type(drafter).__name__ in LOOKUPS and recorder_of(drafter) is None:
        attach_timer(drafter, "v1", config=config)
        wrapt.wrap_function_wrapper(drafter, "propose", _propose_lookup)
    check_attached(drafter, "V1", config)


def _load_medusa(wrapped: Any, proposer: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    attach_recorder(proposer, "v1", layer_names=set(), config=proposer.vllm_config)
    return result


def _propose_medusa(wrapped: Any, proposer: Any, args: Any, kwargs: Any) -> Any:
    runner = getattr(proposer, "_driftscope_runner", None)
    recorder = getattr(proposer, RECORDER, None)
    if recorder is None or runner is None:
        return wrapped(*args, **kwargs)
    k = int(kwargs["num_speculative_tokens"])
    return recorder.draft(
        lambda: _lookup_step(runner, k),
        lambda: wrapped(*args, **kwargs),
        lambda: wrapped(*args, **kwargs),  # it never runs in a graph
    )


def _propose_lookup(wrapped: Any, proposer: Any, args: Any, kwargs: Any) -> Any:
    runner = getattr(proposer, "_driftscope_runner", None)
    recorder = getattr(proposer, RECORDER, None)
    if recorder is None or runner is None:
        return wrapped(*args, **kwargs)
    serve = functools.partial(wrapped, *args, **kwargs)
    return recorder.draft(lambda: _lookup_step(runner, runner.num_spec_tokens), serve, serve)


def _lookup_step(runner: Any, k: int) -> Drafting:
    """After the step's tokens were entered: what these drafters start from."""
    batch = runner.input_batch
    count = batch.num_reqs

    def on_device() -> DeviceStep:
        position = torch.from_numpy(batch.num_tokens_no_spec[:count].astype("int64")) - 2
        return DeviceStep(
            rows=torch.arange(count * k, device=runner.device),
            position=position.to(runner.device),
            block_tables={},
            prompt_tokens=batch.num_prompt_tokens[:count].astype("int64"),
            max_context=int(batch.num_tokens_no_spec[:count].max()),
        )

    discarded = runner.discard_request_mask.np[:count].tobytes()
    return DraftStep(tuple(batch.req_ids[:count]), lambda: discarded, k), on_device


def _load_model(wrapped: Any, proposer: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    attach_recorder(
        proposer,
        "v1",
        layer_names=set(proposer._draft_attn_layer_names),
        config=proposer.vllm_config,
        without_graphs=hasattr(proposer, _CHOOSES_GRAPH),
    )
    proposer._driftscope_cache = DrafterCache()
    return result


def _execute_model(wrapped: Any, runner: Any, args: Any, kwargs: Any) -> Any:
    proposer = getattr(runner, "drafter", None)
    recorder = getattr(proposer, RECORDER, None)
    if proposer is not None and recorder is not None:
        scheduled = args[0] if args else kwargs.get("scheduler_output")
        proposer._driftscope_runner = runner  # which it does not know
        cache = getattr(proposer, "_driftscope_cache", None)
        if cache is not None:
            cache.step(scheduled)
        recorder.step_started(scheduled)
    return wrapped(*args, **kwargs)


def _sample_tokens(wrapped: Any, runner: Any, args: Any, kwargs: Any) -> Any:
    recorder = getattr(getattr(runner, "drafter", None), RECORDER, None)
    has_step = getattr(runner, "execute_model_state", None) is not None
    result = wrapped(*args, **kwargs)
    if recorder and has_step:
        recorder.step_ended(runner.input_batch.num_reqs)
    return result


def _propose(wrapped: Any, proposer: Any, args: Any, kwargs: Any) -> Any:
    runner = getattr(proposer, "_driftscope_runner", None)
    recorder = getattr(proposer, RECORDER, None)
    if recorder is None or runner is None:
        return wrapped(*args, **kwargs)
    return recorder.draft(
        lambda: _draft_step(runner, proposer, kwargs),
        lambda: wrapped(*args, **kwargs),
        lambda: _without_graphs(wrapped, proposer, kwargs),
    )


def _without_graphs(wrapped: Any, proposer: Any, call: dict[str, Any]) -> Any:
    """The same drafts, made eagerly. `propose` changes its attention metadata in place."""
    common = call["common_attn_metadata"]
    own = {
        field.name: value.clone()
        for field in dataclasses.fields(common)
        if isinstance(value := getattr(common, field.name), torch.Tensor)
        and field.name not in ("block_table_tensor", "slot_mapping")
    }
    whole = getattr(proposer, _CHOOSES_GRAPH)
    setattr(proposer, _CHOOSES_GRAPH, functools.partial(whole, use_cudagraphs=False))
    try:
        return wrapped(**{**call, "common_attn_metadata": dataclasses.replace(common, **own)})
    finally:
        delattr(proposer, _CHOOSES_GRAPH)


def _draft_step(runner: Any, proposer: Any, call: dict[str, Any]) -> Drafting:
    """vLLM calls `propose` by keyword in every supported version."""
    batch, common = runner.input_batch, call["common_attn_metadata"]
    count = batch.num_reqs

    def on_device() -> DeviceStep:
        rows = call["token_indices_to_sample"]
        if rows is None:
            rows = common.query_start_loc[1 : count + 1] - 1
        rows = rows[:count].long()
        return DeviceStep(
            rows=_rows_drafted_from(proposer, rows, int(call["num_speculative_tokens"])),
            position=call["target_positions"].index_select(0, rows).long(),
            block_tables=dict.fromkeys(
                proposer._draft_attn_layer_names, common.block_table_tensor[:count]
            ),
            prompt_tokens=batch.num_prompt_tokens[:count].astype("int64"),
            max_context=int(common.max_seq_len),
        )

    discarded = runner.discard_request_mask.np[:count].tobytes()
    step = DraftStep(
        tuple(batch.req_ids[:count]),
        lambda: discarded,
        int(call["num_speculative_tokens"]),
        proposer._driftscope_cache.in_doubt(chunked=1 in discarded),
    )
    return step, on_device


def _rows_drafted_from(proposer: Any, rows: torch.Tensor, k: int) -> torch.Tensor:
    """Rows of the drafter's first forward: some drafters add rows to the target's.

    `rows` [B] are those of the last verified slots in the target's forward.
    """
    blocks = proposer.method == "dflash"
    if not blocks and not getattr(proposer, "needs_extra_input_slots", False):
        return rows
    request = torch.arange(len(rows), device=rows.device)
    if blocks:  # the newest token, then K masks, and no context
        return (request[:, None] * (1 + k) + 1 + torch.arange(k, device=rows.device)).flatten()
    rows = rows + request * proposer.net_num_new_slots_per_request
    if not proposer.pass_hidden_states_to_model:  # not shifted: the newest token has its own row
        return rows + 1
    own = proposer.extra_slots_per_request
    return (rows[:, None] + torch.arange(own, device=rows.device)).flatten()
