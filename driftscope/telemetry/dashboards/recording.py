"""Recording rules: expressions that panels and alerts use, computed once.

A rule's name gives its level, its quantity and how it is derived from the counters. Each rule
divides by a count of the same window; without traffic it has no value, never a 0.
"""

from __future__ import annotations

from driftscope.metrics import hidden, throughput
from driftscope.metrics.acceptance import COUNTED, MEAN_LENGTH
from driftscope.metrics.fallback import REJECTED, UNDRAFTED
from driftscope.metrics.overhead import OVERHEAD
from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.instruments import COUNTER, Instrument
from driftscope.telemetry.dashboards.recording_rule import Rule
from driftscope.telemetry.dashboards.reference import reference_rules
from driftscope.telemetry.dashboards.rule_options import Thresholds, Times
from driftscope.telemetry.export.scrape import label_name, metric_name

ENGINE = ("job", "instance", label_name(i.MODEL), label_name(i.DRAFTER))
"""Labels that identify one engine."""
DEPTH, CLASS, PLACE, REASON = map(label_name, (i.DEPTH, i.CLASS, i.PLACE, i.REASON))


def name_of(instrument: Instrument, suffix: str = "") -> str:
    """Return a series name of `instrument`: a counter's only one, or a histogram's with
    `suffix`."""
    return metric_name(instrument) + ("_total" if instrument.kind == COUNTER else suffix)


def rules(times: Times, thresholds: Thresholds) -> tuple[Rule, ...]:
    """Return the rules; each uses only rules before it, or its own past."""
    return (*_engine_rules(times), *reference_rules(times, thresholds))


def _engine_rules(times: Times) -> tuple[Rule, ...]:
    """Return the rules of single engines and of fleets."""
    chains = times.chain_window
    return (
        Rule(
            record=ROUNDS,
            expr=_rate(name_of(i.ROUNDS), times.window),
            meaning=i.ROUNDS.description,
            unit="{round}/s",
        ),
        Rule(
            record=LENGTH,
            meaning=MEAN_LENGTH.meaning,
            unit=MEAN_LENGTH.unit,
            expr=_mean(i.LENGTH, times.window),
        ),
        Rule(
            record=REACHED,
            meaning=COUNTED.meaning,
            expr=f"{_rate(name_of(i.REACHED), times.window, DEPTH)} "
            f"/ on ({', '.join(ENGINE)}) group_left () ({ROUNDS} > 0)",
        ),
        Rule(
            record=MASS,
            meaning=i.MASS.description,
            expr=_mean(i.MASS, chains, DEPTH, CLASS),
        ),
        Rule(
            record=RMS,
            meaning=i.RMS.description,
            expr=_mean(i.RMS, chains, DEPTH, PLACE),
        ),
        Rule(record=GROWTH, meaning=hidden.GROWTH.meaning, expr=_mean(i.GROWTH, chains)),
        Rule(record=TOP1, meaning=i.TOP1.description, expr=_mean(i.TOP1, chains, DEPTH)),
        Rule(
            record=STEPS,
            unit="{step}/s",
            meaning="Decode steps of requests: rounds plus undrafted steps.",
            expr=f"{ROUNDS} + ({_rate(name_of(i.UNDRAFTED_STEPS), times.window)} or {ROUNDS} * 0)",
        ),
        Rule(
            record=UNDRAFTED_SHARE,
            meaning=UNDRAFTED.meaning,
            expr=f"{_rate(name_of(i.UNDRAFTED_STEPS), times.window, REASON)} "
            f"/ on ({', '.join(ENGINE)}) group_left () ({STEPS} > 0)",
        ),
        Rule(
            record=REJECTED_SHARE,
            meaning=REJECTED.meaning,
            expr=f"{_rate(name_of(i.REJECTED_ROUNDS), times.window)} / ({STEPS} > 0)",
        ),
        Rule(
            record=DRAFT_S,
            meaning=i.DRAFT_TIME.description,
            unit="s",
            expr=_mean(i.DRAFT_TIME, chains),
        ),
        Rule(
            record=VERIFY_S,
            meaning=i.VERIFY_TIME.description,
            unit="s",
            expr=_mean(i.VERIFY_TIME, chains),
        ),
        Rule(
            record=SPEEDUP,
            meaning=throughput.SPEEDUP.meaning,
            expr=f"{LENGTH} * {VERIFY_S} / ({VERIFY_S} + {DRAFT_S})",
        ),
        Rule(
            record=OVERHEAD_SHARE,
            meaning=OVERHEAD.meaning,
            expr=f"{_rate(name_of(i.PROBE_TIME), times.window)} / "
            f"({_rate(name_of(i.STEP_TIME), times.window)} > 0)",
        ),
        Rule(record=TTFT, meaning=i.TTFT.description, unit="s", expr=_mean(i.TTFT, times.window)),
        Rule(record=TPOT, meaning=i.TPOT.description, unit="s", expr=_mean(i.TPOT, times.window)),
        Rule(
            record=CHAINS_RECENT,
            unit="{chain}",
            meaning=f"{i.CHAINS.description} Increase in the window of the means over chains.",
            expr=f"sum by ({', '.join(ENGINE)}) (increase({name_of(i.CHAINS)}[{chains}]))",
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
CHAINS_RECENT = "engine:driftscope_chains:increase"
LENGTH_FLEET = "model:driftscope_acceptance_length:median"


def _rate(series: str, window: str, *by: str) -> str:
    return f"sum by ({', '.join((*ENGINE, *by))}) (rate({series}[{window}]))"


def _mean(instrument: Instrument, window: str, *by: str) -> str:
    total, count = name_of(instrument, "_sum"), name_of(instrument, "_count")
    return f"{_rate(total, window, *by)} / ({_rate(count, window, *by)} > 0)"
