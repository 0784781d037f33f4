"""Engines with the probe against the float64 reference, and against engines without the probe.

Without a word, figures are compared with the reference (`make truth`); the word "harmless" compares
greedy output with the probe on, sampled and failing (`make harmless`); folders hold other vLLMs,
each of which precedes the installed one (`make versions`).
"""

from __future__ import annotations

import functools
import math
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from support.checkpoints import load_mtp
from support.engine_process.job import PROMPTS, Job, Outcome, prompts, run_jobs
from support.reference_engine import leading_matches, replay

from driftscope.trace.reader import read_trace
from driftscope.vocabulary import DISTANCE_MASS
from driftscope_lab.training.checkpoints import load_drafter, load_target
from driftscope_lab.trio import trio_path

MASSES = ("sink_mass", "prompt_mass", "generated_mass", "self_mass")
NORMS = ("in_rms", "prenorm_rms", "postnorm_rms", "fed_rms", "aux_rms", "aux_norm_rms", "fc_rms")
RECORD = {"TOKEN_IDS": "1", "EVERY": "1", "DISTANCE_EVERY": "2"}
V2: dict[str, Any] = {"runner": "v2", "sizes": (PROMPTS,), "llm": {"max_num_seqs": PROMPTS}}
"""One batch, because Triton's interpreter takes nearly as long for a step of two requests as for
one of ten."""
WITHOUT_AOT = {"VLLM_USE_AOT_COMPILE": "0"}
"""Environment without ahead-of-time compilation, whose files vLLM writes for a minute and cannot
load again on a CPU; one compiled engine, at night, has vLLM's default."""
SAMPLED_EVERY = 3
_V1 = Job(drafter="eagle31", sizes=(8, 1))
_V2 = Job(drafter="eagle31", **V2)
_COMPILED = Job(drafter="eagle31", compiled=True)
_PLAIN = Job(drafter="", requests=4, llm={"speculative_config": None})
"""A server without a drafter."""
TRUTH = {
    "v1-eager eagle3": replace(_V1, drafter="eagle3", probe=RECORD),
    "v1-eager eagle31": replace(_V1, probe=RECORD),
    "v1-compiled eagle3": replace(_COMPILED, drafter="eagle3", probe=RECORD),
    "v1-compiled eagle31": replace(_COMPILED, probe=RECORD, env=WITHOUT_AOT),
    "v2 eagle3": replace(_V2, drafter="eagle3", probe=RECORD),
    "v2 eagle31": replace(_V2, probe=RECORD),
    "v1-processes eagle31": replace(_V1, probe=RECORD, processes=True),
}
"""Jobs whose figures are compared with the reference."""
_RAISING = replace(_V1, sizes=(8,), probe={"TEST_RAISE": "after", "EVERY": "1"})
_PLAIN_ON = replace(_PLAIN, probe={"EVERY": "1"})
_COLD = Job(
    drafter="eagle31",
    probe={"EVERY": "1"},
    requests=4,
    sizes=(4,),
    llm={"max_num_seqs": 4},
    sampling={"temperature": 1e-4, "max_tokens": 16},
)
"""A temperature at which sampling picks the likeliest token, if the sampler divides by it."""
JOBS = {
    **TRUTH,
    "v1 off": _V1,
    "v1 sampled": replace(_V1, probe={"EVERY": str(SAMPLED_EVERY)}),
    "v1 raising": _RAISING,
    "v1-processes raising": replace(_RAISING, processes=True),
    "v1 compiled off": replace(_COMPILED, env=WITHOUT_AOT),
    "v2 off": _V2,
    "v2 raising": replace(_V2, probe={"TEST_RAISE": "before", "EVERY": "1"}),
    "v1 plain off": _PLAIN,
    "v1 plain": _PLAIN_ON,
    "v1-processes plain": replace(_PLAIN_ON, processes=True),
    "v2 plain off": replace(_PLAIN, runner="v2"),
    "v2 plain": replace(_PLAIN_ON, runner="v2"),
    "v1 cold": _COLD,
    "v2 cold": replace(_COLD, runner="v2"),
}
AT_NIGHT = {
    *(name for name in JOBS if name.startswith("v1-processes")),
    *("v1-compiled eagle3", "v2 eagle3", "v2 cold"),
}
"""Jobs that `make test` leaves to `make nightly`. It has both drafters eager, the one with every
norm compiled and on V2, and servers of several processes."""
WITHOUT = {
    "v1-eager eagle31": "v1 off",
    "v1 sampled": "v1 off",
    "v1 raising": "v1 off",
    "v1-processes raising": "v1 off",
    "v1-compiled eagle31": "v1 compiled off",
    "v2 eagle31": "v2 off",
    "v2 raising": "v2 off",
    "v1 plain": "v1 plain off",
    "v1-processes plain": "v1 plain off",
    "v2 plain": "v2 plain off",
}
"""Engine with the probe -> the equivalent one without it."""
V1_ONLY = ("0.27",)
"""Versions whose V2 runner was never tried."""
V2_IGNORES_K = ("0.31",)
"""Versions whose V2 runner drafts the configured K whatever the scheduler asks for: K by batch size
changes nothing there, or with asynchronous scheduling only how many tokens are verified."""


