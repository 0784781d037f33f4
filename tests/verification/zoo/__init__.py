"""Tiny drafters with random weights, one for each kind that vLLM knows."""

from verification.zoo import drafters, mtp
from verification.zoo.kind import Kind

ZOO: dict[str, Kind] = {
    kind.name: kind
    for module in (drafters, mtp)
    for kind in vars(module).values()
    if isinstance(kind, Kind)
}
