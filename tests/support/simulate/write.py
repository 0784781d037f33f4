"""Write a simulated run as the files of a run directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from support.simulate.draw import (
    START_S,
    Chunk,
    Floats,
    Ints,
    chunks,
    kind_of,
    reasons,
    region_columns,
)
from support.simulate.truth import Truth

from driftscope.trace.manifest import MANIFEST, Manifest, Model
from driftscope.trace.ranks import place_of
from driftscope.trace.records import RECORDS, SCHEMA_VERSION, edges_of
from driftscope.trace.schema import Block, Lists
from driftscope.trace.segments import (
    SEALED,
    VERSION_KEY,
    ZSTD_LEVEL,
    StreamFile,
    segment_path,
    write_sealed,
)
from driftscope.trace.status import Status, WeightUpdate, status_path
from driftscope.vocabulary import AUX, BY_DEPTH, Execution

PROBE_S = 0.0001
"""Time of the probe in a recorded step, in seconds."""
HEADS = 8


def simulate(
    run: Path, truth: Truth | None = None, *, sealed: bool = True, zstd_level: int = ZSTD_LEVEL
) -> Path:
    """Write the run directory of `truth` and return it; with `sealed` false, as of an unfinished
    run.

    A lower `zstd_level` than a probe's writes large runs faster.
    """
    truth = truth or Truth()
    run.mkdir(parents=True)
    (run / MANIFEST).write_text(manifest(truth).to_json(), encoding="utf-8")
    number: Counter[tuple[str, str]] = Counter()
    rows: dict[str, Counter[str]] = {}
    arrivals: dict[int, list[float]] = {}
    for chunk in chunks(truth):
        arrivals.setdefault(chunk.replica, []).extend(chunk.arrival_s.tolist())
        for block, rank in _of_ranks(truth, blocks(truth, chunk)):
            source = source_of(truth, chunk.replica, block.record).replace(
                "worker0", f"worker{rank}"
            )
            path = segment_path(run, block.record, source, number[source, block.record])
            number[source, block.record] += 1
            rows.setdefault(source, Counter())[block.record] += block.rows
            _write(path, block, sealed=sealed, zstd_level=zstd_level)
    for source, written in rows.items():
        status = Status(
            source=source,
            closed=sealed,
            flushed_s=START_S,
            rows=dict(written),
            weights=_updates(truth, sorted(arrivals[place_of(source).replica or 0]))
            if source.startswith("worker")
            else (),
        )
        status_path(run, source).write_text(status.to_json(), encoding="utf-8")
    return run


def _of_ranks(truth: Truth, written: list[Block]) -> Iterator[tuple[Block, int]]:
    """Yield the blocks of the first rank, and those of the second, which leave out what does not
    depend on heads."""
    for block in written:
        yield block, 0
        if block.record == "draft" and truth.rank_state is not None:
            fed = block.columns["fed_rms"]
            other: dict[str, Any] = dict.fromkeys((*BY_DEPTH, *AUX, "fc_rms"))
            other["fed_rms"] = replace(fed, values=truth.rank_state * fed.values)
            yield replace(block, columns={**block.columns, **other}), 1


def _updates(truth: Truth, arrivals: list[float]) -> tuple[WeightUpdate, ...]:
    """Return updates of the weights, each right before the request of its share arrives."""
    return tuple(
        WeightUpdate(time_s=arrivals[int(share * len(arrivals))] - 1e-3, version=f"step-{number}")
        for number, share in enumerate(truth.updates, 1)
    )


def _write(path: Path, block: Block, *, sealed: bool, zstd_level: int) -> None:
    batch = block.to_batch()
    schema = batch.schema.with_metadata({VERSION_KEY: SCHEMA_VERSION.encode()})
    table = pa.Table.from_batches([batch]).cast(schema).replace_schema_metadata(schema.metadata)
    if sealed:
        write_sealed(table, path.with_suffix(SEALED), level=zstd_level)
        return
    stream = StreamFile(path, schema)
    for part in table.to_batches():
        stream.append(part)
    stream.close()


def source_of(truth: Truth, replica: int, record: str) -> str:
    """Return the process that writes a record, see `driftscope.trace.ranks`."""
    if record in ("verify", "request"):
        return f"engine{replica}-{1000 + replica}"
    place = f".dp{replica}" if truth.replicas > 1 else ""
    return f"worker0{place}-{2000 + replica}"


def manifest(truth: Truth) -> Manifest:
    """Return the manifest of `truth`."""
    target = Model(
        name=truth.target,
        architecture="LlamaForCausalLM",
        config_digest="0123456789abcdef",
        dtype="bfloat16",
    )
    drafter = Model(
        name=truth.drafter,
        architecture="LlamaForCausalLMEagle3",
        config_digest="fedcba9876543210",
        dtype="bfloat16",
    )
    return Manifest(
        run_id=f"simulated-{truth.prompts_seed}-{truth.seed}",
        created_s=START_S,
        driftscope_version="0.1.0",
        engine="vllm",
        engine_version="0.32.0",
        runner=truth.runner,
        mode=truth.mode,
        recording="in-graph",
        method="mtp" if truth.fed_state else "eagle3",
        fed_state=truth.fed_state,
        k=truth.k,
        target=target,
        drafter=drafter,
        norm_flags={"fc_norm": truth.aux_norm is not None, "norm_output": truth.norm_output},
        drafter_layers=truth.layers,
        aux_layers=() if truth.fed_state else tuple(range(1, len(truth.aux) + 1)),
        attention_backend="FLASH_ATTN",
        samples_wrongly=truth.samples_wrongly,
        verification=truth.verification,
        kv_cache_dtype="auto",
        attention_strategy="lse",
        distance_every=1 if truth.near else 0,
        distance_edges=edges_of(truth.k) if truth.near else (),
        data_parallel=truth.replicas,
        sink_tokens=len(truth.sink_slots),
        sink_slots=truth.sink_slots,
        sink_source="default",
    )


def blocks(truth: Truth, chunk: Chunk) -> list[Block]:
    """Return the rows of `chunk`, one block per record."""
    return [
        _draft(truth, chunk),
        _verify(truth, chunk),
        _step(truth, chunk),
        _request(truth, chunk),
    ]


def _block(record: str, rows: int, columns: dict[str, Any]) -> Block:
    """Return a block; columns that are not given have the record's defaults."""
    defaults = {f.name: f.default for f in fields(RECORDS[record]) if f.default is not MISSING}
    return Block(record=record, rows=rows, columns={**defaults, **columns})


