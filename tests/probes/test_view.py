"""What a seam tells of a step waits for the writer: no tensor of the runner's may wait with it."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from driftscope_probes import vllm_v1, vllm_v2
from driftscope_probes.view import DraftStep

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


def test_a_step_of_the_v1_runner() -> None:
    common = SimpleNamespace(hidden=HIDDEN, max_seq_len=9)
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(num_reqs=2, req_ids=["a", "b", None], hidden=HIDDEN),
        discard_request_mask=SimpleNamespace(np=np.array([False, True, False])),
    )
    call = {
        "common_attn_metadata": common, "num_speculative_tokens": 3,
        "target_hidden_states": HIDDEN,
    }  # fmt: skip
    step = vllm_v1._ModelCall(runner, SimpleNamespace(hidden=HIDDEN), None, (), call).step()
    runner.discard_request_mask.np[:] = True
    assert _checked(step) == (("a", "b"), b"\0\1", 3), "of then"


def test_a_step_of_a_drafter_that_is_called_with_another_k() -> None:
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(num_reqs=1, req_ids=["a"], hidden=HIDDEN),
        discard_request_mask=SimpleNamespace(np=np.array([True])), num_spec_tokens=2,
    )  # fmt: skip
    assert _checked(vllm_v1._LookupCall(runner, None, None, (HIDDEN,), {}).step()) == (
        ("a",),
        b"\1",
        2,
    )
    asked = vllm_v1._LookupCall(runner, None, None, (HIDDEN,), {"num_speculative_tokens": 1})
    assert asked.step().k == 1


def test_a_step_of_the_v2_runner() -> None:
    class Speculator:
        num_speculative_steps = 3

        def propose(self, input_batch: Any, attn_metadata: Any, hidden: Any) -> None: ...

    batch = SimpleNamespace(
        num_reqs=2, req_ids=["a", "b"], hidden=HIDDEN,
        num_computed_prefill_tokens_np=np.array([4, 4]), num_scheduled_tokens=np.array([4, 2]),
        prefill_len_np=np.array([8, 8]),
    )  # fmt: skip
    speculator = Speculator()
    args = (batch, {"layer": HIDDEN}, HIDDEN)
    call = vllm_v2._ModelCall(SimpleNamespace(), speculator, Speculator.propose, args, {})
    assert _checked(call.step()) == (("a", "b"), b"\0\1", 3)
