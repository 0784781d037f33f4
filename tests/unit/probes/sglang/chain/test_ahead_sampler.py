"""A chain is chosen before its first depth; the choice then holds for its draft."""

from hypothesis import given
from hypothesis import strategies as st

from driftscope_probes.sampler import Sampler
from driftscope_probes.sglang.chain import AheadSampler


@given(st.integers(1, 7), st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_looking_ahead_changes_no_decision(every: int, looks: list[int]) -> None:
    plain, ahead = Sampler(every=every), AheadSampler(every=every)
    for times in looks:
        seen = {ahead.ahead() for _ in range(times)}
        taken = ahead.take()
        assert taken == plain.take() and seen <= {taken}


def test_a_stop_between_the_choice_and_the_draft_holds() -> None:
    sampler = AheadSampler(every=1)
    assert sampler.ahead()
    sampler.stop()
    assert not sampler.take()
    sampler.start()
    assert sampler.take()
