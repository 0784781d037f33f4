"""Sums of chains that lack lists."""

from __future__ import annotations

import pyarrow as pa

from driftscope.analysis.figures.chain_shape import Shape
from driftscope.analysis.figures.chains import finite_sums
from driftscope.vocabulary import AUX, BY_DEPTH, MASSES


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
