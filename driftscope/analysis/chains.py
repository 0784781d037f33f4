"""The draft table as arrays: recorded chains with what was measured in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.columns import Codes, Matrix, bools, floats, ints, matrix, present
from driftscope.analysis.requests import Requests
from driftscope.trace.reader import Trace

MASSES = ("sink_mass", "prompt_mass", "generated_mass", "self_mass", "null_mass")
BY_DEPTH = ("in_rms", "prenorm_rms", "postnorm_rms", "fed_rms", "top1", "entropy")
AUX = ("aux_rms", "aux_norm_rms")
"""By captured target layer, not by depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """Recorded chains, [chains] first; a quantity that the drafter lacks is not in its mapping."""

    request: Codes
    position: NDArray[np.int64]
    chunked_prefill: NDArray[np.bool_]
    weight: NDArray[np.float64]
    """How many chains each stands for: 1 over the share that was recorded at its time."""
    broken: NDArray[np.bool_]
    """Whether the chain holds a value that is no finite number; means leave such values out. A
    class of slots that does not apply, or a quantity that was not taken, breaks nothing."""
    masses: Mapping[str, Matrix]
    """[chains, K, layers] by column name; NaN where a class does not apply."""
    by_depth: Mapping[str, Matrix]
    """[chains, K] by column name."""

    def __len__(self) -> int:
        return len(self.request)

    def of(self, wanted: NDArray[np.bool_]) -> Chains:
        """Those of the requests that `wanted`, [requests], names."""
        mine = wanted[self.request]
        return Chains(
            request=self.request[mine],
            position=self.position[mine],
            chunked_prefill=self.chunked_prefill[mine],
            weight=self.weight[mine],
            broken=self.broken[mine],
            masses={name: values[mine] for name, values in self.masses.items()},
            by_depth={name: values[mine] for name, values in self.by_depth.items()},
        )


def chains_of(trace: Trace, requests: Requests) -> Chains:
    """The recorded chains of a `trace` that `driftscope.analysis.consistency.check` has passed."""
    table, k = trace.draft, trace.manifest.k
    layers = int(ints(table, "layers").max(initial=1))
    masses = _matrices(table, MASSES, k * layers)
    by_depth = _matrices(table, BY_DEPTH, k)
    return Chains(
        request=requests.codes(table),
        position=ints(table, "position"),
        chunked_prefill=bools(table, "chunked_prefill"),
        weight=1.0 / floats(table, "rate"),
        broken=_broken_masses(table, masses) | _broken_depths(table, by_depth),
        masses={name: values.reshape(-1, k, layers) for name, values in masses.items()},
        by_depth=by_depth,
    )


def _matrices(table: pa.Table, names: Iterable[str], width: int) -> dict[str, Matrix]:
    found = {name: matrix(table, name, width) for name in names}
    return {name: values for name, values in found.items() if values is not None}


def _broken_masses(table: pa.Table, masses: Mapping[str, Matrix]) -> NDArray[np.bool_]:
    """[chains] infinite somewhere, or no class with a number at some depth and layer."""
    broken = np.zeros(table.num_rows, dtype=np.bool_)
    if not masses:
        return broken
    taken = np.any([present(table, name) for name in masses], axis=0)
    nothing = np.all([np.isnan(values) for values in masses.values()], axis=0)
    for values in (nothing, *(np.isinf(values) for values in masses.values())):
        broken |= taken & values.any(axis=1)
    return broken


def _broken_depths(table: pa.Table, by_depth: Mapping[str, Matrix]) -> NDArray[np.bool_]:
    broken = np.zeros(table.num_rows, dtype=np.bool_)
    for name, values in by_depth.items():
        broken |= present(table, name) & ~np.isfinite(values).all(axis=1)
    return broken
