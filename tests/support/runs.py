"""Run directories with known truth, written with the real record files.

`write_run(path, Spec(...))` simulates a drafter whose figures all follow from the spec. Nothing
depends on a clock: the same spec gives the same figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from driftscope.trace.manifest import MANIFEST, Manifest, Model
from driftscope.trace.records import (
    DraftRow,
    RequestRow,
    ResourceRow,
    Row,
    StepRow,
    VerifyRow,
    edges_of,
)
from driftscope.trace.status import Status, status_path
from driftscope.trace.writer_files import RecordFiles
from driftscope.vocabulary import MASS_CLASSES

START_S = 1_750_000_000.0
HEADS_APART = 0.01
"""Increase of the prompt mass from each head to the next."""
ONLY_RANK_0 = (
    "in_rms",
    "prenorm_rms",
    "postnorm_rms",
    "fed_rms",
    "top1",
    "entropy",
    "aux_rms",
    "aux_norm_rms",
    "fc_rms",
)
"""Columns that do not depend on attention heads, so that only one rank records them."""
NOISY_LENGTH = 200
"""Rounds per request of `noisy_rows`."""
NOISY_ACCEPTANCE = 0.6
"""Acceptance probability of each token, given the one before."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A simulated run; the defaults are a small drifting EAGLE-3 drafter."""

    k: int = 4
    requests: int = 40
    rounds: int = 10
    """Rounds per request."""
    conditional: tuple[float, ...] = (0.8, 0.6, 0.4, 0.3)
    """Probability of acceptance at each depth, given the depth before."""
    growth: float = 2.5
    """Ratio of the fed RMS at depth K to that at depth 1."""
    sink: tuple[float, float] = (0.02, 0.01)
    """Sink mass at depth 1 and K."""
    self_last: float = 0.5
    """Mass on the chain at depth K."""
    near: float = 0.0
    """Mass at depth 1 on the last K - 1 slots; the chain takes their place with depth."""
    prompt_tokens: int = 100
    every: int = 1
    layers: int = 1
    labels: tuple[str | None, ...] = (None,)
    """Labels, assigned to the requests in rotation."""
    undrafted: tuple[str | None, ...] = ()
    """Reasons, each with one undrafted step in the first request."""
    chunked: int = 0
    """Number of requests whose prompt was prefilled in chunks."""
    aux_layers: tuple[int, ...] = (1, 2, 3)
    """Layers that the manifest names; the chains have states of three layers in any case."""
    aux_layers_source: str | None = None
    draft_sampling: str | None = None
    verification: str | None = None
    norm_output: bool = False
    mode: str = "eager"
    execution: str = "eager"
    strategy: str = "keys"
    query_kind: str = "depth"
    sink_slots: tuple[int, ...] = (0,)
    sink_source: str = "default"
    """Source of the sink set. "found" without slots: the sink's share goes to the prompt, and its
    class is absent."""
    heads: int = 4
    """Attention heads of the drafter on all ranks together; 0: it has no attention (nor layers)."""
    distance_every: int = 0
    """One recorded step in how many carries masses by distance; 0: each if `near`, else none. Its
    own tokens share the distances below K evenly, and what is not near is far away."""
    windowed: tuple[int, ...] = ()
    """Layers whose sliding window hides the sink."""
    slower: int = 1
    """Reduction of the sampling in requests with an odd number: only each `slower`-th of their
    otherwise recorded steps is recorded, as with a governor that adapts."""
    odd: float = 1.0
    """Ratio of the RMS in requests with an odd number to that in the others."""
    tensor_parallel: int = 1
    data_parallel: int = 1
    """Number of replicas. With 2 or more here or in `tensor_parallel`, every worker and engine core
    writes files of its own, and each replica serves the whole run again."""
    runner: str = "v2"
    drafter: str = "tiny-eagle3"
    dropped: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seed: int = 7


