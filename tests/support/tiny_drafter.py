"""A drafter with vLLM's layout, small enough to compute by hand what the probe should record."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from support.runs import Spec, manifest
from torch import nn

from driftscope.trace.reader import Trace, read_trace
from driftscope.trace.records import edges_of
from driftscope.trace.writer import TraceWriter
from driftscope.trace.writer_files import create_run
from driftscope.vocabulary import BY_DEPTH, FED_RMS, MASSES, POSTNORM_RMS
from driftscope_probes.buffers import ChainBuffers, Layout
from driftscope_probes.discovery import Anatomy
from driftscope_probes.drafter import Drafter, DrafterKind
from driftscope_probes.encoder import complete
from driftscope_probes.engine import DeviceStep, DraftCall, DraftStep
from driftscope_probes.guard import Guard
from driftscope_probes.kernels import Kernels, TorchKernels
from driftscope_probes.meter import Meter
from driftscope_probes.recorder import assemble_recorder
from driftscope_probes.settings import Settings
from driftscope_probes.taps import Taps
from driftscope_probes.torch_masses import ChainSlots, sink_mask
from driftscope_probes.vllm.drafter import drafter_of
from driftscope_probes.vllm.schedule import VllmSchedules
from driftscope_probes.vllm.support import EAGLE3


def chains_of(
    k: int, positions: Sequence[int], prompts: Sequence[int], sinks: Sequence[int], **more: Any
) -> ChainSlots:
    """Return chains of `k` tokens whose first query is at these positions."""
    return ChainSlots(
        k=k,
        position=torch.tensor(positions),
        prompt_tokens=torch.tensor(prompts),
        sink_slots=torch.tensor(sinks, dtype=torch.int64),
        is_sink=sink_mask(tuple(sinks)),
        **more,
    )


def on_host(chains: ChainSlots) -> ChainSlots:
    """Return the same with NumPy arrays."""
    return replace(
        chains,
        position=chains.position.numpy(),
        prompt_tokens=chains.prompt_tokens.numpy(),
        sink_slots=chains.sink_slots.numpy(),
        is_sink=chains.is_sink.numpy(),
    )


HIDDEN, HEADS, KV_HEADS, SIZE, VOCABULARY, AUX, SCALE = 16, 4, 2, 4, 11, 3, 0.5
BLOCKS, BLOCK_SIZE, TABLE = 12, 4, 5
MAX_REQUESTS, MAX_SLOTS, K = 4, 64, 3
LAYERS = ("model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn")


class Norm(nn.Module):
    """A norm like vLLM's RMSNorm, which dispatches through `_forward_method`."""

    def __init__(self, size: int = HIDDEN) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, size))
        self._forward_method = self._native

    def _native(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        total = x if residual is None else x + residual
        normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True)) * self.weight
        return normed if residual is None else (normed, total)

    def forward(self, *args: torch.Tensor) -> Any:
        return self._forward_method(*args)


