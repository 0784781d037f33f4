"""Rounds by request, as two runs are compared by them."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pytest
from support.simulate import Truth
from support.simulate.sums import side

from driftscope.analysis.compare import pair_sides
from driftscope.analysis.figures.chain_shape import Shape
from driftscope.analysis.figures.chains import finite_sums
from driftscope.analysis.figures.rounds import BY_ID, UNPAIRED, Side, grouped
from driftscope.vocabulary import AUX, BY_DEPTH, MASSES


def _named(truth: Truth, prefix: str = "id") -> Side:
    found = side(truth)
    names = [
        blake2b(f"{prefix}{n}".encode(), digest_size=8).hexdigest()
        for n in range(len(found.labels))
    ]
    return replace(found, ids=tuple(names))


def test_groups_keep_every_round_and_pair_across_runs() -> None:
    truth = Truth(requests=300, rounds=5, k=3)
    first, second = _named(truth), _named(replace(truth, seed=9))
    shuffled = second.of(np.random.default_rng(1).permutation(300))
    small = [grouped(each, 40) for each in (first, shuffled)]
    assert len(small[0].labels) <= 40
    for whole, group in zip((first, shuffled), small, strict=True):
        assert (group.rounds.histogram.sum(axis=0) == whole.rounds.histogram.sum(axis=0)).all()
    found = pair_sides(*small)
    assert found.how == BY_ID
    a, b = small[0].of(found.first), small[1].of(found.second)
    assert a.ids == b.ids
    assert (a.rounds.rounds == b.rounds.rounds).all(), "the same requests have as many rounds"


def test_groups_of_other_requests_are_not_paired() -> None:
    truth = Truth(requests=300, rounds=5, k=3)
    small = [grouped(_named(truth, name), 40) for name in ("a", "b")]
    assert pair_sides(*small).how == UNPAIRED


def test_names_must_be_as_many_as_rows() -> None:
    found = side(Truth(requests=10, rounds=5, k=3))
    with pytest.raises(ValueError, match="10 rows"):
        replace(found, ids=("0",))


def test_chains_without_any_list_have_sums() -> None:
    shape = Shape(
        k=4,
        ks=(4,),
        depths=4,
        layers=1,
        aux=0,
        sink_slots=(0,),
        sinkless=False,
        absent=(*MASSES, *BY_DEPTH, *AUX),
    )
    found = finite_sums(pa.table({"chains": [3], "weight": [3.0], "misfits": [0]}), shape)
    assert found is not None
    assert found.to_pylist() == [{"chains": 3, "weight": 3.0}]
