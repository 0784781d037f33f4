"""The view of a step that waits for the writer holds no tensor of the runner."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from driftscope_probes.engine import DraftStep
from driftscope_probes.vllm import runner_v1, runner_v2
from driftscope_probes.vllm.attach import RECORDER

HIDDEN = torch.zeros(3, 8)


def _tensors(root: Any) -> Iterator[torch.Tensor]:
    """Those that `root` keeps alive; of functions what they closed over, not their modules."""
    left, seen = [root], set()
    while left:
        found = left.pop()
        if id(found) in seen or isinstance(found, type | types.ModuleType):
            continue
        seen.add(id(found))
        if isinstance(found, torch.Tensor):
            yield found
        elif isinstance(found, types.FunctionType):
            left += [cell.cell_contents for cell in found.__closure__ or ()]
        else:
            left += gc.get_referents(found)


def _checked(step: DraftStep) -> DraftStep:
    assert list(_tensors([HIDDEN])), "the search finds one"
    assert not list(_tensors(step))
    return step


def _called(seam: Any, owner: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the call that the seam passes to the recorder of `owner` when vLLM calls it."""
    setattr(owner, RECORDER, SimpleNamespace(draft=lambda call: call))
    return seam(type(owner).propose if hasattr(owner, "propose") else None)(owner, *args, **kwargs)


def test_a_step_of_the_v1_runner() -> None:
    common = SimpleNamespace(hidden=HIDDEN, max_seq_len=9)
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(num_reqs=2, req_ids=["a", "b", None], hidden=HIDDEN),
        discard_request_mask=SimpleNamespace(np=np.array([False, True, False])),
    )
    call = {
        "common_attn_metadata": common,
        "num_speculative_tokens": 3,
        "target_hidden_states": HIDDEN,
    }
    proposer = SimpleNamespace(hidden=HIDDEN, _driftscope_runner=runner)
    step = _called(runner_v1._propose, proposer, **call).step()
    runner.discard_request_mask.np[:] = True
    assert _checked(step) == (("a", "b"), b"\0\1", 3), "of then"


def test_a_step_of_a_drafter_that_is_called_with_another_k() -> None:
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(num_reqs=1, req_ids=["a"], hidden=HIDDEN),
        discard_request_mask=SimpleNamespace(np=np.array([True])),
        num_spec_tokens=2,
    )
    proposer = SimpleNamespace(_driftscope_runner=runner)
    drafted = _called(runner_v1._propose_lookup, proposer, HIDDEN)
    assert (drafted.k, _checked(drafted.step())) == (2, (("a",), b"\1", 2))
    asked = _called(runner_v1._propose_lookup, proposer, HIDDEN, num_speculative_tokens=1)
    assert (asked.k, asked.step().k) == (1, 1)


def test_a_step_of_the_v2_runner() -> None:
    class Speculator:
        num_speculative_steps = 3
        _driftscope_runner = SimpleNamespace()

        def propose(self, input_batch: Any, attn_metadata: Any, hidden: Any) -> None: ...

    batch = SimpleNamespace(
        num_reqs=2,
        req_ids=["a", "b"],
        hidden=HIDDEN,
        num_computed_prefill_tokens_np=np.array([4, 4]),
        num_scheduled_tokens=np.array([4, 2]),
        prefill_len_np=np.array([8, 8]),
    )
    speculator = Speculator()
    args = (batch, {"layer": HIDDEN}, HIDDEN)
    call = _called(runner_v2._propose, speculator, *args)
    assert (call.k, _checked(call.step())) == (3, (("a", "b"), b"\0\1", 3))
    assert _called(runner_v2._propose, speculator, *args, num_speculative_tokens=2).step().k == 2