def version(folder: Path) -> str:
    """Return the version of the vLLM in a folder, of its CPU build or of its Python alone."""
    (found,) = folder.glob("vllm*.dist-info")
    return found.name.partition("-")[2].removesuffix(".dist-info")


def runners(folder: Path) -> tuple[str, ...]:
    """Return the runners of the folder's version that are checked."""
    return ("v1",) if version(folder).startswith(V1_ONLY) else ("v1", "v2")


def follows_k(job: Job) -> bool:
    """Return whether the drafter drafts as many tokens as the scheduler asks for."""
    if job.runner != "v2" or job.vllm_path is None:
        return True
    return not version(Path(job.vllm_path)).startswith(V2_IGNORES_K)


def older_job(folder: Path, runner: str, drafter: str) -> Job:
    """Return a job with separate caches: otherwise each version discards the other's."""
    return Job(
        drafter=drafter,
        runner=runner,
        probe=RECORD,
        vllm_path=str(folder),
        env={"VLLM_CACHE_ROOT": f"{folder}-cache"},
    )


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Deviation of a run from the reference; errors are the largest over all chains and depths."""

    chains: int
    drafted_equal: int
    """Number of chains whose K drafted tokens all equal the reference's."""
    verified: int
    accepted_equal: int
    mass_error: float
    """Largest mass error, absolute."""
    with_distances: int
    """Number of chains that carry masses by distance."""
    distance_error: float
    """Largest error of these, absolute."""
    rms_error: float
    """Largest RMS error, relative."""
    top1_error: float
    entropy_error: float
    rejected: int
    """Number of chains that carry what is measured of a rejected token."""
    rank_error: float
    """Largest distance between the logit of the target's token and that of the recorded rank."""
    closeness_error: float


@functools.cache
def loaded(target_name: str, drafter_name: str) -> tuple[Any, Any]:
    target = load_target(trio_path() / target_name, torch.float64)
    layers, head = target.config.num_hidden_layers, target.model.embed_tokens.weight
    path = trio_path() / drafter_name
    return target, load_drafter(path, torch.float64, target_layers=layers, head=head)


def models(job: Job) -> tuple[Any, Any]:
    """Return the reference's target and drafter of a job, in float64."""
    if job.method == "mtp":
        return load_mtp(Path(job.drafter), normed=False)
    return loaded(job.target, job.drafter)


class Pair(NamedTuple):
    """A recorded chain, the reference's, and the reference target's decision about it."""

    row: dict[str, Any]
    reference: Any
    accepted: int
    logits: torch.Tensor | None
    """[vocabulary] at the first token that is rejected; None if all are accepted."""


