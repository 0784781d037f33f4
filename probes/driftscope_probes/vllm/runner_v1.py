"""vLLM's V1 model runner; the only module that knows its internals.

Written against vllm.v1.worker.gpu_model_runner and vllm.v1.spec_decode.llm_base_proposer, 0.27 to
0.32.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
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
from driftscope_probes.guard import hook_unhooked, is_hooked
from driftscope_probes.vllm.attach import (
    RECORDER,
    STILL,
    LoadedModels,
    LoadedProposer,
    attach_recorder,
    begin_recording,
)
from driftscope_probes.vllm.schedule import CacheFaultTracker

LOOKUPS = ("NgramProposer", "NgramProposerGPU", "SuffixDecodingProposer")
"""Class names of proposers without a model."""
ASKED_K = "num_speculative_tokens"
_CHOOSES_GRAPH = "_determine_batch_execution_and_padding"


def models_loaded(runner: Any) -> None:
    """Begin the run, with a timer for a drafter that cannot be recorded."""
    drafter = runner.drafter
    begin_recording(
        drafter,
        LoadedModels(
            runner="v1",
            config=runner.vllm_config,
            captured=lambda: captured_by(
                runner.get_model(), lambda: runner._get_eagle3_aux_layers_from_config()
            ),
            timed=type(drafter).__name__ in LOOKUPS,
            hook=lambda proposer: hook_unhooked(proposer, "propose", _propose_lookup),
        ),
    )


def _load_medusa(original: Any) -> Callable[..., Any]:
    def load_model(proposer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(proposer, *args, **kwargs)
        attach_recorder(proposer, _loaded_medusa)
        return result

    return load_model


def _loaded_medusa(_: Any) -> LoadedProposer:
    return LoadedProposer(runner="v1", layer_names=frozenset(), draft_sampling=GREEDY)


def _propose_lookup(original: Any) -> Callable[..., Any]:
    def propose(proposer: Any, *args: Any, **kwargs: Any) -> Any:
        runner = getattr(proposer, "_driftscope_runner", None)
        recorder = getattr(proposer, RECORDER, None)
        if recorder is None or runner is None:
            return original(proposer, *args, **kwargs)
        k = kwargs.get(ASKED_K, getattr(runner, "num_spec_tokens", None))
        return recorder.draft(
            make_draft_call(_LookupCall, (k, runner, proposer, original, args, kwargs))
        )

    return propose


class _LookupCall(DraftCallBase):
    """A call of a drafter that starts once the step's tokens are stored, never in a graph."""

    __slots__ = ()

    def step(self) -> DraftStep:
        return _step_of(self.runner, self.k)

    def on_device(self) -> DeviceStep:
        runner, batch = self.runner, self.runner.input_batch
        count = batch.num_reqs
        position = torch.from_numpy(batch.num_tokens_no_spec[:count].astype("int64")) - 2
        return DeviceStep(
            rows=torch.arange(count * self.k, device=runner.device),
            position=position.to(runner.device),
            block_tables={},
            prompt_tokens=batch.num_prompt_tokens[:count].astype("int64"),
            max_context=int(batch.num_tokens_no_spec[:count].max()),
        )

    def without_graphs(self) -> Any:
        return self.original(self.owner, *self.args, **self.kwargs)


def _step_of(runner: Any, k: int) -> DraftStep:
    batch = runner.input_batch
    count = batch.num_reqs
    discarded = runner.discard_request_mask.np[:count].tobytes()
    return DraftStep(tuple(batch.req_ids[:count]), discarded, k)