def manifest(spec: Spec) -> Manifest:
    """Return the manifest of `spec`."""
    model = Model(
        name="tiny-target",
        architecture="LlamaForCausalLM",
        config_digest="0123456789abcdef",
        dtype="float32",
    )
    return Manifest(
        run_id="run-1",
        created_s=START_S,
        driftscope_version="0.1.0",
        engine="vllm",
        engine_version="0.32.0",
        runner=spec.runner,
        mode=spec.mode,
        recording="sampled eager",
        method="eagle3",
        k=spec.k,
        target=model,
        drafter=replace(model, name=spec.drafter, architecture="LlamaForCausalLMEagle3"),
        norm_flags={"fc_norm": spec.norm_output, "norm_output": spec.norm_output},
        drafter_layers=spec.layers,
        aux_layers=spec.aux_layers,
        aux_layers_source=spec.aux_layers_source,
        draft_sampling=spec.draft_sampling,
        verification=spec.verification,
        attention_backend="CPU_ATTN",
        kv_cache_dtype="auto",
        every=spec.every,
        attention_strategy=spec.strategy,
        distance_every=1 if spec.near else spec.distance_every,
        distance_edges=edges_of(spec.k) if spec.near or spec.distance_every else (),
        tensor_parallel=spec.tensor_parallel,
        data_parallel=spec.data_parallel,
        query_kind=spec.query_kind,
        sink_tokens=len(spec.sink_slots),
        sink_slots=spec.sink_slots,
        sink_source=spec.sink_source,
        notes=spec.notes,
    )


def write_run(
    run: Path,
    spec: Spec | None = None,
    content: Iterable[Row] | Mapping[str, Iterable[Row]] | None = None,
    *,
    closed: bool = True,
) -> Path:
    """Write the run directory of `spec` and return it; with `content`, these rows, or rows by
    source, in place of its own."""
    spec = spec or Spec()
    run.mkdir(parents=True)
    (run / MANIFEST).write_text(manifest(spec).to_json(), encoding="utf-8")
    own = by_source(spec) if content is None else content
    sources = own if isinstance(own, Mapping) else {"worker0-1": own}
    for source, written in sources.items():
        write_rows(run, source, written, closed=closed)
    status = Status(
        source="worker0-1",
        closed=closed,
        flushed_s=START_S,
        dropped=spec.dropped,
        errors=spec.errors,
        first_error="ValueError: simulated" if spec.errors else None,
        probe_s=0.05,  # already in its steps; must not be counted twice
    )
    core = Status(source="core-2", closed=closed, flushed_s=START_S, probe_s=0.002)
    if content is not None:
        status = Status(source="worker0-1", closed=closed, flushed_s=START_S)
    others = [Status(source=name, closed=closed, flushed_s=START_S) for name in sources]
    for of_source in (*others, *((status, core) if content is None else (status,))):
        status_path(run, of_source.source).write_text(of_source.to_json(), encoding="utf-8")
    return run


def write_rows(run: Path, source: str, content: Iterable[Row], *, closed: bool = True) -> None:
    """Write `content` to record files of `source`: sealed, or as the streams of a killed run."""
    files = RecordFiles(run, source, 1 << 30)
    files.append(content)
    if closed:
        files.seal()


def rows(spec: Spec) -> Iterator[Row]:
    """Yield every row of the run; each request decodes alone."""
    random = np.random.RandomState(spec.seed)
    step = 0
    for n in range(spec.requests):
        position = spec.prompt_tokens - 1 + n % 3
        begin = START_S + n
        for i in range(spec.rounds + 1):
            step += 1
            now = begin + 0.01 * i
            every = spec.every * (spec.slower if n % 2 else 1)
            recorded = (step - 1) % every == 0
            yield _step(spec, step, now, recorded, 1 / every)
            if recorded:
                yield _draft(spec, random, n, step, now, position, 1 / every)
            if i == spec.rounds:
                break  # the last chain of a request is never verified
            accepted = _accepted(spec, random)
            yield verify(n, step, now + 0.005, position, spec.k, accepted)
            position += accepted + 1
        for reason in spec.undrafted if n == 0 else ():
            yield verify(n, step, begin + 0.5, position, 0, 0, reason)
            position += 1
        yield _request(spec, n, begin, position)
    yield ResourceRow(
        time_s=START_S,
        source="worker0-1",
        process_bytes=1 << 30,
        host_available_bytes=8 << 30,
        gpu_used_bytes=None,
    )