class AttentionImpl:
    """Writes keys and values to the slots that meta.position and the block table give, and attends
    to all slots up to a query's own."""

    scale = SCALE

    def forward(
        self, _layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, attn_metadata: Any
    ) -> torch.Tensor:
        cache, meta = kv_cache, attn_metadata
        if meta is None:
            return torch.zeros_like(query).flatten(1)
        block = meta.block_table[meta.request, meta.position // BLOCK_SIZE].long()
        both = torch.cat([x.view(-1, KV_HEADS, SIZE) for x in (key, value)], -1)
        cache[block, :, meta.position % BLOCK_SIZE] = both
        rows = []
        for q, request, position in zip(query, meta.request, meta.position.tolist(), strict=True):
            pages = cache[meta.block_table[request].long()].transpose(1, 2).flatten(0, 1)
            seen = pages[: position + 1].repeat_interleave(HEADS // KV_HEADS, 1)
            rows.append(attended(q, seen[..., :SIZE], seen[..., SIZE:]))
        return torch.stack(rows)


def attended(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return [heads * size] from a query [heads, size] and keys and values [slots, heads, size]."""
    weights = torch.einsum("hd,nhd->hn", q, keys).mul(SCALE).softmax(-1)
    return torch.einsum("hn,nhd->hd", weights, values).flatten()


class Attention(nn.Module):
    """A layer like vLLM's, with the cache layout of TRITON_ATTN."""

    head_size, num_heads, num_kv_heads, sliding_window = SIZE, HEADS, KV_HEADS, None

    def __init__(self) -> None:
        super().__init__()
        self.impl = AttentionImpl()
        self.kv_cache = torch.zeros(BLOCKS, KV_HEADS, BLOCK_SIZE, 2 * SIZE)

    def get_attn_backend(self) -> Any:
        return SimpleNamespace(get_name=lambda: "TRITON_ATTN")


class Inner(nn.Module):
    use_aux_hidden_state = True
    num_aux_hidden_states = AUX

    def __init__(self, *, fc_norm: bool, norm_output: bool, norm_before_fc: bool) -> None:
        super().__init__()
        self.norm_before_fc = norm_before_fc
        self.input_norm = Norm(AUX * HIDDEN) if norm_before_fc else None
        self.norm, self.fc = Norm(), nn.Linear(AUX * HIDDEN, HIDDEN, bias=False)
        self.fc_norm = nn.ModuleList([Norm() for _ in range(AUX)]) if fc_norm else None
        self.norm_output = norm_output
        self.attention = nn.ModuleList([Attention() for _ in LAYERS])
        width = (HEADS + 2 * KV_HEADS) * SIZE
        self.qkv = nn.ModuleList([nn.Linear(HIDDEN, width, bias=False) for _ in LAYERS])


class Eagle3LlamaForCausalLM(nn.Module):
    """A drafter with the name of vLLM's class, by which drafters are recognised."""

    def __init__(self, **flags: bool) -> None:
        super().__init__()
        self.model = Inner(**flags)
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.config = SimpleNamespace(norm_before_residual=True)

    def combine_hidden_states(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.model.input_norm is not None:
            hidden = self.model.input_norm(hidden)
        if self.model.fc_norm is not None:
            parts = hidden.chunk(AUX, dim=-1)
            normed = [norm(x) for norm, x in zip(self.model.fc_norm, parts, strict=True)]
            hidden = torch.cat(normed, dim=-1)
        return self.model.fc(hidden)  # type: ignore[no-any-return]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden)  # type: ignore[no-any-return]

    def forward(self, *, hidden_states: torch.Tensor, meta: Any) -> Any:
        inner, residual, out = self.model, hidden_states, torch.zeros_like(hidden_states)
        for attention, qkv in zip(inner.attention, inner.qkv, strict=True):
            residual = residual + out
            q, k, v = _split(qkv(residual))
            call = (q.view(-1, HEADS, SIZE), k, v, attention.kv_cache, meta)
            out = attention.impl.forward(attention, *call)
        normed, total = inner.norm(out, residual)
        return normed, normed if inner.norm_output else total


def _split(qkv: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return qkv.split([HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE], dim=-1)


class Call(DraftCall):
    """The call that drafts a batch as the engine would, without graphs."""

    def __init__(
        self, batch: Batch, serve: Callable[[], Any], without_graphs: Callable[[], Any]
    ) -> None:
        self._batch, self._serve, self._without_graphs = batch, serve, without_graphs

    @property
    def k(self) -> int:
        return self._batch.k

    def step(self) -> DraftStep:
        return self._batch.view

    def on_device(self) -> DeviceStep:
        return self._batch.on_device()

    def serve(self) -> Any:
        return self._serve()

    def without_graphs(self) -> Any:
        return self._without_graphs()


class Batch:
    """Two requests, the second with a shorter context; drafts K tokens as vLLM's proposer does."""

    requests, positions, prompt_tokens = ("a", "b"), (9, 4), (6, 5)
    tokens = (3, 2)
    """Number of rows of each request in the forward at depth 1."""
    block_table = torch.tensor([[7, 2, 9, 4, -1], [5, 11, 0, -1, -1]])

    def __init__(
        self, holder: Any, prefilling: tuple[bool, bool] = (False, False), k: int = K
    ) -> None:
        """`holder.model` is the drafter, as in a proposer."""
        self.holder, self.k = holder, k
        generator = torch.Generator().manual_seed(3)
        self.keys = torch.randn(len(LAYERS), 2, MAX_SLOTS, KV_HEADS, SIZE, generator=generator)
        self.values = torch.randn(self.keys.shape, generator=generator)
        """Content of the context's slots before the drafter runs."""
        self.aux = torch.randn(sum(self.tokens), AUX * HIDDEN, generator=generator)
        self.rows = torch.tensor([2, 4])
        self._write_context()
        self.made = 0
        """Number of device steps that were requested: only recorded ones cost anything."""
        self.view = DraftStep(self.requests, prefilling=bytes(prefilling), k=k)
        self.call = Call(self, self.draft, self.draft)

    def on_device(self) -> DeviceStep:
        self.made += 1
        return DeviceStep(
            rows=self.rows,
            position=torch.tensor(self.positions),
            block_tables=dict.fromkeys(LAYERS, self.block_table),
            prompt_tokens=np.array(self.prompt_tokens),
            max_context=max(self.positions) + 1,
        )

    def _write_context(self) -> None:
        for layer, attention in enumerate(self.holder.model.model.attention):
            # Slots that no request wrote may hold any value.
            attention.kv_cache.fill_(torch.nan)
            for b, position in enumerate(self.positions):
                slot = torch.arange(position + 1)
                block = self.block_table[b, slot // BLOCK_SIZE]
                keys = self.keys[layer, b, : position + 1]
                values = self.values[layer, b, : position + 1]
                both = torch.cat((keys, values), -1)
                attention.kv_cache[block, :, slot % BLOCK_SIZE] = both

    def draft(self) -> torch.Tensor:
        """Return the drafted token ids, [B, K]."""
        model = self.holder.model
        request = torch.tensor([0, 0, 0, 1, 1])
        ends = zip(self.positions, self.tokens, strict=True)
        slots = torch.cat([torch.arange(end - n + 1, end + 1) for end, n in ends])
        hidden, drafts = model.combine_hidden_states(self.aux), [torch.empty(2, 0).long()]
        for depth in range(1, self.k + 1):
            meta = SimpleNamespace(request=request, position=slots, block_table=self.block_table)
            postnorm, fed = model(hidden_states=hidden, meta=meta)
            rows = self.rows if depth == 1 else torch.arange(2)
            drafts.append(model.compute_logits(postnorm[rows]).argmax(-1, keepdim=True))
            hidden, request = fed[rows], torch.arange(2)
            slots = torch.tensor(self.positions) + depth
        return torch.cat(drafts, dim=1)


def by_hand(batch: Batch, model: Any, sink_slots: tuple[int, ...]) -> list[dict[str, np.ndarray]]:
    """Return every figure of each request's chain, in float64 and one request at a time.

    By name: [K] per depth, `masses` [K, layers, heads, 5], `distances` [K, layers, bins of the
    longest chain], `aux_rms` and `aux_norm_rms` [AUX], `fc_rms` [1].
    """
    ends = torch.tensor(batch.tokens).cumsum(0)
    return [
        _chain_by_hand(batch, model, b, slice(ends[b] - n, ends[b]), sink_slots)
        for b, n in enumerate(batch.tokens)
    ]


def _chain_by_hand(
    batch: Batch, model: Any, b: int, mine: slice, sink_slots: tuple[int, ...]
) -> dict[str, np.ndarray]:
    inner, position = model.model, batch.positions[b]
    states = batch.aux[mine].double().chunk(AUX, -1)
    normed = states
    if inner.norm_before_fc:
        normed = _norm_by_hand(torch.cat(states, -1), inner.input_norm).chunk(AUX, -1)
    if inner.fc_norm is not None:
        normed = tuple(_norm_by_hand(x, n) for x, n in zip(normed, inner.fc_norm, strict=True))
    hidden = torch.cat(normed, -1) @ inner.fc.weight.double().T
    found: dict[str, Any] = {name: [] for name in (*BY_DEPTH, "masses", "distances")}
    found["aux_rms"] = [rms(x[-1]) for x in states]
    found["aux_norm_rms"] = [rms(x[-1]) for x in normed]
    found["fc_rms"] = [rms(hidden[-1])]
    keys, values = (
        [layer[b, : position + 1].double().clone() for layer in of_all]
        for of_all in (batch.keys, batch.values)
    )
    for depth in range(1, batch.k + 1):
        out, residual, masses, distances = torch.zeros_like(hidden), hidden, [], []
        for layer, qkv in enumerate(inner.qkv):
            residual = residual + out
            q, k, v = _split(residual @ qkv.weight.double().T)
            for known, new in ((keys, k), (values, v)):
                written = new.view(-1, KV_HEADS, SIZE)
                if depth == 1:
                    known[layer][position + 1 - len(written) :] = written
                else:
                    known[layer] = torch.cat((known[layer], written))
            every = [x[layer].repeat_interleave(HEADS // KV_HEADS, 1) for x in (keys, values)]
            own = len(keys[layer]) - 1
            scores = torch.einsum("hd,shd->hs", q[-1].view(HEADS, SIZE), every[0]) * SCALE
            place = position, batch.prompt_tokens[b], own, sink_slots, K
            by_class, by_distance = sorted_weights(scores.softmax(-1), *place)
            masses.append(by_class.tolist())
            distances.append(by_distance.tolist())
            ends = range(own + 1 - len(q), own + 1)
            out = torch.stack(
                [
                    attended(one.view(HEADS, SIZE), *(x[: end + 1] for x in every))
                    for one, end in zip(q, ends, strict=True)
                ]
            )
        total = out + residual
        postnorm = _norm_by_hand(total, inner.norm)
        fed = postnorm if inner.norm_output else total
        p = (postnorm[-1] @ model.lm_head.weight.double().T).softmax(-1)
        for name, x in (("in", hidden), ("prenorm", total), ("postnorm", postnorm), ("fed", fed)):
            found[f"{name}_rms"].append(rms(x[-1]))
        found["top1"].append(p.max().item())
        found["entropy"].append(-(p * p.log()).sum().item())
        found["masses"].append(masses)
        found["distances"].append(distances)
        hidden = fed[-1:]
    return {name: np.array(values) for name, values in found.items()}


def sorted_weights(
    weights: torch.Tensor, position: int, prompt: int, own: int, sinks: Sequence[int], k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the masses by class [heads, 5] and by distance [bins], mean over heads, of a query in
    slot `own` with these weights [heads, slots]: slot by slot, in the plain way."""
    edges = edges_of(k)
    masses = weights.new_zeros(len(weights), len(MASSES))
    masses[:, MASSES.index("null_mass")] = torch.nan
    bins = weights.new_zeros(len(edges))
    for slot, weight in enumerate(weights.T):
        name = "prompt_mass" if slot < prompt else "generated_mass"
        if slot > position:
            name = "self_mass"
        elif slot in sinks:
            name = "sink_mass"
        masses[:, MASSES.index(name)] += weight
        if name != "sink_mass":
            bins[sum(edge <= own - slot for edge in edges) - 1] += weight.mean()
    return masses, bins


def _norm_by_hand(x: torch.Tensor, norm: Any) -> torch.Tensor:
    scaled: torch.Tensor = x / x.square().mean(-1, keepdim=True).sqrt() * norm.weight.double()
    return scaled


def rms(x: torch.Tensor) -> float:
    """||x||_2 / sqrt(dim)."""
    return float((x.square().sum() / len(x)).sqrt())


def engine_config(k: int = K) -> Any:
    """Return the part of vLLM's configuration that a drafter reads."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            num_speculative_tokens=k, draft_model_config=SimpleNamespace(dtype=torch.float32)
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=MAX_REQUESTS),
        model_config=SimpleNamespace(max_model_len=MAX_SLOTS, enforce_eager=True),
        compilation_config=SimpleNamespace(mode=0, static_forward_context={}),
    )


FOUND = replace(EAGLE3, outputs={POSTNORM_RMS: 0, FED_RMS: -1}, norms=("model.norm",))
"""Kind of these drafters, whose residual stream is tapped at the final norm."""


def watched(kind: DrafterKind, model: Any, attention: Mapping[str, Any], *_: object) -> Anatomy:
    """Stand in for `vllm.drafter._watched`, whose forward needs an engine."""
    return Anatomy(outputs=FOUND.outputs, norms=FOUND.norms, layers=tuple(attention))


def tiny_drafter(
    *, fc_norm: bool = False, norm_output: bool = False, norm_before_fc: bool = False, k: int = K
) -> Drafter:
    """Return a drafter with the flags of EAGLE-3 (all off), EAGLE-3.1 (the first two on) or
    others."""
    with warnings.catch_warnings():  # the taps ask vLLM how a forward runs
        warnings.simplefilter("ignore")
        import vllm.forward_context  # noqa: F401
    torch.manual_seed(2)
    model = Eagle3LlamaForCausalLM(
        fc_norm=fc_norm, norm_output=norm_output, norm_before_fc=norm_before_fc
    ).eval()
    model.requires_grad_(False)
    return drafter_of(model, attention_of(model), engine_config(k), FOUND)


def attention_of(model: Any) -> dict[str, Any]:
    """Return the drafter's attention modules by name."""
    return dict(zip(LAYERS, model.model.attention, strict=True))


SINKS = (0, 3)


class Bench:
    """A drafter with its taps on, in the hands of a proposer; records chains without a recorder."""

    make_kernels: ClassVar[Callable[[ChainBuffers], Kernels]] = TorchKernels
    use_triton: ClassVar = False

    def __init__(self, drafter: Drafter, guard: Guard, *, in_graph: bool = False) -> None:
        layout = Layout(depths=drafter.k, layers=len(LAYERS), aux=AUX)
        self.drafter, self.proposer = drafter, SimpleNamespace(model=drafter.model)
        self.buffers = ChainBuffers(layout, MAX_REQUESTS, drafter.device)
        self.kernels = type(self).make_kernels(self.buffers)
        self.meter = Meter(drafter, self.buffers, SINKS, use_triton=self.use_triton)
        self.taps = Taps(drafter, self.kernels, guard, in_graph=in_graph)
        self.taps.attach(self.proposer, "model")

    def record(self, batch: Batch) -> torch.Tensor:
        at = batch.on_device()
        self.taps.switch.serving()
        self.kernels.begin(at.rows, at.position)
        self.taps.switch.begin()
        drafts = batch.draft()
        self.noted = len(self.taps.switch.notes)
        self.taps.switch.flush_notes()
        self.taps.switch.active = False
        self.kernels.finish()
        self.meter.measure(batch.view, at)
        return drafts

    def found(self, name: str) -> np.ndarray:
        """[2, numbers]."""
        if name not in BY_DEPTH:
            return self.buffers.part(name, 2).numpy()
        depths = {column: self.buffers.part(column, 2).numpy().copy() for column in BY_DEPTH}
        complete(depths, self.taps.observer.aliased_columns)
        return depths[name]

    def figures_are_by_hand(self, batch: Batch) -> None:
        """Each figure of the chains of `batch` is that of `by_hand`."""
        for b, wanted in enumerate(by_hand(batch, self.drafter.model, SINKS)):
            aux = ["aux_norm_rms"] * bool(self.drafter.aux_norms)
            for name in (*BY_DEPTH, "aux_rms", "fc_rms", *aux):
                found = self.found(name)[b]
                np.testing.assert_allclose(found, wanted[name], rtol=1e-5, err_msg=name)
            means = wanted["masses"].mean(2)
            np.testing.assert_allclose(self.found("masses")[b], means.reshape(-1), atol=1e-6)
            assert means[:, :, :4].sum(-1) == pytest.approx(1.0)
            assert (means[0, :, 3] == 0).all(), "a chain sees nothing of itself at depth 1"
            assert (means[1:, :, 3] > 0).all()


@dataclass
class Worker:
    """Calls a recorder like vLLM's hooks do, around a drafter that runs with or without graphs."""

    drafter: Drafter
    settings: Settings
    spec: Spec = field(default_factory=Spec)
    calls: list[str] = field(default_factory=list)
    """How each chain was drafted."""
    drafts: list[torch.Tensor] = field(default_factory=list)
    """Tokens that were served."""
    batches: list[Batch] = field(default_factory=list)

    def __post_init__(self) -> None:
        path = self.settings.trace
        create_run(path, manifest(self.spec))
        self.proposer = SimpleNamespace(model=self.drafter.model)
        self.writer = TraceWriter(path, source="worker0-1")
        self.recorder = assemble_recorder(
            self.drafter, self.settings, self.writer, schedules=VllmSchedules()
        )
        self.recorder.taps.attach(self.proposer, "model")

    def step(
        self,
        prefilling: tuple[bool, bool] | None = (False, False),
        k: int = K,
        batch: Batch | None = None,
    ) -> None:
        """One step of the engine; None: the drafter does not run."""
        self.recorder.step_started()
        if prefilling is not None:
            batch = batch or Batch(self.proposer, prefilling, k=k)
            self.batches.append(batch)
            ways = [functools.partial(self._draft, how, batch) for how in ("served", "eager")]
            self.drafts.append(self.recorder.draft(Call(batch, *ways)))
        self.recorder.step_ended(lambda: 2)

    def _draft(self, how: str, batch: Batch) -> torch.Tensor:
        self.calls.append(how)
        return batch.draft()

    def trace(self) -> Trace:
        """End the run and read it."""
        self.recorder.close()
        return read_trace(self.settings.trace)
