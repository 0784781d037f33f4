"""Tiny drafters with random weights, one for each kind that vLLM knows."""

from verification.zoo import eagle, mtp, standalone
from verification.zoo.kind import Kind

KINDS = (
    eagle.EAGLE1,
    eagle.WINDOW_ALL,
    eagle.WINDOW_MIXED,
    eagle.WINDOW_ONE_GROUP,
    eagle.P_EAGLE,
    mtp.MIMO,
    mtp.MIMO_V2,
    mtp.ERNIE,
    mtp.DEEPSEEK,
    mtp.MODULES,
    mtp.KIMI,
    eagle.DFLASH_SINKS,
    standalone.DRAFT_MODEL,
    standalone.SOFT_CAP,
    standalone.NGRAM,
    standalone.SUFFIX,
    standalone.MEDUSA,
)
ZOO: dict[str, Kind] = {kind.name: kind for kind in KINDS}
