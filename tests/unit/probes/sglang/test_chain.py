"""A chain is chosen before its first depth; the choice then holds for its draft."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from driftscope.trace.writer import TraceWriter
from driftscope_probes.drafter import DrafterKind
from driftscope_probes.guard import Guard
from driftscope_probes.sampler import Sampler
from driftscope_probes.sglang.chain import (
    DRAFT_GRAPH,
    AheadSampler,
    DrafterTaps,
    FirstDepths,
    ForwardRows,
    SglangDraftCall,
    States,
    without_graph,
)
from driftscope_probes.sglang.drafter import PoolKeys, SglangAttentionLayer
from driftscope_probes.taps import HookSwitch


@given(st.integers(1, 7), st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_looking_ahead_changes_no_decision(every: int, looks: list[int]) -> None:
    plain, ahead = Sampler(every=every), AheadSampler(every=every)
    for times in looks:
        seen = {ahead.ahead() for _ in range(times)}
        taken = ahead.take()
        assert taken == plain.take() and seen <= {taken}


def test_a_stop_between_the_choice_and_the_draft_holds() -> None:
    sampler = AheadSampler(every=1)
    assert sampler.ahead()
    sampler.stop()
    assert not sampler.take()
    sampler.start()
    assert sampler.take()


def states(*values: float) -> States:
    column = torch.tensor(values)[:, None]
    return {"query a": column, "fed_rms": 10 * column, "normed 0": column, "normed 1": column}


def test_rows_follow_the_batch_across_forwards() -> None:
    """A newer round of a request replaces its rows, and a skipped one drops them."""
    kept = FirstDepths(8)
    kept.keep(("a", "b"), states(1, 2))
    kept.keep(("c",), states(3))
    taken = kept.take(("b", "c", "a"))
    assert taken is not None
    assert {name: rows.flatten().tolist() for name, rows in taken.items()} == {
        "query a": [2, 3, 1],
        "fed_rms": [20, 30, 10],
        "normed 0": [2, 3, 1],
        "normed 1": [2, 3, 1],
    }
    kept.keep(("a", "b"), states(1, 2))
    kept.keep(("a",), states(5))
    kept.drop(("b",))
    assert kept.missing(("a", "b")) == {"b"}
    taken = kept.take(("a", "b"))
    assert taken is not None and taken["query a"][0] == 5 and len(taken["query a"]) == 2


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
    return SglangDraftCall(
        worker=worker, batch=batch, original=original, layers=("layer",), **parts
    )


def test_the_first_query_is_that_of_the_last_verified_slot(worker: Any) -> None:
    """Requests without a first depth do not count."""
    made = call(worker, missing=frozenset("b"))
    step, at = made.step(), made.on_device()
    assert (step.requests, step.prefilling, step.k) == (("a", "b"), b"\0\1", K)
    assert at.position.tolist() == [6, 19] and at.prompt_tokens.tolist() == [5, 20]
    assert at.rows.tolist() == [0, 1], "depth 1 is passed on by request, not by token"
    table = at.block_tables["layer"]
    assert table[:, 0].tolist() == [128, 0], "rows of the table are those of the requests"
    assert table.shape[1] == at.max_context >= 19 + K + 1, "all slots of the chain are covered"


@pytest.mark.parametrize(
    ("result", "tokens"),
    [
        ({"draft_token": torch.arange(2 * (K + 1))}, [[1, 2, 3], [5, 6, 7]]),  # after the root
        ({}, None),
        ({"draft_token": torch.ones(3)}, None),
    ],
    ids=["tokens", "no tokens", "another shape"],
)
def test_a_result_is_served_however_it_is_laid_out(
    worker: Any, result: dict[str, Any], tokens: list[list[int]] | None
) -> None:
    served = SimpleNamespace(**result)
    made = call(worker, lambda: served)
    drafts = made.serve()
    assert (drafts if drafts is None else drafts.tolist()) == tokens and made.result is served


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


DIM, LAYERS = 4, 3
WANTED = torch.tensor([1, 4])


def whole(*shape: int) -> torch.Tensor:
    """Return whole numbers, whose sums are exact."""
    return torch.randint(9, shape).float()


class Norm(nn.Module):
    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        return 2 * x if residual is None else (3 * (x + residual), x + residual)


class Attention(nn.Module):
    scaling, logit_cap, layer_id = 1.0, 0.0, 0

    def __init__(self, heads: int = 1, kv_heads: int = 1, size: int = DIM) -> None:
        super().__init__()
        self.tp_q_head_num, self.tp_k_head_num, self.qk_head_dim = heads, kv_heads, size

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return q


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention()

    def forward(self, *arguments: Any) -> torch.Tensor:
        return self.attn(arguments[2] + 1)  # type: ignore[no-any-return]


class Processor(nn.Module):
    """Computes logits of all rows, or of those that SGLang asked for."""

    def forward(self, _: Any, normed: torch.Tensor, __: Any, batch: Any, *fed: Any) -> Any:
        states = fed[0] if fed else normed
        return SimpleNamespace(
            next_token_logits=normed[batch.rows], hidden_states=states[batch.rows]
        )


class Model(nn.Module):
    """A drafter laid out like SGLang's of EAGLE-3."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.logits_processor = nn.Module(), Processor()
        self.model.layers = nn.ModuleList([Layer()])
        self.add_parts(self.model)

    def add_parts(self, inner: Any) -> None:
        inner.fc, inner.norm = nn.Linear(LAYERS * DIM, DIM, bias=False), Norm()
        inner.fc_norm = nn.ModuleList(Norm() for _ in range(LAYERS))

    def enter(self, inner: Any, state: torch.Tensor) -> torch.Tensor:
        if state.shape[-1] == DIM:
            return state
        chunks = zip(inner.fc_norm, state.chunk(LAYERS, -1), strict=True)
        return inner.fc(torch.cat([norm(chunk) for norm, chunk in chunks], -1))  # type: ignore[no-any-return]

    def leave(self, inner: Any, *streams: torch.Tensor) -> tuple[Any, ...]:
        return inner.norm(*streams)  # type: ignore[no-any-return]

    def forward(self, state: torch.Tensor, rows: Any = slice(None)) -> Any:
        """Run on a batch whose requests were handed `state`."""
        batch = SimpleNamespace(spec_info=SimpleNamespace(hidden_states=state), rows=rows)
        hidden = self.enter(self.model, state)
        out = self.model.layers[0](None, None, hidden)  # type: ignore[index, operator]
        normed, *fed = self.leave(self.model, out, hidden)
        return self.logits_processor(None, normed, None, batch, *fed)