def _names(chunk: Chunk) -> np.ndarray[Any, Any]:
    return np.array([f"req-{chunk.first + n}" for n in range(len(chunk.kind))], dtype=object)


def _draft(truth: Truth, chunk: Chunk) -> Block:
    kept = np.flatnonzero(chunk.recorded[chunk.step] & (chunk.verified > 0))
    random = np.random.default_rng(chunk.seed)
    request, step = chunk.request[kept], chunk.step[kept]
    own = chunk.own[request]
    scale = (chunk.batch[step][:, None] ** truth.rms_batch).astype(np.float32)
    states = scale * _around(random, truth, own[:, 0], truth.states())
    plain = scale * _around(random, truth, own[:, 0], np.linspace(1.2, 1.1, truth.k))
    fed = plain if truth.norm_output else states
    fc = _around(random, truth, own[:, 0], np.array([2.0]))
    others = own[:, 1:].copy()
    if truth.attends:
        token = chunk.position[kept] - chunk.tokens[request]
        hard = kind_of(truth, chunk.kinds[request], token) == len(truth.regions) - 1
        others[:, 1] += truth.attends * hard
    masses = _masses(truth, random, others)
    top1 = chunk.top1[kept]
    columns: dict[str, Any] = {
        "step": chunk.number[step],
        "time_s": chunk.time_s[step],
        "request": _names(chunk)[request].tolist(),
        "position": chunk.position[kept],
        "prompt_tokens": chunk.tokens[request],
        "batch": chunk.batch[step],
        "k": chunk.k[step],
        "layers": truth.layers,
        "chunked_prefill": False,
        **masses,
        "null_mass": None,
        "in_rms": Lists(values=np.hstack([fc, fed[:, :-1]])),
        "prenorm_rms": Lists(values=states),
        "postnorm_rms": Lists(values=plain),
        "fed_rms": Lists(values=fed),
        "top1": Lists(values=top1),
        "entropy": Lists(values=np.float32(4) * (1 - top1)),
        "aux_rms": None
        if truth.fed_state
        else Lists(values=_around(random, truth, own[:, 0], np.array(truth.aux))),
        "aux_norm_rms": None
        if truth.aux_norm is None
        else Lists(values=_around(random, truth, own[:, 0], np.array(truth.aux_norm))),
        "fc_rms": None if truth.fed_state else fc[:, 0].astype(np.float64),
        "token_ids": None,
        "rate": chunk.rate[step],
        "distance_mass": _distances(truth, masses),
        **_rejected(truth, random, chunk.accepted[kept] < chunk.k[step]),
        "heads": HEADS,
        "strategy": "lse",
        "execution": _executions(truth, chunk.batch[step]),
        "replica": 0,
    }
    if truth.mixed:
        columns = {name: _cut(column, chunk.k[step], truth.k) for name, column in columns.items()}
    return _block("draft", len(kept), columns)


