"""Situations other than a plain batch, without a reference: what must be recorded in each."""

from __future__ import annotations

from support.sglang_process.job import Job

TREE = {"speculative_eagle_topk": 2, "speculative_num_steps": 3, "speculative_num_draft_tokens": 6}
SCHEMA = '{"type": "array", "items": {"type": "integer"}, "minItems": 3}'
JOBS = {
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
