"""A draft of SGLang's, as the recorder sees it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from driftscope_probes.sglang.chain import DRAFT_GRAPH, SglangDraftCall, without_graph

K = 3


def request(rid: str, prompt: int, output: int) -> Any:
    return SimpleNamespace(rid=rid, origin_input_ids=[0] * prompt, output_ids=[0] * output)


@pytest.fixture
def worker() -> Any:
    table = torch.arange(4 * 64, dtype=torch.int32).view(4, 64)
    return SimpleNamespace(
        speculative_num_steps=K,
        speculative_num_draft_tokens=K + 1,
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        cuda_graph_runner="graph",
    )


def call(worker: Any, original: Any = None, **parts: Any) -> SglangDraftCall:
    batch = SimpleNamespace(
        reqs=[request("a", 5, 3), request("b", 20, 1)],
        seq_lens=torch.tensor([7, 20]),
        req_pool_indices=torch.tensor([2, 0]),
    )
    return SglangDraftCall(worker, batch, original, layers=("layer",), **parts)


def test_the_first_query_is_that_of_the_last_verified_slot(worker: Any) -> None:
    at = call(worker).on_device()
    assert at.position.tolist() == [6, 19] and at.prompt_tokens.tolist() == [5, 20]
    assert at.rows.tolist() == [0, 1], "depth 1 is passed on by request, not by token"
    table = at.block_tables["layer"]
    assert table[:, 0].tolist() == [128, 0], "rows of the table are those of the requests"
    assert table.shape[1] == at.max_context >= 19 + K + 1, "all slots of the chain are covered"


def test_requests_without_a_first_depth_do_not_count(worker: Any) -> None:
    step = call(worker, missing=frozenset("b")).step()
    assert (step.requests, step.prefilling, step.k) == (("a", "b"), b"\0\1", K)


def test_tokens_are_those_after_the_root(worker: Any) -> None:
    tokens = torch.arange(2 * (K + 1))
    drafts = call(worker, lambda: SimpleNamespace(draft_token=tokens)).serve()
    assert drafts is not None and drafts.tolist() == [[1, 2, 3], [5, 6, 7]]


@pytest.mark.parametrize("result", [SimpleNamespace(), SimpleNamespace(draft_token=torch.ones(3))])
def test_a_result_that_is_laid_out_otherwise_is_served(worker: Any, result: Any) -> None:
    made = call(worker, lambda: result)
    assert made.serve() is None and made.result is result


def test_recorded_rounds_run_without_graphs(worker: Any) -> None:
    order: list[object] = []

    def original() -> Any:
        order.append(worker.cuda_graph_runner)
        return SimpleNamespace(draft_token=torch.arange(8))

    call(worker, original, first=lambda: order.append("first depth")).without_graphs()
    assert order == ["first depth", None] and worker.cuda_graph_runner == "graph"


def test_a_graph_is_put_back_if_the_engine_raises(worker: Any) -> None:
    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        without_graph(worker, DRAFT_GRAPH, fails)
    assert worker.cuda_graph_runner == "graph"