def verify(
    request: int,
    step: int,
    time_s: float,
    position: int,
    verified: int,
    accepted: int,
    reason: str | None = None,
    drafted: int | None = None,
) -> VerifyRow:
    """Return one verify row of request number `request`, whose draft was not cut unless it says how
    many tokens were `drafted`."""
    return VerifyRow(
        step=step,
        time_s=time_s,
        request=f"req-{request}",
        position=position,
        drafted=verified if drafted is None else drafted,
        verified=verified,
        accepted=accepted,
        reason=reason,
    )


def _accepted(spec: Spec, random: np.random.RandomState) -> int:
    survived = random.random_sample(spec.k) < np.asarray(spec.conditional)
    return int(np.argmin(np.append(survived, False)))


def _line(first: float, last: float, k: int) -> np.ndarray:
    return np.linspace(first, last, k)


def _draft(
    spec: Spec,
    random: np.random.RandomState,
    n: int,
    step: int,
    now: float,
    position: int,
    rate: float,
) -> DraftRow:
    k, heads = spec.k, _heads(spec, 0) if spec.tensor_parallel == 1 else range(spec.heads)
    fed = 4.0 * _line(1.0, spec.growth, k) * (1.0 + 0.02 * random.standard_normal())
    fed *= spec.odd if n % 2 else 1.0
    top1 = _line(0.4, 0.2, k)
    return DraftRow(
        step=step,
        time_s=now,
        request=f"req-{n}",
        position=position,
        prompt_tokens=spec.prompt_tokens,
        batch=1,
        k=k,
        layers=spec.layers if spec.heads else 0,
        chunked_prefill=n < spec.chunked,
        **attention(spec, heads, step),
        in_rms=(0.5 * fed).tolist(),
        prenorm_rms=(1.2 * fed).tolist() if spec.norm_output else fed.tolist(),
        postnorm_rms=_line(1.2, 1.1, k).tolist(),
        fed_rms=fed.tolist(),
        top1=top1.tolist(),
        entropy=(4.0 - 3.0 * top1).tolist(),
        aux_rms=[1.0, 2.0, 4.0],
        aux_norm_rms=[1.0, 1.0, 1.0] if spec.norm_output else None,
        fc_rms=2.0,
        token_ids=None,
        rate=rate,
        execution=spec.execution,
    )


def attention(spec: Spec, heads: Sequence[int], step: int) -> dict[str, Any]:
    """Return the attention columns of a step on a rank with these of the drafter's heads.

    The heads differ: each later one looks more at the prompt and less at the output.
    """
    if not spec.heads:
        none = dict.fromkeys(("sink_mass", "prompt_mass", "generated_mass", "self_mass"))
        return {**none, "null_mass": None, "heads": 0, "strategy": "none"}
    own, sink = _line(0.0, spec.self_last, spec.k), _line(*spec.sink, spec.k)
    rest = 1.0 - own - sink
    masses = np.zeros((spec.k, spec.layers, len(heads), len(MASS_CLASSES)))
    apart = HEADS_APART * (np.asarray(heads) - (spec.heads - 1) / 2)
    for at, mass in enumerate((sink, 0.6 * rest, 0.4 * rest, own)):
        masses[..., at] = mass[:, None, None]
    masses[..., 1] += apart
    masses[..., 2] -= apart
    if not spec.sink_slots:
        masses[..., 1] += masses[..., 0]
        masses[..., 0] = np.nan
    for layer in spec.windowed:
        masses[:, layer, :, 2] += masses[:, layer, :, 0]
        masses[:, layer, :, 0] = np.nan
    by_class = np.moveaxis(masses.mean(axis=2), -1, 0).reshape(len(MASS_CLASSES), -1).tolist()
    named = {f"{name}_mass": by_class[at] for at, name in enumerate(MASS_CLASSES)}
    if not spec.sink_slots:
        named["sink_mass"] = None
    return {
        **named,
        "null_mass": None,
        "distance_mass": _by_distance(spec, masses.mean(axis=2), step),
        "heads": len(heads),
        "strategy": spec.strategy,
    }


