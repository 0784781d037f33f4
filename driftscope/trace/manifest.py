"""The manifest of a run: the engine, models and settings under which its rows were recorded."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from driftscope.boundary.bounds import (
    Count,
    Counts,
    DistanceEdges,
    DraftLength,
    LayerCount,
    Notes,
    RankCount,
    RankNumber,
    SamplingInterval,
    Share,
    SinkCount,
    SinkSlots,
    Text,
    UnixTime,
    validated,
)
from driftscope.boundary.files import first_line, read_json
from driftscope.boundary.json_document import read_document
from driftscope.boundary.text import dumps
from driftscope.errors import DamagedTraceError, NotATraceError, SchemaVersionError
from driftscope.trace.records import SCHEMA_VERSION, edge_faults
from driftscope.trace.status import read_faults
from driftscope.version import __version__
from driftscope.vocabulary import MANIFEST as MANIFEST
from driftscope.vocabulary import SINK_DEFAULT, SINK_FOUND, SINK_SOUGHT, Strategy

BY_DEPTH = "depth"
"""`Manifest.query_kind` of an autoregressive chain."""
BY_QUERY = "query index"
"""`Manifest.query_kind` of a drafter that predicts all of its tokens in one pass."""
CLIENT = "client"
"""`Manifest.engine` of a run that was recorded from outside, by the sender of the requests."""
INGESTED = "ingested"
"""Key below `Manifest.workload` of what another tool's file holds."""
AUX_FROM_CONFIG = "config"
"""`Manifest.aux_layers_source`: the drafter's config names the layers."""
AUX_FROM_ENGINE = "engine default"
"""`Manifest.aux_layers_source`: the engine chose the layers, because it read none in the config."""
GREEDY = "greedy"
"""`Manifest.draft_sampling`: the drafter's most likely token at each depth."""
PROBABILISTIC = "probabilistic"
"""`Manifest.draft_sampling`: a token sampled from the drafter's distribution at the request's
temperature, which is greedy at temperature 0."""
EXACT = "exact"
"""`Manifest.verification`: tokens are accepted so that the target's distribution is kept, one by
one: at temperature 0 if they are the target's own."""
BLOCK = "block"
"""`Manifest.verification`: as EXACT, but the tokens of a draft are judged together, so that more of
them are accepted by the same target."""
RELAXED = "relaxed"
"""Begin of `Manifest.verification`, before the thresholds: tokens that the target would not have
chosen are accepted, too."""
SIMULATED = "simulated"
"""`Manifest.verification`: accepted tokens are drawn at a given rate, whatever the target says."""
_THRESHOLDS = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
_BLOCK_BY_BLOCK = "speculative_use_block_verification"
SGLANG_RULE = (*_THRESHOLDS, _BLOCK_BY_BLOCK)
"""SGLang's server arguments that decide its rule: thresholds below 1 accept tokens of sampled
requests that the target would not have chosen."""


def rule_of_sglang(arguments: Mapping[str, Any]) -> str:
    """Return `Manifest.verification` from SGLang's server arguments."""
    given = (arguments.get(name) for name in _THRESHOLDS)
    thresholds = [float(value) if isinstance(value, int | float) else 1.0 for value in given]
    if min(thresholds) < 1.0:
        return f"{RELAXED} (thresholds {' and '.join(f'{value:g}' for value in thresholds)})"
    return BLOCK if arguments.get(_BLOCK_BY_BLOCK) else EXACT