def _rejected(truth: Truth, random: np.random.Generator, rejected: np.ndarray) -> dict[str, Any]:
    """Return what is recorded of rejected tokens: none is the target's second choice."""
    names = ("target_token_rank", "rejected_closeness", "rejected_excluded")
    if truth.among_best is None:
        return dict.fromkeys(names)
    ranks = np.where(random.random(len(rejected)) < truth.among_best, 3, 30).tolist()
    known = [rank if lost else None for rank, lost in zip(ranks, rejected, strict=True)]
    none = [[None if rank is None else zero for rank in known] for zero in (0.0, False)]
    return dict(zip(names, (known, *none), strict=True))


def _cut(column: Any, k: Ints, longest: int) -> Any:
    """Return lists by depth cut to each row's own chain length."""
    if not isinstance(column, Lists) or column.values.shape[1] % longest:
        return column
    width = column.values.shape[1] // longest
    return [row[: own * width].tolist() for row, own in zip(column.values, k, strict=True)]


def _executions(truth: Truth, batch: Ints) -> str | list[str]:
    usual = Execution.OF_MODE[truth.mode]
    if truth.eager_above is None:
        return usual
    return np.where(batch > truth.eager_above, Execution.EAGER, usual).tolist()


def _around(
    random: np.random.Generator, truth: Truth, own: Floats, mean: np.ndarray[Any, Any]
) -> Floats:
    """Return numbers with these means, [rows, len(mean)], within `truth.spread` of them."""
    noise = random.random((len(own), len(mean)), dtype=np.float32) - np.float32(0.5)
    factor = 1 + own[:, None] + np.float32(truth.spread) * noise
    return np.asarray(mean.astype(np.float32) * factor)


def _masses(truth: Truth, random: np.random.Generator, own: Floats) -> dict[str, Lists]:
    """Return products of independent factors, so that each class has exactly the true mean."""
    means = [np.repeat(mean, truth.layers) for mean in (truth.sinks(), truth.selves())]
    sink = _around(random, truth, own[:, 0], means[0])
    chain = _around(random, truth, own[:, 1], means[1])
    rest = 1 - sink - chain
    half = np.full(truth.k * truth.layers, min(0.5, 1 / (1 + truth.spread)))
    prompt = rest * _around(random, truth, np.zeros(len(own), np.float32), half)
    values = {"sink": sink, "prompt": prompt, "generated": rest - prompt, "self": chain}
    return {f"{name}_mass": Lists(values=mass) for name, mass in values.items()}