def _by_distance(spec: Spec, masses: np.ndarray, step: int) -> list[float] | None:
    """Return the masses by distance of a recorded step's chain, if it carries them, that fit
    `masses`, [k, layers, classes]: what is on neither the chain, the sink nor the near context lies
    far away."""
    every = spec.distance_every or int(spec.near > 0)
    if not every or (step - 1) // spec.every % every:
        return None
    bins = np.zeros((spec.k, spec.layers, len(edges_of(spec.k))))
    for own in range(spec.k):
        bins[own, :, :own] = masses[own, :, 3:4] / max(own, 1)
        bins[own, :, own : spec.k - 1] = spec.near / (spec.k - 1)
    bins[..., -1] = 1.0 - np.nan_to_num(masses[..., 0]) - bins.sum(axis=-1)
    return bins.ravel().tolist()


def _heads(spec: Spec, rank: int) -> range:
    """Return the heads of a rank; the last one has the remainder."""
    own_heads = spec.heads // spec.tensor_parallel
    last = rank == spec.tensor_parallel - 1
    return range(rank * own_heads, spec.heads if last else (rank + 1) * own_heads)


def by_source(spec: Spec) -> dict[str, list[Row]]:
    """Return the rows of the run by the process that writes them."""
    content = list(rows(spec))
    if spec.tensor_parallel == spec.data_parallel == 1:
        return {"worker0-1": content}
    out: dict[str, list[Row]] = {}
    for replica in range(spec.data_parallel):
        suffix = f".dp{replica}" if spec.data_parallel > 1 else ""
        engine = [row for row in content if isinstance(row, VerifyRow | RequestRow)]
        out[f"engine{replica}-{90 + replica}"] = engine
        for rank in range(spec.tensor_parallel):
            mine = [_of_rank(spec, row, rank) for row in content]
            source = f"worker{rank}{suffix}-{10 * replica + rank + 1}"
            out[source] = [row for row in mine if row is not None]
    return out


def _of_rank(spec: Spec, row: Row, rank: int) -> Row | None:
    """Return the row that the worker of a tensor-parallel rank writes for `row`; None if it writes
    none."""
    if isinstance(row, StepRow):
        return replace(row, probe_s=row.probe_s * (1 + rank))
    if not isinstance(row, DraftRow):
        return None
    unsaid = dict.fromkeys(ONLY_RANK_0) if rank else {}
    return replace(row, **attention(spec, _heads(spec, rank), row.step), **unsaid)


def _step(spec: Spec, step: int, now: float, recorded: bool, rate: float) -> StepRow:
    return StepRow(
        step=step,
        time_s=now,
        requests=1,
        chains=1,
        k=spec.k,
        recorded=recorded,
        step_s=0.010,
        draft_s=0.004,
        probe_s=0.0001 if recorded else 0.00001,
        rate=rate,
        execution=spec.execution,
    )