def _load_model(original: Any) -> Callable[..., Any]:
    def load_model(proposer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(proposer, *args, **kwargs)
        if is_hooked(proposer, "propose"):
            attach_recorder(proposer, _loaded)
        return result

    return load_model


def _loaded(proposer: Any) -> LoadedProposer:
    return LoadedProposer(
        runner="v1",
        layer_names=frozenset(proposer._draft_attn_layer_names),
        without_graphs=hasattr(proposer, _CHOOSES_GRAPH),
        cache=CacheFaultTracker(),
        draft_sampling=_draft_sampling(proposer),
        inputs=_inputs(proposer),
        unmeasured=STILL if getattr(proposer, "constant_draft_positions", False) else None,
    )


def _inputs(proposer: Any) -> dict[str, torch.Tensor]:
    """Return made-up arguments of a forward, of the shapes that the proposer's own buffers have."""
    states = getattr(proposer, "hidden_states", None)
    given = {
        "input_ids": torch.zeros_like(proposer.input_ids[:ROWS]),
        "positions": torch.zeros_like(proposer._get_positions(ROWS)),
    }
    return given if states is None else {**given, "hidden_states": made_up(states[:ROWS])}


def _draft_sampling(proposer: Any) -> str | None:
    """Return how V1 samples drafts: from the drafter's distribution if its configuration asks for
    that and vLLM's standard rejection sampling is in force; None if unknown."""
    draws = getattr(proposer, "_enable_probabilistic_draft_probs", None)
    return None if draws is None else PROBABILISTIC if draws else GREEDY


def _execute_model(original: Any) -> Callable[..., Any]:
    def execute_model(runner: Any, *args: Any, **kwargs: Any) -> Any:
        proposer = getattr(runner, "drafter", None)
        recorder = getattr(runner if proposer is None else proposer, RECORDER, None)
        if recorder is not None:
            if proposer is not None:
                proposer._driftscope_runner = runner  # the proposer lacks this reference
            recorder.step_started(args[0] if args else kwargs.get("scheduler_output"))
        return original(runner, *args, **kwargs)

    return execute_model


def _sample_tokens(original: Any) -> Callable[..., Any]:
    def sample_tokens(runner: Any, *args: Any, **kwargs: Any) -> Any:
        proposer = getattr(runner, "drafter", None)
        recorder = getattr(runner if proposer is None else proposer, RECORDER, None)
        has_step = getattr(runner, "execute_model_state", None) is not None
        result = original(runner, *args, **kwargs)
        if recorder and has_step:
            recorder.step_ended(lambda: runner.input_batch.num_reqs)
        return result

    return sample_tokens


def _sample(original: Any) -> Callable[..., Any]:
    def sample(runner: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(runner, *args, **kwargs)
        recorder: Any = getattr(getattr(runner, "drafter", None), RECORDER, None)
        near_misses = getattr(recorder, "near_misses", None)  # a timer has none
        drafts = args[1] if len(args) > 1 else kwargs.get("spec_decode_metadata")
        if near_misses is not None and near_misses.waiting and drafts is not None:
            recorder.verified(functools.partial(_verification, runner, result, *args, **kwargs))
        return result

    return sample


def _verification(
    runner: Any, result: Any, logits: Any, spec_decode_metadata: Any, *_: Any, **__: Any
) -> Verification:
    """Return the view of a step's verification, from the arguments of `_sample`. The logits of a
    request are in consecutive rows."""
    batch, drafted = runner.input_batch, spec_decode_metadata.num_draft_tokens
    ends = itertools.accumulate(count + 1 for count in drafted)
    sampling, sampled = batch.sampling_metadata, result.sampled_token_ids
    return Verification(
        requests=batch.req_ids[: len(drafted)],
        first_rows=[end - count - 1 for end, count in zip(ends, drafted, strict=True)],
        drafted=drafted,
        logits=logits,
        sampled=sampled,
        accepted=(sampled >= 0).sum(1) - 1,
        sampling=(sampling.temperature, sampling.top_k, sampling.top_p),
    )


def _propose(original: Any) -> Callable[..., Any]:
    def propose(proposer: Any, *args: Any, **kwargs: Any) -> Any:
        runner = getattr(proposer, "_driftscope_runner", None)
        recorder = getattr(proposer, RECORDER, None)
        if recorder is None or runner is None:
            return original(proposer, *args, **kwargs)
        call = (kwargs.get(ASKED_K), runner, proposer, original, args, kwargs)
        return recorder.draft(make_draft_call(_ModelCall, call))

    return propose


class _ModelCall(DraftCallBase):
    """A call of a drafter with a model. vLLM passes all arguments of `propose` by keyword in every
    supported version."""

    __slots__ = ()

    def step(self) -> DraftStep:
        return _step_of(self.runner, self.k)

    def on_device(self) -> DeviceStep:
        batch, common = self.runner.input_batch, self.kwargs["common_attn_metadata"]
        count, rows = batch.num_reqs, self._last_rows()
        return DeviceStep(
            rows=_rows_drafted_from(self.owner, rows, self.k),
            position=self.kwargs["target_positions"].index_select(0, rows).long(),
            block_tables=dict.fromkeys(
                self.owner._draft_attn_layer_names, common.block_table_tensor
            ),
            prompt_tokens=batch.num_prompt_tokens[:count].astype("int64"),
            max_context=int(common.max_seq_len),
        )

    def _last_rows(self) -> torch.Tensor:
        """Return [B] int64: the row of each request's last verified token."""
        count, rows = self.runner.input_batch.num_reqs, self.kwargs["token_indices_to_sample"]
        if rows is None:
            rows = self.kwargs["common_attn_metadata"].query_start_loc[1 : count + 1] - 1
        last: torch.Tensor = rows if rows.shape[0] == count else rows[:count]
        return last.long()

    def without_graphs(self) -> Any:
        """Run the call on copies of the attention metadata, which `propose` changes in place."""
        common, proposer = self.kwargs["common_attn_metadata"], self.owner
        own = {
            field.name: value.clone()
            for field in dataclasses.fields(common)
            if isinstance(value := getattr(common, field.name), torch.Tensor)
            and field.name not in ("block_table_tensor", "slot_mapping")
        }
        whole = getattr(proposer, _CHOOSES_GRAPH)
        setattr(proposer, _CHOOSES_GRAPH, functools.partial(whole, use_cudagraphs=False))
        changed = {"common_attn_metadata": dataclasses.replace(common, **own)}
        try:
            return self.original(self.owner, **{**self.kwargs, **changed})
        finally:
            delattr(proposer, _CHOOSES_GRAPH)


def _rows_drafted_from(proposer: Any, rows: torch.Tensor, k: int) -> torch.Tensor:
    """Return the rows of the drafter's first forward: some drafters add rows to the target's.

    `rows` [B]: rows of the last verified slots in the target's forward.
    """
    blocks = proposer.method == "dflash"
    if not blocks and not getattr(proposer, "needs_extra_input_slots", False):
        return rows
    request = torch.arange(len(rows), device=rows.device)
    if blocks:  # rows are the newest token and K masks, without context
        return (request[:, None] * (1 + k) + 1 + torch.arange(k, device=rows.device)).flatten()
    rows = rows + request * proposer.net_num_new_slots_per_request
    if not proposer.pass_hidden_states_to_model:  # not shifted: the newest token has its own row
        return rows + 1
    own = proposer.extra_slots_per_request
    return (rows[:, None] + torch.arange(own, device=rows.device)).flatten()
