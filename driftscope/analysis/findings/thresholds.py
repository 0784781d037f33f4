"""Thresholds of hidden states that both rules and evidence for causes use, with their sources."""

from __future__ import annotations

GROWS_ABOVE = 1.5
"""Fed RMS at depth K over depth 1. In the paper (arXiv 2605.09992) a pre-norm EAGLE-3 drafter
reaches 3.6 at depth 8 and a post-norm one 0.99; the shipped pair reaches 2.8 and 1.0 (model cards).
1.5 is far from both."""
UNBALANCED_ABOVE = 10.0
"""Largest over smallest RMS: a layer with a tenth of another's RMS contributes 1 % of its energy
to the fc's input, so that its information is lost in bfloat16's rounding of the other (2^-8 =
0.4 %)."""
