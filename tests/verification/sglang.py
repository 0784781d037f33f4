"""Jobs of SGLang, and its own counts beside those of a trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import eagle1_drafter, mtp_checkpoint
from support.sglang_process.job import Job, K, Outcome

from driftscope.trace.reader import read_trace
from driftscope_lab.trio import trio_path
from verification.truth import RECORD, SAMPLED_EVERY

RETRACT = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "4"}
"""SGLang's own switch that has every 4th step retract a request, as if the cache were full."""
BOTH_CORES = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
_RECORDED, _RECORDED_31 = (Job(drafter=name, probe=RECORD) for name in ("eagle3", "eagle31"))
TRUTH_JOBS = {
    "eagle3": replace(_RECORDED, sizes=(2, 1)),
    "eagle31, batch of 8": replace(_RECORDED_31, sizes=(8,), requests=12),
    "chunked prefill": replace(_RECORDED, engine={"chunked_prefill_size": 32}),
    "retracted": replace(_RECORDED_31, sizes=(4,), env=RETRACT),
    "without overlap": replace(_RECORDED, engine={"disable_overlap_schedule": True}),
    "two ranks": replace(_RECORDED_31, engine={"tp_size": 2}, env=BOTH_CORES),
    "two replicas": replace(_RECORDED, engine={"dp_size": 2}, env=BOTH_CORES),
    "every 3rd": replace(_RECORDED_31, probe={**RECORD, "EVERY": "3"}),
}
OFF = "off"
PROBES = {
    OFF: {},
    "every round": {"EVERY": "1"},
    "sampled": {"EVERY": str(SAMPLED_EVERY)},
    "budget": {"BUDGET": "0.01"},
    "raising before": {"TEST_RAISE": "before", "EVERY": "1"},
    "raising after": {"TEST_RAISE": "after", "EVERY": "1"},
    "directory in use": {"TRACE": "/dev/null/run"},
    "disabled": {"EVERY": "1", "DISABLE": "1"},
}
HARMLESS_JOBS = {
    name: Job(drafter="eagle31", sizes=(8, 1), requests=8, probe=probe)
    for name, probe in PROBES.items()
}
TREE = {"speculative_eagle_topk": 2, "speculative_num_steps": 3, "speculative_num_draft_tokens": 6}
SCHEMA = '{"type": "array", "items": {"type": "integer"}, "minItems": 3}'
_USUAL = Job(drafter="eagle3", probe={"EVERY": "1"})
SITUATION_JOBS = {
    "tree": replace(_USUAL, engine=TREE),
    "temperature": replace(_USUAL, sampling={"temperature": 0.8, "top_p": 0.9}),
    "labels": replace(
        _USUAL,
        probe={"EVERY": "1", "LABELS": "wanted"},
        own=({"custom_params": {"driftscope_label": "wanted"}},),
    ),
    "stop token": replace(_USUAL, sampling={"ignore_eos": False}),
    "K = 1": replace(
        _RECORDED, engine={"speculative_num_steps": 1, "speculative_num_draft_tokens": 2}
    ),
    "structured output": replace(
        _USUAL,
        engine={"skip_tokenizer_init": False, "grammar_backend": "xgrammar"},
        own=({"json_schema": SCHEMA},),
    ),
    "abort in the queue": replace(
        _USUAL, engine={"max_running_requests": 1}, sampling={"max_new_tokens": 200}, abort=3
    ),
    "no speculation": replace(_USUAL, drafter=""),
    "no speculation, off": Job(drafter=""),
}


def _speculation(algorithm: str, k: int = K, **more: str) -> dict[str, Any]:
    return {
        "speculative_algorithm": algorithm,
        "speculative_num_steps": k,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": k + 1,
        **more,
    }


def _eagle1(folder: Path, *, bias: bool = True) -> dict[str, Any]:
    """Build an EAGLE-1 drafter of the shipped target, and return the engine's arguments for it.

    SGLang's `fc` has a bias, whose numbers are random if the file has none: here they are zero.
    """
    path = eagle1_drafter(folder / "drafter")
    config, weights = path / "config.json", path / "model.safetensors"
    fields = {**json.loads(config.read_text()), "architectures": ["LlamaForCausalLMEagle"]}
    config.write_text(json.dumps(fields))
    if bias:
        save_file({**load_file(weights), "fc.bias": torch.zeros(fields["hidden_size"])}, weights)
    return _speculation("EAGLE", speculative_draft_model_path=str(path))


def _mimo_head(folder: Path) -> dict[str, Any]:
    """Build a checkpoint of MiMo that drafts for itself, and return the engine's arguments."""
    return _speculation("NEXTN", model_path=str(mtp_checkpoint(folder / "target", normed=True)))


def _draft_model(_: Path) -> dict[str, Any]:
    """Return the engine's arguments for the target as its own draft model."""
    return _speculation("STANDALONE", 3, speculative_draft_model_path=str(trio_path() / "target"))


NODES = 4
"""Nodes of an n-gram tree, its root included."""
DRAFTER_JOBS = {
    "n-gram": Job(
        drafter="",
        probe={"EVERY": "1"},
        engine={"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": NODES},
    ),
    "draft model": Job(drafter="", probe=RECORD, models=_draft_model),
    "EAGLE-1": Job(drafter="", probe=RECORD, models=_eagle1),
    "MTP, MiMo": Job(drafter="", probe=RECORD, models=_mimo_head),
    "EAGLE-1 without a bias": Job(
        drafter="", probe=RECORD, models=lambda folder: _eagle1(folder, bias=False)
    ),
}
JOBS = {**TRUTH_JOBS, **HARMLESS_JOBS, **SITUATION_JOBS, **DRAFTER_JOBS}


def histograms(outcome: Outcome, batch: int = 0) -> list[tuple[list[int], list[int]]]:
    """Return, for each request, SGLang's and the trace's number of rounds by accepted count."""
    rows = read_trace(outcome.run).verify.to_pylist()
    pairs = []
    for meta in outcome.meta(batch):
        theirs = meta["spec_correct_drafts_histogram"]
        mine = [r["accepted"] for r in rows if r["request"] == meta["id"] and r["verified"]]
        pairs.append((theirs, [mine.count(accepted) for accepted in range(len(theirs))]))
    return pairs
