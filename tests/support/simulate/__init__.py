"""Traces of any size with known truth: `simulate(path, Truth(...))` writes a run directory.

=====================================  =========================================================
`simulate(path, Truth(requests=500))`  a run directory as a probe leaves it, sealed
`chunks(truth)`                        the same rows as arrays, some 100,000 at a time, no files
`truth.marginal()`, `.conditional`...  what an estimate must come to
=====================================  =========================================================

Simulated: requests of several kinds that differ in how easy they are (so that rounds within one
are alike), acceptance by depth that depends on the request, the context length and the time, the
drafter's confidence with a stated miscalibration, masses, RMS and captured layers with noise by
request and by chain, steps with times by batch and K, decode steps without a draft, sampling that
changes, several replicas. Not simulated: tensor-parallel ranks, tokens, values that
are no finite numbers, chunked prefill, damage: `support.runs` has those, row by row.

Two runs of equal `prompts` and `requests` answer the same prompts; `seed` is all else.
"""

from support.simulate.draw import Chunk, chunks
from support.simulate.truth import Cost, Prompts, Truth
from support.simulate.write import simulate

__all__ = ["Chunk", "Cost", "Prompts", "Truth", "chunks", "simulate"]