def compare(
    outcome: Outcome,
    batch: int = 0,
    *,
    used: tuple[Any, Any] | None = None,
    norms: Sequence[str] = NORMS,
    rounded: bool = False,
) -> Truth:
    """Replay every recorded chain of a batch of the outcome in float64.

    `used` are the models that ran, unless they are the job's, and `norms` the columns that they
    have. `rounded`: the engine computed in less than float32 precision. The two chains diverge
    where it drafted other tokens, so only chains with equal tokens are compared.
    """
    trace = read_trace(outcome.run)
    accepted = {(v["request"], v["position"]): v["accepted"] for v in trace.verify.to_pylist()}
    chains, pairs = trace.draft.to_pylist(), list[Pair]()
    used = used or models(outcome.job)
    names = outcome.names(batch)
    for ids, output, name in zip(prompts(len(names)), outcome.tokens(batch), names, strict=True):
        mine = [c for c in chains if c["request"] == name or c["request"].startswith(f"{name}-")]
        pairs += _pairs(*used, [*ids, *output], len(ids), mine)
    keys = [(pair, (pair.row["request"], pair.row["position"])) for pair in pairs]
    verified = [(accepted[key], pair.accepted) for pair, key in keys if key in accepted]
    equal = [pair for pair in pairs if tuple(pair.row["token_ids"]) == pair.reference.token_ids]
    same = equal if rounded else pairs
    carry = [pair for pair in same if pair.row[DISTANCE_MASS] is not None]
    near = [pair for pair in pairs if pair.row["target_token_rank"] is not None]
    errors = [_near_miss_errors(used[1], pair) for pair in near]
    return Truth(
        chains=len(pairs),
        drafted_equal=len(equal),
        verified=len(verified),
        accepted_equal=sum(a == b for a, b in verified),
        mass_error=worst(same, MASSES, relative=False),
        with_distances=len(carry),
        distance_error=worst(carry, (DISTANCE_MASS,), relative=False),
        rms_error=worst(same, norms, relative=True),
        top1_error=worst(same, ("top1",), relative=False),
        entropy_error=worst(same, ("entropy",), relative=False),
        rejected=len(errors),
        rank_error=max((error[0] for error in errors), default=0.0),
        closeness_error=max((error[1] for error in errors), default=0.0),
    )


def _near_miss_errors(drafter: Any, pair: Pair) -> tuple[float, float]:
    """Return the errors of a chain's rank and closeness; infinite where no token was rejected."""
    row, reference, accepted, target = pair
    if target is None:
        return math.inf, math.inf
    drafted = reference.token_ids[accepted]
    second = int((target > target[drafted]).sum()) == 1
    close = float((target[drafted] - target.max()).exp()) if second else 0.0
    own = reference.logits[accepted]
    known = drafter.target_ids(torch.arange(len(own)))
    right, rank = own[known == int(target.argmax())], row["target_token_rank"]
    if not len(right) or not rank:
        return 0.0 if len(right) == rank else math.inf, abs(row["rejected_closeness"] - close)
    ranked = own.sort(descending=True).values[rank - 1]
    return float((ranked - right[0]).abs()), abs(row["rejected_closeness"] - close)


def _pairs(
    target: Any, drafter: Any, tokens: list[int], prompt_tokens: int, rows: list[dict[str, Any]]
) -> list[Pair]:
    rows = [row for row in rows if row["position"] <= len(tokens) - 2]
    if not rows:
        return []
    k = max(row["k"] for row in rows)
    anchors = [row["position"] for row in rows]
    references = replay(target, drafter, tokens, prompt_tokens, anchors, k)
    full, logits = continue_greedily(target, tuple(tokens), k + 1)

    def pair(row: dict[str, Any], chain: Any) -> Pair:
        right = leading_matches(chain.token_ids, full[chain.position + 2 :])
        rejected = right < len(chain.token_ids)
        return Pair(row, chain, right, logits[chain.position + 1 + right] if rejected else None)

    return [pair(*both) for both in zip(rows, references, strict=True)]


