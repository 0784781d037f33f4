"""The draft table as arrays: recorded chains with what was measured in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.columns import Codes, Matrix, bools, ints, matrix
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
    masses: Mapping[str, Matrix]
    """[chains, K, layers] by column name."""
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
            masses={name: values[mine] for name, values in self.masses.items()},
            by_depth={name: values[mine] for name, values in self.by_depth.items()},
        )

    @property
    def broken(self) -> int:
        """Chains that hold a value that is no finite number; means leave such values out."""
        bad = np.zeros(len(self), dtype=np.bool_)
        for values in (*self.masses.values(), *self.by_depth.values()):
            bad |= ~np.isfinite(values).reshape(len(self), -1).all(axis=1)
        return int(bad.sum())


def chains_of(trace: Trace, requests: Requests) -> Chains:
    """The recorded chains of a `trace` that `driftscope.analysis.consistency.check` has passed."""
    table, k = trace.draft, trace.manifest.k
    layers = int(ints(table, "layers").max(initial=1))
    masses = {name: matrix(table, name, k * layers) for name in MASSES}
    by_depth = {name: matrix(table, name, k) for name in BY_DEPTH}
    return Chains(
        request=requests.codes(table),
        position=ints(table, "position"),
        chunked_prefill=bools(table, "chunked_prefill"),
        masses={n: v.reshape(-1, k, layers) for n, v in masses.items() if v is not None},
        by_depth={n: v for n, v in by_depth.items() if v is not None},
    )
