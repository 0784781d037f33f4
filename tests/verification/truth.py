"""Compare a recorded run with the float64 reference: same weights, same tokens.

`python -m verification.truth` (`make truth`) runs the engines and prints the table.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from support.checkpoints import load_mtp
from support.engine_process.job import PROMPTS, Job, K, Outcome, prompts, run_jobs
from support.reference_engine import replay

from driftscope.inspect.reference.drafter import load_drafter, load_target
from driftscope.trace.reader import read_trace
from driftscope.vocabulary import DISTANCE_MASS
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
JOBS = {
    f"{name} {drafter}": Job(drafter=drafter, probe=RECORD, **how)  # type: ignore[arg-type]
    for name, how in {
        "v1-eager": {"runner": "v1", "sizes": (8, 1)},
        "v1-compiled": {"runner": "v1", "compiled": True},
        "v2": V2,
    }.items()
    for drafter in ("eagle3", "eagle31")
}
JOBS["v1-processes eagle31"] = replace(JOBS["v1-eager eagle31"], processes=True)
JOBS["v1-compiled eagle31"] = replace(JOBS["v1-compiled eagle31"], env=WITHOUT_AOT)
AT_NIGHT = ("v1-compiled eagle3", "v1-processes eagle31", "v2 eagle3")
"""Jobs that `make test` leaves to `make nightly`. It has both drafters eager, the one with every
norm compiled and on V2, and servers of several processes."""


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
    rejected: int = 0
    """Number of chains that carry what is measured of a rejected token."""
    rank_error: float = 0.0
    """Largest distance between the logit of the target's token and that of the recorded rank."""
    closeness_error: float = 0.0


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


def compare(outcome: Outcome, *, rounded: bool = False) -> Truth:
    """Replay every recorded chain of the outcome's first batch in float64.

    `rounded`: the engine computed in less than float32 precision. The two chains diverge where it
    drafted other tokens, so only chains with equal tokens are compared.
    """
    trace = read_trace(outcome.run)
    accepted = {(v["request"], v["position"]): v for v in trace.verify.to_pylist()}
    chains = trace.draft.to_pylist()
    pairs = []
    asked = prompts(outcome.job.requests)
    for index, (ids, output) in enumerate(zip(asked, outcome.tokens(), strict=True)):
        mine = [c for c in chains if c["request"].partition("-")[0] == str(index)]
        pairs += _pairs(outcome.job, [*ids, *output], len(ids), mine)
    verified = [
        (accepted[row["request"], row["position"]]["accepted"], expected.accepted)
        for row, _, expected in pairs
        if (row["request"], row["position"]) in accepted
    ]
    same = [p for p in pairs if not rounded or tuple(p[0]["token_ids"]) == p[1].token_ids]
    carry = [pair for pair in same if pair[0][DISTANCE_MASS] is not None]
    near = [pair for pair in pairs if pair[0]["target_token_rank"] is not None]
    errors = [_near_miss_errors(outcome.job, *pair) for pair in near]
    return Truth(
        chains=len(pairs),
        drafted_equal=sum(tuple(row["token_ids"]) == ref.token_ids for row, ref, _ in pairs),
        verified=len(verified),
        accepted_equal=sum(a == b for a, b in verified),
        mass_error=worst(same, MASSES, relative=False),
        with_distances=len(carry),
        distance_error=worst(carry, (DISTANCE_MASS,), relative=False),
        rms_error=worst(same, NORMS, relative=True),
        top1_error=worst(same, ("top1",), relative=False),
        entropy_error=worst(same, ("entropy",), relative=False),
        rejected=len(errors),
        rank_error=max((error[0] for error in errors), default=0.0),
        closeness_error=max((error[1] for error in errors), default=0.0),
    )


def _near_miss_errors(
    job: Job, row: dict[str, Any], reference: Any, expected: Expected
) -> tuple[float, float]:
    """Return the errors of a chain's rank and closeness; infinite where no token was rejected."""
    if expected.logits is None:
        return math.inf, math.inf
    target, drafted = expected.logits, reference.token_ids[expected.accepted]
    second = int((target > target[drafted]).sum()) == 1
    close = float((target[drafted] - target.max()).exp()) if second else 0.0
    own = reference.logits[expected.accepted]
    known = models(job)[1].target_ids(torch.arange(len(own)))
    right, rank = own[known == int(target.argmax())], row["target_token_rank"]
    if not len(right) or not rank:
        return 0.0 if len(right) == rank else math.inf, abs(row["rejected_closeness"] - close)
    ranked = own.sort(descending=True).values[rank - 1]
    return float((ranked - right[0]).abs()), abs(row["rejected_closeness"] - close)


class Expected(NamedTuple):
    """The reference target's decision about a chain."""

    accepted: int
    logits: torch.Tensor | None
    """[vocabulary] at the first token that is rejected; None if all are accepted."""


def _pairs(
    job: Job, tokens: list[int], prompt_tokens: int, rows: list[dict[str, Any]]
) -> list[tuple[dict[str, Any], Any, Expected]]:
    """Return (recorded, reference, expected) for each chain."""
    target, drafter = models(job)
    rows = [row for row in rows if row["position"] <= len(tokens) - 2]
    anchors = [row["position"] for row in rows]
    references = replay(target, drafter, tokens, prompt_tokens, anchors, K)
    full, logits = continue_greedily(target, tuple(tokens), K + 1)

    def expected(chain: Any) -> Expected:
        right = matches(chain.token_ids, full[chain.position + 2 :])
        rejected = right < len(chain.token_ids)
        return Expected(right, logits[chain.position + 1 + right] if rejected else None)

    return [(row, ref, expected(ref)) for row, ref in zip(rows, references, strict=True)]


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


def matches(drafted: Sequence[int], greedy: Sequence[int]) -> int:
    count = 0
    while count < len(drafted) and drafted[count] == greedy[count]:
        count += 1
    return count


def worst(pairs: list[Any], names: tuple[str, ...], *, relative: bool) -> float:
    worst = 0.0
    for row, reference, _ in pairs:
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


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="driftscope-truth-") as folder:
        print_table(run_jobs(JOBS, Path(folder)))


def print_table(outcomes: dict[str, Outcome]) -> None:
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
            f"{t.rms_error:9.1e} "
            f"{t.top1_error:9.1e} {t.entropy_error:9.1e} "
            f"{t.rejected:8} {t.rank_error:9.1e} {t.closeness_error:9.1e}"
        )


if __name__ == "__main__":
    main()