class Eagle1(Model):
    """A drafter laid out like SGLang's of EAGLE-1: `fc` reads embedding and state each time."""

    def add_parts(self, inner: Any) -> None:
        inner.fc = nn.Linear(2 * DIM, DIM)

    def enter(self, inner: Any, state: torch.Tensor) -> torch.Tensor:
        return inner.fc(torch.cat([state + 1, state], -1))  # type: ignore[no-any-return]

    def leave(self, _: Any, *streams: torch.Tensor) -> tuple[Any, ...]:
        return streams[:1]


class MimoHead(Model):
    """A drafter laid out like SGLang's of MiMo: each input has a norm, and so has the output."""

    def add_parts(self, inner: Any) -> None:
        inner.hidden_layernorm, inner.final_layernorm = Norm(), Norm()

    def enter(self, inner: Any, state: torch.Tensor) -> torch.Tensor:
        return inner.hidden_layernorm(state)  # type: ignore[no-any-return]

    def leave(self, inner: Any, *streams: torch.Tensor) -> tuple[Any, ...]:
        return (inner.final_layernorm(streams[0]),)


class Kernels:
    """Notes what the taps pass on."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[list[float]]]] = []

    def advance(self, entering: torch.Tensor | None = None, **_: bool) -> None:
        self.seen.append(("advance", []))
        if entering is not None:
            self.seen.append(("in_rms", entering.tolist()))

    def rms_of_outputs(self, outputs: list[tuple[str, torch.Tensor]]) -> None:
        self.seen += [(name, x.tolist()) for name, x in outputs]

    def rms_of_chunks(self, x: torch.Tensor, name: str, chunks: int, first: int = 0) -> None:
        self.seen.append((f"{name}/{chunks}+{first}", x.tolist()))

    def copy_query(self, layer: str, query: torch.Tensor) -> None:
        self.seen.append((f"query {layer}", query.tolist()))

    def confidence(self, logits: torch.Tensor, **_: bool) -> None:
        self.seen.append(("logits", logits.tolist()))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.seen]


def tapped(model: Any, kernels: Kernels, folder: Path, **parts: Any) -> DrafterTaps:
    layers = {"layer": SglangAttentionLayer(model.model.layers[0].attn, None)}
    kind = DrafterKind(
        name="", methods=(), outputs={"postnorm_rms": 0, "fed_rms": -1}, norms=("norm",)
    )
    plain = {"model": model, "layers": layers, "aux_states": 0, "aux_norms": (), "kind": kind}
    guard = Guard(TraceWriter(folder / "run", source="worker0-1"))
    drafter: Any = SimpleNamespace(**{**plain, **parts})
    taps = DrafterTaps(drafter, kernels, guard, in_graph=False)  # type: ignore[arg-type]
    taps.attach(None, "draft_runner")
    return taps


@pytest.fixture
def parts(tmp_path: Path) -> tuple[DrafterTaps, Any, Kernels]:
    model: Any = Model()
    kernels = Kernels()
    norms = {"aux_norms": tuple(model.model.fc_norm), "final_norms": (model.model.norm,)}
    return tapped(model, kernels, tmp_path, aux_states=LAYERS, **norms), model, kernels


LATER = ["advance", "query layer", "prenorm_rms", "postnorm_rms", "fed_rms", "logits"]


def test_a_later_depth_goes_to_the_kernels_at_once(parts: Any) -> None:
    taps, model, kernels = parts
    taps.hooks.install()
    taps.switch.active = True
    hidden = whole(2, DIM)
    model(hidden)
    assert kernels.names == LATER
    seen = dict(kernels.seen)
    assert seen["query layer"] == (hidden + 1).tolist()
    assert seen["prenorm_rms"] == seen["fed_rms"] == (2 * hidden + 1).tolist()
    assert seen["postnorm_rms"] == seen["logits"] == (3 * (2 * hidden + 1)).tolist()


@pytest.mark.parametrize("pruned", [False, True])
def test_the_first_depth_is_kept_and_passed_on_later(parts: Any, pruned: bool) -> None:
    taps, model, kernels = parts
    wanted, hidden = torch.tensor([1, 4]), whole(6, LAYERS * DIM)
    taps.extending(ForwardRows(wanted, pruned=pruned))
    model(hidden, wanted if pruned else slice(None))
    states = taps.extended()
    assert states is not None and not kernels.seen
    taps.first_depth(states)
    norms = [f"aux_norm_rms/1+{index}" for index in range(LAYERS)]
    assert kernels.names == ["aux_rms/3+0", "fc_rms/1+0", *norms, "advance", "in_rms", *LATER[1:]]
    seen = dict(kernels.seen)
    assert seen["aux_rms/3+0"] == hidden[wanted].tolist(), "before its norms"
    assert seen["aux_norm_rms/1+1"] == (2 * hidden[wanted, DIM : 2 * DIM]).tolist()
    assert seen["in_rms"] == seen["fc_rms/1+0"] and len(seen["logits"]) == 2


def test_hooks_are_gone_when_nothing_is_recorded(parts: Any) -> None:
    taps, model, kernels = parts
    model(whole(2, LAYERS * DIM))
    taps.extending(ForwardRows(torch.tensor([0]), pruned=False))
    assert taps.extended() is None, "the forward did not run"
    assert not kernels.seen and not taps.switch.active
    modules = [module for module in model.modules() if module._forward_hooks]
    assert not modules and "forward" not in vars(model.model.layers[0].attn)


def _first_depth(
    model: Any, folder: Path, outputs: dict[str, int], *final_norms: Any
) -> tuple[Kernels, torch.Tensor]:
    """Return what reaches the kernels of depth 1 of requests whose rows are 1 and 4, and the states
    that these are handed."""
    kernels, state = Kernels(), whole(6, DIM)
    kind = DrafterKind(name="", methods=(), outputs=outputs, norms=("norm",) * len(final_norms))
    taps = tapped(model, kernels, folder, kind=kind, final_norms=final_norms)
    taps.extending(ForwardRows(WANTED, pruned=False))
    model(state)
    states = taps.extended()
    assert states is not None
    taps.first_depth(states)
    return kernels, state[WANTED]


def test_an_eagle_1_drafter_has_neither_captured_layers_nor_a_final_norm(tmp_path: Path) -> None:
    kernels, state = _first_depth(Eagle1(), tmp_path, {"prenorm_rms": 0, "fed_rms": -1})
    assert kernels.names == ["advance", "in_rms", *(n for n in LATER[1:] if n != "postnorm_rms")]
    seen = dict(kernels.seen)
    assert seen["in_rms"] == state.tolist(), "the state beside the embedding"
    assert seen["prenorm_rms"] == seen["fed_rms"] == seen["logits"]


def test_a_mimo_head_has_no_captured_layers_and_feeds_what_its_final_norm_returns(
    tmp_path: Path,
) -> None:
    model: Any = MimoHead()
    outputs = {"postnorm_rms": 0, "fed_rms": -1}
    kernels, state = _first_depth(model, tmp_path, outputs, model.model.final_layernorm)
    assert kernels.names == ["advance", "in_rms", *LATER[1:]]
    seen, stream = dict(kernels.seen), 2 * state + 1
    assert seen["in_rms"] == state.tolist(), "the state before its norm"
    assert seen["prenorm_rms"] == stream.tolist()
    assert seen["postnorm_rms"] == seen["fed_rms"] == seen["logits"] == (2 * stream).tolist()


HEADS, KV_HEADS, SIZE, SLOTS = 4, 2, 8, 12


def test_scores_are_products_with_the_rows_of_the_table(tmp_path: Path) -> None:
    """A tap sees queries only while recording."""
    keys, module = torch.randn(SLOTS, KV_HEADS, SIZE), Attention(HEADS, KV_HEADS, SIZE)
    wrapped = SglangAttentionLayer(module, SimpleNamespace(get_key_buffer=lambda _: keys))
    assert (wrapped.kind.heads, wrapped.kind.kv_heads, wrapped.query_size) == (4, 2, 8)
    assert torch.equal(PoolKeys().pages(wrapped.cache())[:, 0], keys)
    table = torch.tensor([[3, 1, 7, 0], [2, 2, 11, 5]], dtype=torch.int32)
    queries = torch.randn(2, KV_HEADS, 6, SIZE)
    scores = PoolKeys().score(queries, wrapped.cache(), table, 3)
    assert scores.shape == (2, 1, KV_HEADS, 6, 3)
    expected = torch.einsum("bhqd,bshd->bhqs", queries, keys[table[:, :3].long()])
    assert torch.allclose(scores[:, 0], expected)
    guard = Guard(TraceWriter(tmp_path / "run", source="worker0-1"))
    switch, seen = HookSwitch(guard, in_graph=False), list[torch.Tensor]()
    remove = wrapped.tap(lambda query, _: seen.append(query), switch)
    q = torch.randn(1, HEADS * SIZE)
    assert torch.equal(module(q), q) and not seen
    switch.active = True
    assert torch.equal(module(q), q) and len(seen) == 1
    remove()
    module(q)
    assert len(seen) == 1
