"""The interface of a loaded drafter, independent of engine and runner: its kind, its attention
layers and their keys, and the target's layers that are captured for it.

A drafter's config may name the captured layers. If it names none, vLLM uses the target's default
layers. In both cases a target keeps each layer once and passes the states on in the order of the
network, so the layers are read from the loaded target and not from the config.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from driftscope.errors import ProbeError
from driftscope.trace.manifest import (
    AUX_FROM_CONFIG,
    AUX_FROM_ENGINE,
    BY_DEPTH,
    BY_QUERY,
    Manifest,
)
from driftscope.vocabulary import RMS_BY_DEPTH, Execution

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionKind:
    """Attention parameters of one layer, read from the layer itself."""

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    window: int | None = None
    """Number of slots that a query sees, including its own; None: all."""
    chunk: int | None = None
    """Number of slots in a chunk, if a query sees only slots of its own chunk; None: no chunks."""
    softcap: float = 0.0
    """Scores become softcap * tanh(score / softcap); 0: unchanged."""
    sinks: torch.Tensor | None = None
    """[heads] learned biases: a slot without a value, whose mass is the class `null`."""

    @property
    def bounded(self) -> bool:
        """Whether a query may see only the last of the slots before it."""
        return bool(self.window or self.chunk)

    def first_seen(self, own: Any) -> Any:
        """Return the first slot that is seen from the slots `own`, an array or a tensor."""
        if self.chunk is not None:
            return own - own % self.chunk
        return own - (self.window or 0) + 1


class KeyReader(Protocol):
    """Reads the keys of a layer from its cache; a reader inherits what it has in common with
    others."""

    paged: bool = False
    """Whether `pages` can be used; otherwise only `score` can."""

    def score(
        self, queries: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor, length: int
    ) -> torch.Tensor:
        """Return the products of queries and keys, [B, blocks, kv_heads, Q, size] float32.

        `queries` [B, kv_heads, Q, head_size] float32 are multiplied with the keys of the first
        blocks of B requests, which cover at least `length` slots. A reader may treat all slots as
        one block. `block_table` [B, blocks] int; entries beyond a request's context may have any
        value.
        """

    def pages(self, kv_cache: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Return a view of the keys, [blocks, block_size, kv_heads, head_size]."""
        raise ProbeError(f"the keys of {type(self).__name__} are not in pages")

    def queries(self, queries: torch.Tensor) -> torch.Tensor:
        """Return the queries [B, K, heads * head_size], transformed to match these keys."""
        return queries


