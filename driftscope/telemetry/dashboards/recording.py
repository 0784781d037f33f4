"""Recording rules: expressions that panels and alerts use, computed once.

A rule's name gives its level, its quantity and how it is derived from the counters. Each rule
divides by a count of the same window; without traffic it has no value, never a 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.metrics import attention, hidden, throughput
from driftscope.metrics.acceptance import COUNTED, MEAN_LENGTH
from driftscope.metrics.fallback import REJECTED, UNDRAFTED
from driftscope.metrics.overhead import OVERHEAD
from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.instruments import COUNTER, Instrument
from driftscope.telemetry.export.scrape import label_name, metric_name

ENGINE = ("job", "instance", label_name(i.MODEL), label_name(i.DRAFTER))
"""Labels that identify one engine."""
DEPTH, CLASS, PLACE, REASON = map(label_name, (i.DEPTH, i.CLASS, i.PLACE, i.REASON))


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Windows of the rules, in Prometheus's duration syntax."""

    window: str = "5m"
    """Window of every rate."""
    past: str = "1d"
    """Length of an engine's own past, which ends a `gap` ago."""
    gap: str = "1h"
    hold: str = "10m"
    """Time for which a condition must hold before its alert fires."""
    evaluate: str = "30s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One recording rule with its meaning in words."""

    record: str
    expr: str
    meaning: str
    unit: str = "1"


def name_of(instrument: Instrument, suffix: str = "") -> str:
    """Return a series name of `instrument`: a counter's only one, or a histogram's with
    `suffix`."""
    return metric_name(instrument) + ("_total" if instrument.kind == COUNTER else suffix)


def rules(times: Times) -> tuple[Rule, ...]:
    """Return the rules; each uses only rules before it."""
    past = f"[{times.past}] offset {times.gap}"
    return (
        Rule(
            record=ROUNDS,
            expr=_rate(name_of(i.ROUNDS), times),
            meaning=i.ROUNDS.description,
            unit="{round}/s",
        ),
        Rule(
            record=LENGTH,
            meaning=MEAN_LENGTH.meaning,
            unit=MEAN_LENGTH.unit,
            expr=f"1 + {_rate(name_of(i.ACCEPTED), times)} / ({ROUNDS} > 0)",
        ),
        Rule(
            record=REACHED,
            meaning=COUNTED.meaning,
            expr=f"{_rate(name_of(i.REACHED), times, DEPTH)} "
            f"/ on ({', '.join(ENGINE)}) group_left () ({ROUNDS} > 0)",
        ),
        Rule(record=MASS, meaning=i.MASS.description, expr=_mean(i.MASS, times, DEPTH, CLASS)),
        Rule(
            record=EXPECTED,
            meaning=attention.NO_DRIFT.meaning,
            expr=_mean(i.EXPECTED, times, DEPTH),
        ),
        Rule(
            record=EXCESS,
            meaning=f"{attention.EXCESS.meaning} Of the depth with the most of it.",
            expr=f"max by ({', '.join(ENGINE)}) (sum by ({', '.join((*ENGINE, DEPTH))}) "
            f'({MASS}{{{CLASS}="self"}}) - {EXPECTED})',
        ),
        Rule(record=RMS, meaning=i.RMS.description, expr=_mean(i.RMS, times, DEPTH, PLACE)),
        Rule(record=GROWTH, meaning=hidden.GROWTH.meaning, expr=_mean(i.GROWTH, times)),
        Rule(record=TOP1, meaning=i.TOP1.description, expr=_mean(i.TOP1, times, DEPTH)),
        Rule(
            record=STEPS,
            unit="{step}/s",
            meaning="Decode steps of single requests: rounds and undrafted steps.",
            expr=f"{ROUNDS} + ({_rate(name_of(i.UNDRAFTED_STEPS), times)} or {ROUNDS} * 0)",
        ),
        Rule(
            record=UNDRAFTED_SHARE,
            meaning=UNDRAFTED.meaning,
            expr=f"{_rate(name_of(i.UNDRAFTED_STEPS), times, REASON)} "
            f"/ on ({', '.join(ENGINE)}) group_left () ({STEPS} > 0)",
        ),
        Rule(
            record=REJECTED_SHARE,
            meaning=REJECTED.meaning,
            expr=f"{_rate(name_of(i.REJECTED_ROUNDS), times)} / ({STEPS} > 0)",
        ),
        Rule(
            record=DRAFT_S,
            meaning=i.DRAFT_TIME.description,
            unit="s",
            expr=_mean(i.DRAFT_TIME, times),
        ),
        Rule(
            record=VERIFY_S,
            meaning=i.VERIFY_TIME.description,
            unit="s",
            expr=_mean(i.VERIFY_TIME, times),
        ),
        Rule(
            record=SPEEDUP,
            meaning=throughput.SPEEDUP.meaning,
            expr=f"{LENGTH} * {VERIFY_S} / ({VERIFY_S} + {DRAFT_S})",
        ),
        Rule(
            record=OVERHEAD_SHARE,
            meaning=OVERHEAD.meaning,
            expr=f"{_rate(name_of(i.PROBE_TIME), times)} / "
            f"({_rate(name_of(i.STEP_TIME), times)} > 0)",
        ),
        Rule(record=TTFT, meaning=i.TTFT.description, unit="s", expr=_mean(i.TTFT, times)),
        Rule(record=TPOT, meaning=i.TPOT.description, unit="s", expr=_mean(i.TPOT, times)),
        Rule(
            record=LENGTH_PAST,
            meaning="The same in the engine's own past.",
            unit="{token}",
            expr=f"avg_over_time({LENGTH}{past})",
        ),
        Rule(
            record=EXCESS_PAST,
            meaning="The same in the engine's own past.",
            expr=f"avg_over_time({EXCESS}{past})",
        ),
        Rule(
            record=GROWTH_PAST,
            meaning="The same in the engine's own past.",
            expr=f"avg_over_time({GROWTH}{past})",
        ),
        Rule(
            record=LENGTH_FLEET,
            unit="{token}",
            meaning="Median acceptance length of all engines with the same model and drafter.",
            expr=f"quantile by ({', '.join(ENGINE[2:])}) (0.5, {LENGTH})",
        ),
    )


