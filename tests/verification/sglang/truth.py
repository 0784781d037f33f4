"""Compare a run recorded in SGLang with the float64 reference: same weights, same tokens.

`python -m verification.sglang.truth` (`make sglang`) runs the engines and prints the table.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from support.engine_process.job import prompts
from support.sglang_process.job import VERSION, Job, K, Outcome, run_job

from driftscope.inspect.reference.chain import replay
from driftscope.inspect.reference.drafter import Drafter, Target
from driftscope.trace.reader import read_trace
from driftscope.vocabulary import DISTANCE_MASS
from verification.truth import MASSES, NORMS, Truth, continue_greedily, loaded, matches, worst

RECORD = {"TOKEN_IDS": "1", "EVERY": "1", "DISTANCE_EVERY": "2"}
RETRACT = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "4"}
"""SGLang's own switch that has every 4th step retract a request, as if the cache were full."""
BOTH_CORES = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
JOBS = {
    "eagle3": Job(drafter="eagle3", probe=RECORD, sizes=(2, 1)),
    "eagle31, batch of 8": Job(drafter="eagle31", probe=RECORD, sizes=(8,), requests=12),
    "chunked prefill": Job(
        drafter="eagle3", probe=RECORD, requests=4, engine={"chunked_prefill_size": 32}
    ),
    "retracted": Job(drafter="eagle31", probe=RECORD, requests=4, sizes=(4,), env=RETRACT),
    "without overlap": Job(
        drafter="eagle3", probe=RECORD, engine={"disable_overlap_schedule": True}
    ),
    "two ranks": Job(drafter="eagle31", probe=RECORD, engine={"tp_size": 2}, env=BOTH_CORES),
    "two replicas": Job(drafter="eagle3", probe=RECORD, engine={"dp_size": 2}, env=BOTH_CORES),
    "every 3rd": Job(drafter="eagle31", probe={**RECORD, "EVERY": "3"}),
}


def compare(
    outcome: Outcome,
    batch: int = 0,
    *,
    models: tuple[Target, Drafter] | None = None,
    norms: tuple[str, ...] = NORMS,
) -> Truth:
    """Replay every recorded chain of a batch in float64; `models` are those that ran, unless they
    are the job's, and `norms` the columns that they have."""
    trace = read_trace(outcome.run)
    chains = trace.draft.to_pylist()
    accepted = {(v["request"], v["position"]): v["accepted"] for v in trace.verify.to_pylist()}
    pairs: list[tuple[dict[str, Any], Any, int]] = []
    requests = outcome.batches[batch]["requests"]
    for ids, request in zip(prompts(len(requests)), requests, strict=True):
        mine = [chain for chain in chains if chain["request"] == request["meta"]["id"]]
        used = models or loaded("target", outcome.job.drafter)
        pairs += _pairs(used, [*ids, *request["token_ids"]], len(ids), mine)
    verified = [
        (accepted[key], expected)
        for row, _, expected in pairs
        if (key := (row["request"], row["position"])) in accepted
    ]
    carry = [pair for pair in pairs if pair[0][DISTANCE_MASS] is not None]
    return Truth(
        chains=len(pairs),
        drafted_equal=sum(tuple(row["token_ids"]) == ref.token_ids for row, ref, _ in pairs),
        verified=len(verified),
        accepted_equal=sum(a == b for a, b in verified),
        mass_error=worst(pairs, MASSES, relative=False),
        with_distances=len(carry),
        distance_error=worst(carry, (DISTANCE_MASS,), relative=False),
        rms_error=worst(pairs, norms, relative=True),
        top1_error=worst(pairs, ("top1",), relative=False),
        entropy_error=worst(pairs, ("entropy",), relative=False),
    )


def _pairs(
    models: tuple[Target, Drafter],
    tokens: list[int],
    prompt_tokens: int,
    rows: list[dict[str, Any]],
) -> list[tuple[dict[str, Any], Any, int]]:
    """Return (recorded, reference, accepted tokens according to the reference) for each chain."""
    target, drafter = models
    rows = [row for row in rows if row["position"] <= len(tokens) - 2]
    references = replay(
        target, drafter, tokens, prompt_tokens, [row["position"] for row in rows], K
    )
    full = continue_greedily(target, tuple(tokens), K + 1)
    return [
        (row, ref, matches(ref.token_ids, full[ref.position + 2 :]))
        for row, ref in zip(rows, references, strict=True)
    ]


def histograms(outcome: Outcome, batch: int = 0) -> list[tuple[list[int], list[int]]]:
    """Return, for each request, SGLang's and the trace's number of rounds by accepted count."""
    rows = read_trace(outcome.run).verify.to_pylist()
    pairs = []
    for meta in outcome.meta(batch):
        theirs = meta["spec_correct_drafts_histogram"]
        ours = [0] * len(theirs)
        for row in rows:
            if row["request"] == meta["id"] and row["verified"]:
                ours[row["accepted"]] += 1
        pairs.append((theirs, ours))
    return pairs


def main() -> None:
    print(
        f"{f'SGLang {VERSION}':22} {'chains':>6} {'drafted =':>10} {'accepted =':>11} "
        f"{'mass err':>9} {'distance':>9} {'RMS rel':>9} {'top-1 err':>9} {'entropy':>9}"
    )
    with tempfile.TemporaryDirectory(prefix="driftscope-sglang-") as folder:
        for name, job in JOBS.items():
            t = compare(run_job(job, Path(folder) / name))
            print(
                f"{name:22} {t.chains:6} {t.drafted_equal:6}/{t.chains:<4}"
                f"{t.accepted_equal:6}/{t.verified:<5}{t.mass_error:9.1e} {t.distance_error:9.1e} "
                f"{t.rms_error:9.1e} {t.top1_error:9.1e} {t.entropy_error:9.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
