"""The probe in SGLang's HTTP server: the same tokens as without it, and whole rows."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.engine_process.job import prompts
from support.sglang_process.job import MAX_TOKENS, Job, installed
from support.sglang_process.server import ask, serving

from driftscope.trace.reader import read_trace

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(not installed(), reason="`make sglang` builds SGLang's environment"),
    pytest.mark.nightly,
]
REQUESTS = 4
SAMPLING = {"temperature": 0, "max_new_tokens": MAX_TOKENS, "ignore_eos": True}


def answers(probe: dict[str, str], folder: Path) -> list[dict[str, object]]:
    """Return the answers of a server, to which the prompts are sent at once."""
    own = {**SAMPLING, "custom_params": {"driftscope_label": "http"}}
    with (
        serving(Job(drafter="eagle31", probe=probe), folder) as address,
        ThreadPoolExecutor(REQUESTS) as pool,
    ):
        bodies = [{"input_ids": ids, "sampling_params": own} for ids in prompts(REQUESTS)]
        return list(pool.map(lambda body: ask(address, body), bodies))


def test_the_server_serves_the_same_and_is_recorded(tmp_path: Path) -> None:
    on, off = answers({"EVERY": "1"}, tmp_path / "on"), answers({}, tmp_path / "off")
    assert [a["output_ids"] for a in on] == [a["output_ids"] for a in off]
    run = tmp_path / "on" / "run"
    trace = read_trace(run)
    served = {a["meta_info"]["id"] for a in on}  # type: ignore[index]
    labels = {row["request"]: row["label"] for row in trace.request.to_pylist()}
    assert {name for name, label in labels.items() if label == "http"} == served
    assert len(labels) == len(served), "neither the warm-up nor a health check has a row"
    assert {row["request"] for row in trace.draft.to_pylist()} >= served
    assert not any(status.errors for status in trace.statuses)
    assert not (tmp_path / "off" / "run").exists()
