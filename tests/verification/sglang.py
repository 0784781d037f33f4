"""Runs of SGLang against the float64 reference; `python -m verification.sglang` prints a table."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import eagle1_drafter, mtp_checkpoint
from support.engine_process import job as vllm
from support.engine_process.job import prompts
from support.reference_engine import replay
from support.sglang_process import job as sglang
from support.sglang_process.job import VERSION, Job, K, Outcome, run_job

from driftscope.inspect.reference.drafter import ReferenceDrafter
from driftscope.inspect.reference.layers import Target
from driftscope.trace.reader import read_trace
from driftscope.vocabulary import DISTANCE_MASS
from driftscope_lab.trio import trio_path
from verification.truth import MASSES, NORMS, Truth, continue_greedily, loaded, matches, worst

RECORD = {"TOKEN_IDS": "1", "EVERY": "1", "DISTANCE_EVERY": "2"}
RETRACT = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "4"}
"""SGLang's own switch that has every 4th step retract a request, as if the cache were full."""
BOTH_CORES = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
TRUTH_JOBS = {
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
    models: tuple[Target, ReferenceDrafter] | None = None,
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
    models: tuple[Target, ReferenceDrafter],
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
    full, _ = continue_greedily(target, tuple(tokens), K + 1)
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
        for name, job in TRUTH_JOBS.items():
            t = compare(run_job(job, Path(folder) / name))
            print(
                f"{name:22} {t.chains:6} {t.drafted_equal:6}/{t.chains:<4}"
                f"{t.accepted_equal:6}/{t.verified:<5}{t.mass_error:9.1e} {t.distance_error:9.1e} "
                f"{t.rms_error:9.1e} {t.top1_error:9.1e} {t.entropy_error:9.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()


SAMPLED_EVERY = 3
_SAME = {"drafter": "eagle31", "sizes": (8, 1), "requests": 8}
OFF = "off"
HARMLESS_JOBS = {
    OFF: Job(**_SAME),  # type: ignore[arg-type]
    "every round": Job(**_SAME, probe={"EVERY": "1"}),  # type: ignore[arg-type]
    "sampled": Job(**_SAME, probe={"EVERY": str(SAMPLED_EVERY)}),  # type: ignore[arg-type]
    "budget": Job(**_SAME, probe={"BUDGET": "0.01"}),  # type: ignore[arg-type]
    "raising before": Job(**_SAME, probe={"TEST_RAISE": "before", "EVERY": "1"}),  # type: ignore[arg-type]
    "raising after": Job(**_SAME, probe={"TEST_RAISE": "after", "EVERY": "1"}),  # type: ignore[arg-type]
    "directory in use": Job(**_SAME, probe={"TRACE": "/dev/null/run"}),  # type: ignore[arg-type]
    "disabled": Job(**_SAME, probe={"EVERY": "1", "DISABLE": "1"}),  # type: ignore[arg-type]
}


TREE = {"speculative_eagle_topk": 2, "speculative_num_steps": 3, "speculative_num_draft_tokens": 6}
SCHEMA = '{"type": "array", "items": {"type": "integer"}, "minItems": 3}'
SITUATION_JOBS = {
    "tree": Job(drafter="eagle3", probe={"EVERY": "1"}, engine=TREE),
    "temperature": Job(
        drafter="eagle3", probe={"EVERY": "1"}, sampling={"temperature": 0.8, "top_p": 0.9}
    ),
    "labels": Job(
        drafter="eagle3",
        probe={"EVERY": "1", "LABELS": "wanted"},
        own=({"custom_params": {"driftscope_label": "wanted"}},),
    ),
    "stop token": Job(drafter="eagle3", probe={"EVERY": "1"}, sampling={"ignore_eos": False}),
    "K = 1": Job(
        drafter="eagle3",
        probe={"EVERY": "1", "TOKEN_IDS": "1"},
        engine={"speculative_num_steps": 1, "speculative_num_draft_tokens": 2},
    ),
    "structured output": Job(
        drafter="eagle3",
        probe={"EVERY": "1"},
        engine={"skip_tokenizer_init": False, "grammar_backend": "xgrammar"},
        own=({"json_schema": SCHEMA},),
    ),
    "abort in the queue": Job(
        drafter="eagle3",
        probe={"EVERY": "1"},
        engine={"max_running_requests": 1},
        sampling={"max_new_tokens": 200},
        abort=3,
    ),
    "no speculation": Job(drafter="", probe={"EVERY": "1"}),
    "no speculation, off": Job(drafter=""),
}


ARCHITECTURE = "LlamaForCausalLMEagle"
"""SGLang's model of an EAGLE-1 drafter, which its checkpoints have to name."""


def eagle1(folder: Path) -> dict[str, Any]:
    """Build an EAGLE-1 drafter of the shipped target, and return the engine's arguments for it.

    SGLang's `fc` has a bias, whose numbers are random if the file has none: here they are zero.
    """
    path = eagle1_drafter(folder / "drafter")
    config, weights = path / "config.json", path / "model.safetensors"
    fields = {**json.loads(config.read_text()), "architectures": [ARCHITECTURE]}
    config.write_text(json.dumps(fields))
    save_file({**load_file(weights), "fc.bias": torch.zeros(fields["hidden_size"])}, weights)
    return {
        "speculative_algorithm": "EAGLE",
        "speculative_draft_model_path": str(path),
        "speculative_num_steps": K,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": K + 1,
    }


def eagle1_without_bias(folder: Path) -> dict[str, Any]:
    """Build the same without the bias of `fc`."""
    arguments = eagle1(folder)
    weights = folder / "drafter" / "model.safetensors"
    state = {name: tensor for name, tensor in load_file(weights).items() if name != "fc.bias"}
    save_file(state, weights)
    return arguments


def mimo_head(folder: Path) -> dict[str, Any]:
    """Build a checkpoint of MiMo that drafts for itself, and return the engine's arguments."""
    return {
        "model_path": str(mtp_checkpoint(folder / "target", normed=True)),
        "speculative_algorithm": "NEXTN",
        "speculative_num_steps": K,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": K + 1,
    }


def draft_model(_: Path) -> dict[str, Any]:
    """Return the engine's arguments for the target as its own draft model."""
    return {
        "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": str(trio_path() / "target"),
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    }


NODES = 4
"""Nodes of an n-gram tree, its root included."""
DRAFTER_JOBS = {
    "n-gram": Job(
        drafter="",
        probe={"EVERY": "1"},
        engine={"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": NODES},
    ),
    "draft model": Job(drafter="", probe=RECORD, models=draft_model),
    "EAGLE-1": Job(drafter="", probe=RECORD, models=eagle1),
    "MTP, MiMo": Job(drafter="", probe=RECORD, models=mimo_head),
    "EAGLE-1 without a bias": Job(drafter="", probe=RECORD, models=eagle1_without_bias),
}


REQUESTS = 8
RECORD_BOTH = {"TOKEN_IDS": "1", "EVERY": "1", "PROMPT_SALT": "two engines"}
"""With one salt, both engines give a prompt the same digest."""


def in_vllm(drafter: str, folder: Path) -> vllm.Outcome:
    """Return the outcome of vLLM's V1 runner; `drafter`: the name of a shipped one, or a path."""
    speculation = {
        "method": "eagle3",
        "model": str(vllm.trio_path() / drafter),
        "num_speculative_tokens": sglang.K,
    }
    job = vllm.Job(
        drafter=drafter,
        probe=RECORD_BOTH,
        requests=REQUESTS,
        sizes=(REQUESTS,),
        llm={"speculative_config": speculation},
        sampling={"max_tokens": sglang.MAX_TOKENS},
    )
    return vllm.run_job(job, folder)


def in_sglang(drafter: str, folder: Path) -> sglang.Outcome:
    """Return the outcome of SGLang with a shipped drafter, its captured layers renumbered."""
    job = sglang.Job(drafter=drafter, probe=RECORD_BOTH, requests=REQUESTS, sizes=(REQUESTS,))
    return sglang.run_job(job, folder)