def _distances(truth: Truth, masses: Mapping[str, Lists]) -> Lists | None:
    """Return the masses by distance that fit `masses`, as flattened [rows, k, layers, bins]. The
    near context gets its part of what sink and chain leave; the rest lies far away."""
    if not truth.near:
        return None
    k, size = truth.k, (-1, truth.k, truth.layers)
    sink, chain = (masses[f"{name}_mass"].values.reshape(size) for name in ("sink", "self"))
    rest = 1 - sink - chain
    scale = rest / (1 - truth.sinks() - truth.selves())[:, None].astype(np.float32)
    bins = np.zeros((*rest.shape, len(edges_of(k))), np.float32)
    for own in range(k):
        bins[:, own, :, :own] = chain[:, own, :, None] / max(own, 1)
        bins[:, own, :, own : k - 1] = scale[:, own, :, None] * truth.near / (k - 1)
    bins[..., -1] = 1 - sink - bins.sum(axis=-1)
    return Lists(values=bins.reshape(len(bins), -1))


def _verify(truth: Truth, chunk: Chunk) -> Block:
    kept = np.flatnonzero(chunk.accepted >= 0)
    request, step = chunk.request[kept], chunk.step[kept]
    named = np.array([*reasons(truth), None], dtype=object)
    columns = {
        "step": chunk.number[step],
        "time_s": chunk.time_s[step] + 0.8 * chunk.step_s[step],
        "request": _names(chunk)[request].tolist(),
        "position": chunk.position[kept],
        "drafted": chunk.verified[kept],
        "verified": chunk.verified[kept],
        "accepted": chunk.accepted[kept],
        "reason": named[chunk.reason[kept]].tolist(),
        "replica": 0,
    }
    return _block("verify", len(kept), columns)


def _step(truth: Truth, chunk: Chunk) -> Block:
    drafted = chunk.chains > 0
    columns = {
        "step": chunk.number,
        "time_s": chunk.time_s,
        "requests": chunk.batch,
        "chains": chunk.chains,
        "k": chunk.k,
        "recorded": (chunk.recorded & drafted).tolist(),
        "step_s": chunk.step_s,
        "draft_s": chunk.draft_s,
        "probe_s": np.where(chunk.recorded & drafted, PROBE_S, PROBE_S / 10),
        "rate": chunk.rate,
        "execution": _executions(truth, chunk.batch),
        "gpu_draft_s": None,
        "gpu_probe_s": None,
        "replica": 0,
    }
    return _block("step", len(chunk.number), columns)


def _request(truth: Truth, chunk: Chunk) -> Block:
    kinds = [truth.prompts[kind] for kind in chunk.kind.tolist()]
    ttft_s = truth.cost.prefill_token_s * chunk.tokens + truth.cost.base_s
    first_s = chunk.arrival_s + ttft_s
    tpot_s = np.maximum(chunk.finish_s - first_s, 0) / np.maximum(chunk.output - 1, 1)
    columns = {
        "time_s": chunk.finish_s,
        "request": _names(chunk).tolist(),
        "label": [kind.label or kind.adapter for kind in kinds],
        "adapter": [kind.adapter for kind in kinds],
        "arrival_s": chunk.arrival_s,
        "prompt_tokens": chunk.tokens,
        "output_tokens": chunk.output,
        "ttft_s": ttft_s,
        "tpot_s": tpot_s,
        "finish_reason": "length",
        "temperature": [kind.temperature for kind in kinds],
        "max_tokens": chunk.output,
        "traced": True,
        "replica": 0,
        "traceparent": None,
        "structured": [kind.structured for kind in kinds],
        **_names_of(truth, chunk),
        **region_columns(truth, chunk.kinds, chunk.output),
    }
    return _block("request", len(chunk.kind), columns)


def _names_of(truth: Truth, chunk: Chunk) -> dict[str, Any]:
    """Return the columns that say which requests belong together."""
    digest = [
        f"{truth.prompts_seed:04x}{chunk.replica:04x}{n:08x}" if truth.digests else None
        for n in chunk.prompt.tolist()
    ]
    session = [f"session-{n}" if truth.sessions else None for n in chunk.session.tolist()]
    return {"prompt_digest": digest, "conversation": digest, "session": session}