AGREES = "agrees"
"""`Manifest.witness` if the second computation gave the recorded figures."""
FED_BEFORE, FED_AFTER = "before the final norm", "after the final norm"
"""`Manifest.fed_state` of a drafter that feeds itself its residual stream, or its normed state."""
FED_PLAIN = "of a drafter without a final norm"
"""`Manifest.fed_state` of a drafter that has only its residual stream to feed."""
WAS_SIMULATED = "acceptance was simulated, which says nothing about the drafter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Identity of a target or a drafter."""

    name: Text
    architecture: Text
    config_digest: Text
    """sha256 of the model's configuration, first 16 hex digits."""
    dtype: Text
    weights_digest: Text | None = None
    """sha256 of a sample of the weights' bytes, first 16 hex digits: it differs between models of
    one configuration with different weights. None: not known, as if the weights are not local
    safetensors files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Description of a run. It is written when the engine has loaded its models, and rewritten as a
    whole when a sink search finds its sink set, and when a process that lost rows has ended."""

    run_id: Text
    created_s: UnixTime
    driftscope_version: Text
    engine: Text
    """"vllm", "sglang" or "reference"; CLIENT for a replay's view of any server."""
    engine_version: Text
    runner: Text
    """"v1", "v2" (vLLM's model runner generations), "eagle v2" (SGLang, whatever
    drafts) or "reference"."""
    mode: Text
    """Execution mode of the drafter: "eager", "compiled", "piecewise graphs" or
    "full graphs"."""
    recording: Text
    """Recording mode of rounds: "in-graph" (the probe's kernels are part of the drafter's graph),
    "sampled eager" (a recorded step runs eagerly, with hooks), "shadow" (a recorded step runs a
    second time, eagerly) or "taps" (hooks in the served execution)."""
    method: Text
    """The engine's name of the speculation method, such as "eagle3"; "" without a drafter."""
    k: DraftLength
    """Draft tokens per round as configured; 0 without a drafter."""
    target: Model
    drafter: Model | None
    """None: the engine does not speculate, so the run has requests and steps but no chains."""
    norm_flags: Mapping[str, bool]
    """fc_norm, norm_output, norm_before_fc, norm_before_residual of the loaded drafter."""
    drafter_layers: LayerCount
    aux_layers: tuple[LayerCount, ...] = ()
    """Target layers captured for the drafter, in the order in which it receives them. Index i is
    the residual stream after the first i layers of the target: the output of layer i - 1, counting
    layers from 0; index 0 is the embedding. vLLM counts in the same way. (): none is captured, or
    the run does not name them."""
    aux_layers_source: Text | None = None
    """Source of `aux_layers`: AUX_FROM_CONFIG or AUX_FROM_ENGINE. None: not recorded."""
    draft_sampling: Text | None = None
    """Rule by which the drafter chooses its tokens: GREEDY or PROBABILISTIC. None: not recorded, or
    no model drafts."""
    verification: Text | None = None
    """Rule by which drafts are verified: EXACT, BLOCK, RELAXED with its thresholds, or SIMULATED.
    None: not recorded, or nothing is drafted."""
    samples_wrongly: bool = False
    """Whether the engine verifies drafts at other temperatures than the requests': tokens of
    sampled requests are then wrong. False also if this is not known."""
    attention_backend: Text
    kv_cache_dtype: Text
    hardware: Text = ""
    """Name of the GPU that served, or of the CPU with its number of cores; "": not recorded."""
    rank: RankNumber = 0
    """Tensor-parallel rank of the worker that wrote this manifest."""
    tensor_parallel: RankCount = 1
    data_parallel: RankCount = 1
    pipeline_parallel: RankCount = 1
    every: SamplingInterval = 1
    """Sampling interval: every `every`-th draft step is recorded unless a governor changes the
    rate; the rate in force is stored in every row. Verification is always recorded."""
    budget: Share | None = None
    """Share of the time per output token that the probe may use; its governor samples accordingly.
    None: there is no governor."""
    attention_strategy: Text = Strategy.KEYS
    """Method of measuring masses, see `Strategy`; the strategy in force is stored in every row."""
    distance_edges: DistanceEdges = ()
    """First distance of each bin of `DraftRow.distance_mass`, for the largest K of the run: 0, 1,
    ..., K - 1, K, 2K, 4K, 8K. (): masses by distance are not recorded."""
    distance_every: SamplingInterval = 0
    """One recorded chain in how many carries masses by distance; 0: none."""
    device_bytes: Count | None = None
    """Memory of the probe's buffers, whose size is fixed, on the drafter's device, in bytes, on
    each rank; logits that are kept for near misses come on top, at most 64 MiB from one step to the
    next. On a CPU it is memory of the engine's process. None: not recorded."""
    witness: Text | None = None
    """Result of the start-up witness, which computes the first recorded chain a second time from
    raw queries, keys, values and states: AGREES, or what did not agree in two chains in a row, or
    why the computation failed; a note then says what is not recorded, or not verified. None: no
    chain was computed again."""
    fed_state: Text | None = None
    """State that is fed to the next depth, as watched over that chain: FED_BEFORE, FED_AFTER or
    FED_PLAIN. None: not known, or no state is fed."""
    query_kind: Text = BY_DEPTH
    """Meaning of an element of a per-depth list: BY_DEPTH or BY_QUERY."""
    sink_tokens: SinkCount
    """Size n of the sink set [0, n) if `sink_slots` does not name the set."""
    sink_slots: SinkSlots = ()
    """Sink set that was used, not always a prefix; slots [0, sink_tokens) if not given. () with
    `sink_source` SINK_FOUND: there is no sink."""
    sink_source: Text
    """One of SINK_SOURCES."""
    clock: Text = "unix"
    schema_version: Text = SCHEMA_VERSION
    notes: Notes = field(default=())
    """Warnings about this run that a reader must see."""
    lost: Counts = field(default_factory=dict)
    """Rows lost, by cause, summed over the processes that have ended; causes are those of
    `Status.dropped`. {}: none of them lost a row, or none has ended. A disk that stays full
    prevents this from being written; the status files count in any case."""
    workload: Mapping[str, Any] = field(default_factory=dict)
    """Requests and server of a replay, see `driftscope.workloads.manifest`; {} in a probe's run."""

    def __post_init__(self) -> None:
        if not self.sink_slots and self.sink_source not in (SINK_FOUND, SINK_SOUGHT):
            object.__setattr__(self, "sink_slots", tuple(range(self.sink_tokens)))

    @property
    def sinkless(self) -> bool:
        """Whether a sink search found that there is no sink."""
        return self.sink_source == SINK_FOUND and not self.sink_slots

    @property
    def is_simulated(self) -> bool:
        """Whether accepted tokens were drawn at a given rate, so that the run says nothing about
        its drafter."""
        return self.verification == SIMULATED

    def to_json(self) -> str:
        """Return stable JSON: sorted keys, indented, newline at the end."""
        return dumps(asdict(self), indent=1, sort_keys=True) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workload:
    """The entries of `Manifest.workload` whose kind matters to a reader."""

    baseline: Text = ""
    conditions: Notes = ()
    contender: Text = ""
    start: Text | float | None = None
    speculation: Mapping[str, Any] | bool | None = None
    drafter_bytes: Count | None = None
    server: Mapping[str, Any] | None = None
    ingested: Mapping[str, Any] | None = None


