"""SGLang's output does not depend on the probe: off, on, sampled, or failing in every hook."""

import pytest
from verification.sglang.harmless import JOBS, OFF, SAMPLED_EVERY

from driftscope.trace.reader import read_trace
from engines.sglang.conftest import Outcomes

pytestmark = [pytest.mark.sglang, pytest.mark.nightly]
LINE = "driftscope: "
HOOKS = {
    "worker": {
        "schedule",
        "step_started",
        "extend_started",
        "extend_ended",
        "draft_started",
        "first_depth",
        "combine",
        "aux_norm",
        "forward_in",
        "attention",
        "final_norm",
        "forward_out",
        "draft_ended",
        "step_ended",
    },
    "engine": {"verify_started", "verify"},
}


@pytest.mark.parametrize("name", [name for name in JOBS if name != OFF])
@pytest.mark.parametrize("batch", [0, 1])
def test_output_is_token_identical(sglang_outcome: Outcomes, name: str, batch: int) -> None:
    assert sglang_outcome(name).tokens(batch) == sglang_outcome(OFF).tokens(batch)


@pytest.mark.parametrize("name", ["raising before", "raising after"])
def test_hooks_raise_and_are_counted(sglang_outcome: Outcomes, name: str) -> None:
    trace = read_trace(sglang_outcome(name).run)
    assert trace.draft.num_rows == 0, "a chain whose hooks failed is not whole"
    for status in trace.statuses:
        role = status.source.split("-")[0].rstrip("0")
        assert set(status.errors) and set(status.errors) <= HOOKS[role]
        assert "InjectedError" in (status.first_error or "")


def test_sampling_records_each_nth_draft_and_every_verification(sglang_outcome: Outcomes) -> None:
    full, sampled = (read_trace(sglang_outcome(name).run) for name in ("every round", "sampled"))
    assert sampled.verify.num_rows == full.verify.num_rows
    recorded = sampled.step.to_pandas().query("k > 0")["recorded"]
    assert recorded.tolist() == [i % SAMPLED_EVERY == 0 for i in range(len(recorded))]
    assert not any(status.dropped for status in sampled.statuses), "no chain lacks its depth 1"


@pytest.mark.parametrize("name", [OFF, "disabled"])
def test_without_settings_nothing_happens(sglang_outcome: Outcomes, name: str) -> None:
    outcome = sglang_outcome(name)
    assert LINE not in outcome.log and not outcome.run.exists()


def test_a_directory_that_cannot_be_written_costs_one_line(sglang_outcome: Outcomes) -> None:
    lines = [line for line in sglang_outcome("directory in use").log.splitlines() if LINE in line]
    assert len(lines) == 1 and "nothing is recorded" in lines[0]
