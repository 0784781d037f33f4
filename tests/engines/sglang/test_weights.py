"""SGLang gets other weights while it runs."""

from pathlib import Path

import pytest
import torch
from support.checkpoints import changed
from support.sglang_process.job import Job, installed, run_job

from driftscope.pipeline import summarise

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.nightly,
    pytest.mark.skipif(not installed(), reason="`make sglang` builds SGLang's environment"),
]
REQUESTS = 4


def _other(folder: Path) -> Path:
    return changed(folder, "target", weights=_negate)


def _negate(state: dict[str, torch.Tensor]) -> None:
    """Leave one layer's matrices, negated: SGLang loads a folder into the drafter, too, and ends
    where a tensor of that name has another shape there."""
    for name in list(state):
        if ".layers.2." in name and "norm" not in name:
            state[name] = -state[name]
        else:
            del state[name]


def test_an_update_from_disk_is_noted(tmp_path: Path) -> None:
    job = Job(drafter="eagle31", probe={"EVERY": "1"}, sizes=(2, 2), weights=_other)
    outcome = run_job(job, tmp_path)
    assert outcome.tokens(0) != outcome.tokens(1)
    summary = summarise(outcome.run, "run", by="weights")
    assert [part.label for part in summary.segments] == ["as started", "after update 1"]
    assert {part.requests for part in summary.segments} == {REQUESTS}
    (update,) = summary.updates
    assert "target" in update.models