@runtime_checkable
class PackedKeyReader(KeyReader, Protocol):
    """Reads keys that a CPU backend has packed in blocks, in its own order."""

    in_order: bool
    """Whether the packed order is the plain one; valid after `order` was called."""

    def packed(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """Return a view of the packed keys, with a row for each block and head."""

    def order(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """Return [head_size * block_size] int64: the index of element (dim, slot) in such a row."""


Remove = Callable[[], None]
"""Function that removes a hook."""
Observer = Callable[["torch.Tensor", "torch.Tensor | None"], None]
"""Function that receives the queries [rows, heads, head_size] and the log-sum-exp [heads, rows], or
None if there is none."""


class Switch(Protocol):
    """Decides whether a hook runs."""

    @property
    def active(self) -> bool:
        """Whether a step is being recorded: hooks ask this first, because it is no function."""

    @property
    def should_record(self) -> bool:
        """Whether a hook that fires now must run."""

    @property
    def observe(self) -> Callable[[tuple[Any, ...]], Any]:
        """Function that runs a hook guarded; takes a tuple of its name, action and arguments."""


def stand_in(owner: Any, name: str, around: Callable[[Any], Callable[..., Any]]) -> Remove:
    """Replace a method of one object by `around(original)`; return the removal."""
    original, own = getattr(owner, name), name in vars(owner)
    setattr(owner, name, functools.wraps(original)(around(original)))
    return lambda: setattr(owner, name, original) if own else delattr(owner, name)


class AttentionLayer(Protocol):
    """An attention layer of an engine."""

    @property
    def kind(self) -> AttentionKind:
        """Attention parameters of the layer."""

    @property
    def reader(self) -> KeyReader:
        """Reader of the layer's keys; raises ProbeError for an unsupported attention backend."""

    @property
    def query_size(self) -> int:
        """Count of numbers in one head's query, as the tap sees it."""
        return self.kind.head_size

    def cache(self) -> torch.Tensor:
        """Return the layer's KV cache, which an engine may reallocate."""

    def tap(self, observer: Observer, switch: Switch) -> Remove:
        """Pass each call to `observer` while `switch` is on; return the tap's removal."""


class WitnessedLayer(AttentionLayer, Protocol):
    """An attention layer that the start-up witness can compute a second time."""

    def watch(self, keep: Callable[[torch.Tensor, torch.Tensor], None]) -> Remove:
        """Pass the queries and the result [rows, heads * value size] of each call to `keep`; return
        the removal."""

    def weigh(self, weights: torch.Tensor, block_table: torch.Tensor, length: int) -> torch.Tensor:
        """Return [K, heads, value size]: the values of the first `length` slots of one request,
        summed with the `weights` [K, heads, length]. `block_table` [1, blocks]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterKind:
    """A kind of drafter: how an engine runs it, and where its states are."""

    name: str
    methods: tuple[str, ...]
    """The engine's names of the speculation methods."""
    parallel: bool = False
    """Whether this is the method's `parallel_drafting` variant."""
    attention: bool = True
    """Whether the drafter has attention layers, whose masses are recorded."""
    model: bool = True
    """Whether a neural network drafts; otherwise only acceptance and timing are recorded."""
    fed: bool = True
    """Whether the input is the target's hidden state and, from depth 2 on, the drafter's own."""
    outputs: Mapping[str, int] = field(default_factory=dict)
    """Outputs of a forward: RMS column -> index in its tuple; one tensor is a 1-tuple."""
    head_norms: bool = False
    """Whether a norm runs between the forward and the output head."""
    norms: tuple[str, ...] = ()
    """Paths, which may contain *, of the modules whose input is the pre-norm residual stream."""
    block: bool = False
    """Whether all K tokens come from one forward with K queries per request, without depths."""
    heads: bool = False
    """Whether a list of K states is computed from one row per request."""
    causal: bool = True
    """Whether a query sees only slots up to its own; otherwise it sees all queries of its block."""
    lead: int = 0
    """Number of verified slots after p: 1 for a drafter whose slot i holds token i, because it then
    also has a slot for the newest token."""
    ahead: int = 0
    """Number of slots from the last verified one to that of the first query."""

    @property
    def chained(self) -> bool:
        """Whether later depths have one row per request, fed with the previous depth's output."""
        return self.fed and not (self.block or self.heads)

    @property
    def query_kind(self) -> str:
        """Value of `Manifest.query_kind`."""
        return BY_QUERY if self.block else BY_DEPTH

    @property
    def columns(self) -> tuple[str, ...]:
        """RMS columns by depth that are written, in the order of the network."""
        recorded = {*self.outputs, *(["in_rms"] if self.fed else [])}
        if self.norms:
            recorded.add("prenorm_rms")
        return tuple(name for name in RMS_BY_DEPTH if name in recorded)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drafter:
    """A drafter that an engine has loaded; nothing of it changes while it serves."""

    model: Any
    """The engine's drafter module, such as vLLM's Eagle3LlamaForCausalLM."""
    layers: Mapping[str, AttentionLayer]
    """Attention layers by name, in order of depth in the network."""
    kind: DrafterKind
    dtype: torch.dtype
    """Data type of activations; a parameter may have another, such as a table of token ids."""
    k: int
    """Largest chain length."""
    max_requests: int
    """Largest number of requests in a step."""
    max_slots: int
    """Number of slots in the longest context; drafts beyond it do not count."""
    compiled: bool = False
    """Whether the engine compiles models."""
    samples: bool = True
    """Whether the engine may change received logits in place, to sample or to mask tokens."""
    aux_states: int = 0
    """Number of captured target layers that are combined for the drafter."""
    backend: str = ""
    """The engine's name of the attention backend; empty without attention."""
    notes: tuple[str, ...] = ()
    """Notes on what of it is not recorded."""
    shares_cache: Callable[[], bool] = lambda: False
    """Whether other layers may write to the memory that holds the drafter's keys."""
    forward_mode: Callable[[], str] = lambda: Execution.EAGER
    """Returns the execution mode of the forward in progress, one of `Execution`."""
    offer_lse: Callable[[], bool] = lambda: False
    """Makes the attention kernel return its log-sum-exp; returns False if it has none."""

    @property
    def device(self) -> torch.device:
        """Device that the drafter runs on."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def queries(self) -> int:
        """Number of queries measured per request and forward: 1, or K for a block drafter."""
        return self.k if self.kind.block else 1

    @property
    def final_norms(self) -> tuple[Any, ...]:
        """Modules whose input is the pre-norm residual stream; one per head, if any."""
        return tuple(self.model.get_submodule(path) for path in self.kind.norms)

    @property
    def aux_norms(self) -> tuple[Any, ...]:
        """Norms whose output is the input of fc: `fc_norm`, or else the norm of norm_before_fc."""
        if not self.aux_states:
            return ()
        inner = self.model.model
        if per_layer := getattr(inner, "fc_norm", None):
            return tuple(per_layer)
        over_all = getattr(inner, "input_norm", None)
        return () if over_all is None else (over_all,)


_ON_TARGET = "aux_hidden_state_layers"
"""Attribute of vLLM's own models."""
_ON_TRANSFORMERS = "_output_aux_hidden_states_kwargs"
"""Attribute of the models that vLLM takes from transformers, with one key for each layer."""
_IN_CONFIG = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedLayers:
    """Layers whose hidden states a loaded target captures."""

    layers: tuple[int, ...] = ()
    """Layers in the order in which the drafter receives them; see `Manifest.aux_layers`."""
    source: str | None = None
    """Source of the layers; see `Manifest.aux_layers_source`."""


def captured_by(target: Any, chosen_in_config: Callable[[], Any]) -> CapturedLayers:
    """Return the layers that `target`, a loaded vLLM model, captures.

    `chosen_in_config` is the runner's own reading of the drafter's config; it returns nothing if
    the engine falls back to its default. This function never raises: values that an unfamiliar vLLM
    version does not provide stay unknown.
    """
    layers = _set_on(target)
    if not layers:
        return CapturedLayers()
    try:
        source = AUX_FROM_CONFIG if chosen_in_config() else AUX_FROM_ENGINE
    except (AttributeError, ImportError, TypeError):
        return CapturedLayers(layers=layers)
    return CapturedLayers(layers=layers, source=source)


def _set_on(target: Any) -> tuple[int, ...]:
    for module in target.modules():
        if layers := getattr(module, _ON_TARGET, None):
            return tuple(sorted({int(layer) for layer in layers if layer >= 0}))
        if keys := getattr(module, _ON_TRANSFORMERS, None):
            return tuple(int(number) for key in keys for number in re.findall(r"\d+$", key))
    return ()


def with_captured(
    manifest: Manifest, captured: CapturedLayers, states: int, drafter_config: Any
) -> Manifest:
    """Return `manifest` with the captured layers and a note about them if a reader needs one.

    `states` is the number of states that the drafter combines, `drafter_config` its Hugging Face
    config.
    """
    note = _note(captured.layers, states, named_layers(drafter_config))
    fit = not states or not captured.layers or len(captured.layers) == states
    return replace(
        manifest,
        aux_layers=captured.layers if fit else (),
        aux_layers_source=captured.source if fit else None,
        notes=manifest.notes if note is None else (*manifest.notes, note),
    )


def _note(layers: tuple[int, ...], states: int, named: tuple[int, ...]) -> str | None:
    listed = ", ".join(map(str, layers))
    if layers and states and len(layers) != states:
        return (
            f"the target hands over {len(layers)} captured layers ({listed}) and the drafter "
            f"combines {states}: its input is wrong; name {states} different layers of the target "
            f"in the drafter's {_IN_CONFIG}"
        )
    if layers and named and named != layers:
        return (
            f"the drafter's config names the target layers {', '.join(map(str, named))}, but this "
            f"engine captured {listed}: put {_IN_CONFIG} at the top level of the drafter's "
            "config.json, in ascending order"
        )
    return None


def named_layers(drafter_config: Any) -> tuple[int, ...]:
    """Return the layers named at the top of a drafter's config, or else in its `eagle_config`."""
    named = getattr(drafter_config, _IN_CONFIG, None)
    if not named:
        eagle = getattr(drafter_config, "eagle_config", None)
        named = eagle.get(_IN_CONFIG) if isinstance(eagle, dict) else None
    return tuple(int(layer) for layer in named or ())
