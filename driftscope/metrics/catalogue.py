"""Definitions of all metrics, by name."""

from __future__ import annotations

from driftscope.metrics import acceptance as a
from driftscope.metrics import attention as t
from driftscope.metrics import confidence, fallback, hidden, latency
from driftscope.metrics.definition import Definition

DEFINITIONS: dict[str, Definition] = {
    definition.name: definition
    for definition in (
        *(a.MEAN_LENGTH, a.MARGINAL, a.CONDITIONAL, a.TOKEN_RATE),
        *(a.MEAN_LENGTH_BY_REQUEST, a.MEAN_LENGTH_BY_TOKEN),
        *(confidence.AGREEMENT, confidence.LOSS_PARTS, confidence.NEAR_MISSES),
        *(t.SINK, t.PROMPT, t.GENERATED, t.SELF, t.NULL),
        *(t.NEAR_SHIFT, t.OWN_EXCESS, t.RETENTION),
        *(hidden.IN_RMS, hidden.PRENORM_RMS, hidden.POSTNORM_RMS, hidden.FED_RMS),
        *(hidden.GROWTH, hidden.AUX_RMS, hidden.IMBALANCE),
        *(confidence.TOP1, confidence.ENTROPY, confidence.RELIABILITY, confidence.ECE),
        *(latency.TTFT, latency.TPOT, latency.BETWEEN_OUTPUTS, latency.STEP),
        *(latency.INTER_TOKEN, latency.DRAFT_STEP, latency.VERIFY_STEP),
        *(fallback.REJECTED, fallback.UNDRAFTED, fallback.EFFECTIVE_K),
        *(latency.CLIENT_TTFT, latency.CLIENT_TPOT, latency.THROUGHPUT, latency.PER_USER),
        *(latency.AGAINST, latency.OUTCOME),
        *(latency.OVERHEAD, latency.BUDGETED),
        latency.PREDICTED_TPOT,
        a.WITHIN_REQUEST,
    )
}
