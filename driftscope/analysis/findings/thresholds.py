"""Thresholds of hidden states that both rules and evidence for causes use, with their sources."""

from __future__ import annotations

GROWS_ABOVE = 1.06
"""RMS of the fed state over that of the depth before, mean over a chain. By depth 8 a pre-norm
EAGLE-3 drafter of the paper (arXiv 2605.09992) has grown to 3.6 (1.20 per depth), a post-norm one
to 0.99; the shipped pair to 2.8 and 1.0 (model cards). 1.06 per depth is 1.5 by depth 8, far from
both. Growth is judged per depth, so that one drafter is judged alike at every K."""
UNBALANCED_ABOVE = 10.0
"""Largest over smallest RMS: a layer with a tenth of another's RMS contributes 1 % of its energy
to the fc's input, so that its information is lost in bfloat16's rounding of the other (2^-8 =
0.4 %)."""