ROUNDS = "engine:driftscope_rounds:rate"
LENGTH = "engine:driftscope_acceptance_length:mean"
REACHED = "engine_depth:driftscope_acceptance_marginal:ratio"
MASS = "engine_depth_class:driftscope_attention_mass:mean"
EXPECTED = "engine_depth:driftscope_attention_expected:mean"
EXCESS = "engine:driftscope_attention_excess:mean"
RMS = "engine_depth_place:driftscope_hidden_rms:mean"
GROWTH = "engine:driftscope_hidden_growth:mean"
TOP1 = "engine_depth:driftscope_confidence_top1:mean"
STEPS = "engine:driftscope_steps:rate"
UNDRAFTED_SHARE = "engine_reason:driftscope_undrafted:ratio"
REJECTED_SHARE = "engine:driftscope_rejected_rounds:ratio"
DRAFT_S = "engine:driftscope_draft_seconds:mean"
VERIFY_S = "engine:driftscope_verify_seconds:mean"
SPEEDUP = "engine:driftscope_speedup:estimate"
OVERHEAD_SHARE = "engine:driftscope_probe_overhead:ratio"
TTFT = "engine:driftscope_time_to_first_token_seconds:mean"
TPOT = "engine:driftscope_time_per_output_token_seconds:mean"
LENGTH_PAST = "engine:driftscope_acceptance_length:past"
EXCESS_PAST = "engine:driftscope_attention_excess:past"
GROWTH_PAST = "engine:driftscope_hidden_growth:past"
LENGTH_FLEET = "model:driftscope_acceptance_length:median"


def _rate(series: str, times: Times, *by: str) -> str:
    return f"sum by ({', '.join((*ENGINE, *by))}) (rate({series}[{times.window}]))"


def _mean(instrument: Instrument, times: Times, *by: str) -> str:
    total, count = name_of(instrument, "_sum"), name_of(instrument, "_count")
    return f"{_rate(total, times, *by)} / ({_rate(count, times, *by)} > 0)"
