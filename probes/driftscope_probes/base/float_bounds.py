"""Float32 bounds shared by several softmax implementations."""

from __future__ import annotations

LEAST = -80.0
"""Lower bound of exponents: float32 exp is ten times slower for -inf and below about -87."""