@functools.cache  # runs of one target on the same prompts give the same tokens
@torch.no_grad()
def continue_greedily(
    target: Any, tokens: tuple[int, ...], count: int
) -> tuple[list[int], torch.Tensor]:
    """Return `tokens` and the target's next `count`, as a last round may accept past the end, and
    the logits after each but the last, [tokens, vocabulary]."""
    ids = list(tokens)
    for _ in range(count):
        logits = target.logits(target(torch.tensor([ids]), aux_layers=()).hidden[0])
        ids = [*ids, int(logits[-1].argmax())]
    return ids, logits


def worst(pairs: Iterable[Sequence[Any]], names: Sequence[str], *, relative: bool) -> float:
    """Return the largest error of these columns over (recorded, reference, ...); NaN if any is."""
    worst = 0.0
    for row, reference, *_ in pairs:
        for name in names:
            got, want = row[name], getattr(reference, name)
            assert (got is None) == (want is None), f"{name}: {got} against {want}"
            if want is None:
                continue
            a, b = torch.tensor(got).double().reshape(-1), torch.tensor(want).double().reshape(-1)
            assert a.shape == b.shape, f"{name}: {a.shape} against {b.shape}"
            error = (a - b).abs() / (b.abs() if relative else 1.0)
            worst = max(worst, float(error.max())) if not error.isnan().any() else float("nan")
    return worst


def print_truth(outcomes: dict[str, Outcome]) -> None:
    """Print one line of errors per outcome."""
    print(
        f"{'engine':22} {'chains':>6} {'drafted =':>10} {'accepted =':>11} "
        f"{'mass err':>9} {'distance':>9} {'RMS rel':>9} {'top-1 err':>9} {'entropy':>9} "
        f"{'rejected':>8} {'rank err':>9} {'close err':>9}"
    )
    for name, outcome in outcomes.items():
        t = compare(outcome)
        print(
            f"{name:22} {t.chains:6} {t.drafted_equal:6}/{t.chains:<4}"
            f"{t.accepted_equal:6}/{t.verified:<5}{t.mass_error:9.1e} {t.distance_error:9.1e} "
            f"{t.rms_error:9.1e} {t.top1_error:9.1e} {t.entropy_error:9.1e} "
            f"{t.rejected:8} {t.rank_error:9.1e} {t.closeness_error:9.1e}"
        )


def print_harmless(outcomes: dict[str, Outcome]) -> None:
    """Print one line for each batch of each engine with the probe."""
    print(
        f"{'engine with the probe':24} {'batch':>5} {'same output':>12} {'rounds':>7} "
        f"{'chains':>7} {'errors':>7}"
    )
    for name, without in WITHOUT.items():
        on, off = outcomes[name], outcomes[without]
        trace = read_trace(on.run)
        errors = sum(sum(status.errors.values()) for status in trace.statuses)
        for batch, size in enumerate(on.job.sizes):
            same = [a == b for a, b in zip(on.tokens(batch), off.tokens(batch), strict=True)]
            print(
                f"{name:24} {size:5} {sum(same):6}/{len(same):<5} {trace.verify.num_rows:7} "
                f"{trace.draft.num_rows:7} {errors:7}"
            )


def main(*words: str) -> None:
    jobs, show = TRUTH, print_truth
    if words == ("harmless",):
        jobs, show = {name: JOBS[name] for pair in WITHOUT.items() for name in pair}, print_harmless
    elif words:
        jobs = {
            f"{version(folder)} {runner} {drafter}": older_job(folder, runner, drafter)
            for folder in (Path(word).resolve() for word in words)
            for runner in runners(folder)
            for drafter in ("eagle3", "eagle31")
        }
    with tempfile.TemporaryDirectory(prefix="driftscope-truth-") as folder:
        show(run_jobs(jobs, Path(folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