def client_manifest(
    run_id: str,
    facts: Mapping[str, Any],
    workload: Mapping[str, Any],
    notes: tuple[str, ...] = (),
    *,
    created_s: float | None = None,
) -> Manifest:
    """Return a manifest that describes a workload and its server from outside, made now by default;
    fields that only an engine knows are empty."""
    unknown = {"architecture": "", "config_digest": "", "dtype": ""}
    return Manifest(
        run_id=run_id,
        created_s=time.time() if created_s is None else created_s,
        driftscope_version=__version__,
        engine=CLIENT,
        engine_version=str(facts.get("version") or ""),
        runner=CLIENT,
        mode="",
        recording=CLIENT,
        method="",
        k=0,
        target=Model(name=str(facts.get("model") or ""), **unknown),
        drafter=Model(name="", **unknown),
        norm_flags={},
        drafter_layers=0,
        attention_backend="",
        kv_cache_dtype="",
        attention_strategy=Strategy.NONE,
        sink_tokens=0,
        sink_source=SINK_DEFAULT,
        notes=notes,
        workload={"server": dict(facts), **workload},
    )


def read_manifest(run: Path) -> Manifest:
    """Return the manifest of the run directory `run`.

    Raises NotATraceError, DamagedTraceError or SchemaVersionError; for a file what `read_document`
    raises.
    """
    path = run / MANIFEST
    if run.is_file():
        read_document(run)
    if not run.exists():
        raise NotATraceError(
            f"{run}: no such directory; give the run directory that the probe wrote"
        )
    if not path.is_file():
        raise NotATraceError(_no_run(run))
    try:
        raw = read_json(path)
        version = raw["schema_version"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise DamagedTraceError(
            f"{path}: not a readable manifest ({_error_words(error)})"
        ) from error
    check_version(str(version), path)
    try:
        manifest = validated(Manifest, raw)
        validated(_Workload, manifest.workload)
        if fault := edge_faults(manifest.distance_edges, manifest.distance_every):
            raise ValueError(fault)
        return manifest
    except ValueError as error:
        raise DamagedTraceError(f"{path}: a field is missing or wrong ({error})") from error


def _no_run(run: Path) -> str:
    """Return why a path without a manifest is no run: perhaps a server that recorded nothing."""
    if faults := read_faults(run):
        return f"{run}: the server recorded nothing: {faults[0].reason}"
    if run.is_dir() and all(path.name.startswith("status-") for path in run.iterdir()):
        return (
            f"{run}: has no {MANIFEST}, so it is not a driftscope run: no server got as far as "
            "loading its models here. See the server's log, or give the directory that "
            "DRIFTSCOPE_TRACE named"
        )
    return (
        f"{run}: has no {MANIFEST}, so it is not a driftscope run; give the directory that "
        "DRIFTSCOPE_TRACE named"
    )


_MAJOR = re.compile("[0-9]{1,6}")
_SHOWN = 40
"""Number of characters of a version that an error shows."""


def check_version(version: str, path: Path) -> None:
    """Raise SchemaVersionError if `version` has another major number than this reader's."""
    major, _, _ = version.partition(".")
    ours, _, _ = SCHEMA_VERSION.partition(".")
    if not _MAJOR.fullmatch(major):
        raise DamagedTraceError(f"{path}: schema version {version[:_SHOWN]!r} is not a version")
    if int(major) != int(ours):
        advice = "record the run again" if int(major) < int(ours) else "upgrade driftscope"
        raise SchemaVersionError(
            f"{path}: trace schema {ascii(version[:_SHOWN])[1:-1]}, but this driftscope reads "
            f"{ours}.x only; {advice}"
        )


def _error_words(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else first_line(error)


_SAMPLE_BYTES = 4096
"""Number of bytes read from each end of a tensor: one page."""
_MOST_TENSORS = 1024
"""Number of a file's tensors that are sampled, spread evenly. It bounds the start-up time on a slow
file system. A dense model of 70 billion parameters has 723 tensors in 30 files."""
_MOST_HEADER_BYTES = 100_000_000
"""Limit defined by the safetensors format."""
_DIGITS = 16


def weights_digest(model: str, revision: str | None = None) -> str | None:
    """Return a digest of the safetensors files of `model`, a directory or a cached repository.

    Return None if this machine has none or if they cannot be read: a start never fails because of
    the digest, and nothing is downloaded.
    """
    try:
        folder = _folder(model, revision)
        files = sorted(folder.glob("*.safetensors")) if folder is not None else []
        if not files:
            return None
        digest = hashlib.sha256()
        for path in files:
            for part in _parts(path):
                digest.update(part)
    except Exception:  # unreadable model files must not prevent an engine from starting
        return None
    return digest.hexdigest()[:_DIGITS]


def _folder(model: str, revision: str | None) -> Path | None:
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(model, "config.json", revision=revision)
    return Path(config).parent if isinstance(config, str) else None


def _parts(path: Path) -> Iterator[bytes]:
    """Yield the header, the size and the sampled bytes of one file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"{path}: not a safetensors file")
        header = file.read(length)
        yield f"{path.name} {path.stat().st_size}\n".encode()
        yield header
        spans = [entry["data_offsets"] for entry in _tensors(json.loads(header))]
        for begin, end in spans[:: max(1, -(-len(spans) // _MOST_TENSORS))]:
            yield from _ends(file, 8 + length + begin, 8 + length + end)


def _tensors(header: dict[str, Any]) -> list[dict[str, Any]]:
    return [header[name] for name in sorted(header) if name != "__metadata__"]


def _ends(file: BinaryIO, begin: int, end: int) -> Iterator[bytes]:
    file.seek(begin)
    yield file.read(min(_SAMPLE_BYTES, end - begin))
    last = max(begin + _SAMPLE_BYTES, end - _SAMPLE_BYTES)
    if last < end:
        file.seek(last)
        yield file.read(end - last)
