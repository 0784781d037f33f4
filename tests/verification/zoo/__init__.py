"""Tiny drafters with random weights, one for each kind that vLLM knows."""

from verification.zoo import drafters, mtp
from verification.zoo.kind import Kind

KINDS = (
    drafters.EAGLE1,
    drafters.WINDOW_ALL,
    drafters.WINDOW_MIXED,
    drafters.WINDOW_ONE_GROUP,
    drafters.P_EAGLE,
    mtp.MIMO,
    mtp.MIMO_V2,
    mtp.ERNIE,
    mtp.DEEPSEEK,
    mtp.MODULES,
    mtp.KIMI,
    drafters.DFLASH_SINKS,
    drafters.DRAFT_MODEL,
    drafters.SOFT_CAP,
    drafters.NGRAM,
    drafters.SUFFIX,
    drafters.MEDUSA,
)
ZOO: dict[str, Kind] = {kind.name: kind for kind in KINDS}
