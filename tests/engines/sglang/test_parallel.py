"""SGLang's tensor-parallel ranks and data-parallel replicas record one run; `verification.sglang`
compares their chains with the reference."""

import pytest
from verification.sglang.truth import JOBS

from driftscope.trace.reader import read_trace
from engines.sglang.conftest import Outcomes

pytestmark = [pytest.mark.sglang, pytest.mark.nightly]
HEADS = 8
WRITERS = {
    "two ranks": {"worker0", "worker1", "engine0"},
    "two replicas": {"worker0.dp0", "worker0.dp1", "engine0", "engine1"},
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_processes_record_one_run(sglang_outcome: Outcomes, name: str) -> None:
    outcome = sglang_outcome(name)
    trace = read_trace(outcome.run)
    assert {status.source.partition("-")[0] for status in trace.statuses} == WRITERS[name]
    assert all(not status.errors for status in trace.statuses)
    draft = trace.draft.to_pandas()
    assert not draft.duplicated(["request", "position"]).any()
    assert set(draft.heads) == {HEADS}
    assert trace.request.num_rows == JOBS[name].requests
    replicas = 2 if name == "two replicas" else 1
    for table in (trace.draft, trace.verify, trace.request):
        assert set(table.column("replica").to_pylist()) == set(range(replicas))
    sizes = trace.manifest.tensor_parallel, trace.manifest.data_parallel
    assert sizes == ((2, 1) if replicas == 1 else (1, 2))