def _request(spec: Spec, n: int, begin: float, position: int) -> RequestRow:
    return RequestRow(
        time_s=begin + 0.9,
        request=f"req-{n}",
        label=spec.labels[n % len(spec.labels)],
        arrival_s=begin,
        prompt_tokens=spec.prompt_tokens,
        output_tokens=position - spec.prompt_tokens + 1,
        ttft_s=0.05,
        tpot_s=0.008 + 0.001 * (n % 2),
        finish_reason="length",
        temperature=0.0,
        max_tokens=64,
        prompt_digest=f"{spec.prompt_tokens:08x}{n:08x}",
        conversation=f"{spec.prompt_tokens:08x}{n:08x}",
    )


def noisy_rows(
    rounds: int, k: int = 7, *, norm_output: bool = True, distance_every: int = 0
) -> Iterator[Row]:
    """Yield the chains, steps and rounds of a run as a real drafter records them: all values
    differ, and every mantissa is full of noise. One chain in `distance_every` has masses by
    distance."""
    random = np.random.RandomState(5)
    spec = Spec(
        k=k,
        requests=-(-rounds // NOISY_LENGTH),
        rounds=min(rounds, NOISY_LENGTH),
        conditional=(NOISY_ACCEPTANCE,) * k,
        norm_output=norm_output,
        heads=32,
        strategy="lse",
        execution="full",
    )
    for row in rows(spec):
        if isinstance(row, RequestRow | ResourceRow):
            continue
        row = replace(row, time_s=row.time_s + float(random.normal(0, 0.0005)))
        if isinstance(row, StepRow):
            parts_s = (0.011, 0.003, 0.0001, 0.0028, 4e-5)
            step_s, draft_s, probe_s, *gpu = (s * float(random.lognormal(0, 0.05)) for s in parts_s)
            row = replace(row, step_s=step_s, draft_s=draft_s, probe_s=probe_s)
            gpu_draft_s, gpu_probe_s = map(float, np.float32(gpu))
            row = replace(row, gpu_draft_s=gpu_draft_s, gpu_probe_s=gpu_probe_s)
        elif isinstance(row, DraftRow):
            row = _noisy_draft(random, row, norm_output)
            if distance_every and row.step % distance_every == 0:
                row = replace(row, distance_mass=_noisy_distances(random, row))
        yield row


def _noisy_draft(random: np.random.RandomState, row: DraftRow, norm_output: bool) -> DraftRow:
    def about(values: np.ndarray) -> list[float]:
        return (values * random.lognormal(0, 0.2, len(values))).astype("f4").tolist()  # type: ignore[no-any-return]

    k = row.k
    masses = random.dirichlet([4.0, 6.0, 3.0, 5.0], k)
    masses[0] = [*random.dirichlet([4.0, 6.0, 3.0]), 0.0]
    sink, prompt, generated, own = masses.astype(np.float32).T.tolist()
    prenorm, postnorm = about(4.0 * 1.2 ** np.arange(k)), about(np.full(k, 1.1))
    fed, (fc,) = postnorm if norm_output else prenorm, about(np.array([2.0]))
    return replace(
        row,
        sink_mass=sink,
        prompt_mass=prompt,
        generated_mass=generated,
        self_mass=own,
        in_rms=[fc, *fed[:-1]],
        prenorm_rms=prenorm,
        postnorm_rms=postnorm,
        fed_rms=fed,
        top1=random.beta(2, 2, k).astype(np.float32).tolist(),
        entropy=about(np.full(k, 1.5)),
        aux_rms=about(np.array([1.0, 4.0, 9.0])),
        aux_norm_rms=about(np.ones(3)) if norm_output else None,
        fc_rms=fc,
    )


def _noisy_distances(random: np.random.RandomState, draft: DraftRow) -> list[float]:
    """Return attention by distance outside the sink, which falls with the distance."""
    edges = edges_of(draft.k)
    widths = np.append(np.diff(edges), draft.prompt_tokens)
    shares = random.dirichlet(2.0 * widths / (1.0 + np.array(edges)), draft.k)
    outside = 1.0 - np.array(draft.sink_mass)[:, None]
    by_bin: list[float] = (shares * outside).astype(np.float32).ravel().tolist()
    return by_bin
