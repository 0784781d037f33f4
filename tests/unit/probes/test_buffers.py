"""Where recorded chains land: bounded, each in a slot of its own, free when taken or forgotten."""

from __future__ import annotations

import torch

from driftscope_probes.buffers import HostRing
from driftscope_probes.chain import OptionalMasses

CPU = torch.device("cpu")
R, WIDTH = 4, 3


def _values(rows: int, value: float) -> torch.Tensor:
    return torch.full((rows, WIDTH), value)


def test_later_changes_of_the_source_and_of_the_slot_do_not_show() -> None:
    ring, source = HostRing(R, WIDTH, CPU, slots=1), _values(R, 1.0)
    landing = ring.send(source)
    assert landing is not None
    source.fill_(2.0)  # the next chain is drafted
    taken = landing.take()
    assert (taken == 1.0).all()
    again = ring.send(source)
    assert (taken == 1.0).all(), "what was taken is not in the slot any more"
    assert again is not None
    assert (again.take() == 2.0).all()


def test_a_full_ring_takes_nothing_and_loses_nothing() -> None:
    ring = HostRing(R, WIDTH, CPU, slots=2)
    first, second = (ring.send(_values(1, value)) for value in (1.0, 2.0))
    assert ring.send(_values(1, 3.0)) is None
    assert first is not None
    assert second is not None
    assert (first.take() == 1.0).all()
    assert ring.send(_values(1, 4.0)) is not None, "a slot that was taken is free"
    assert (second.take() == 2.0).all()


def test_a_step_that_is_forgotten_gives_its_slot_back_once() -> None:
    ring = HostRing(R, WIDTH, CPU, slots=2)
    for _ in range(5):
        assert ring.send(_values(1, 1.0)) is not None
    taken = ring.send(_values(1, 1.0))
    assert taken is not None
    taken.take()
    del taken
    held = [ring.send(_values(1, float(value))) for value in range(3)]
    assert held[:2].count(None) == 0
    assert held[2] is None, "no slot is free twice"


def test_optional_masses_take_room_when_first_asked_for() -> None:
    heads = OptionalMasses((3, 2, 4, 5), R, CPU)
    room = heads.take(2)
    assert room.shape == (2, 3, 2, 4, 5)
    assert room.isnan().all()
    room[1] = 7.0
    landing = heads.send(2)
    assert landing is not None
    taken = landing.take()
    assert taken.shape == (2, 3 * 2 * 4 * 5)
    assert (taken[1] == 7.0).all()
    assert heads.take(2).isnan().all(), "nothing of the step before is left"
