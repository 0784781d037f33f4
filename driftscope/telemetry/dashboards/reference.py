"""Recording rules that compare a model with its own past, and keep that past for an incident.

The past belongs to a job and a served model, not to an engine or a drafter: a new pod, a restart
and a new drafter have one. It is a mean weighted by traffic over days. While the model is away from
it, nothing is learned and the reference keeps its last value, so that an incident never becomes the
past that it is compared with. The state changes only when every reliable mean of a while says so,
because the last rounds before a pause are few and may be of any kind; without traffic it stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from driftscope.boundary import strict_json
from driftscope.metrics import hidden
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope.metrics.definition import Definition
from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.instruments import Instrument
from driftscope.telemetry.dashboards.recording_rule import Rule
from driftscope.telemetry.dashboards.rule_options import (
    GROWTH_BACK_AT,
    GROWTH_ROSE_TO,
    LEAST_CHAINS,
    Thresholds,
    Times,
)
from driftscope.telemetry.export.scrape import label_name, metric_name

MODEL = ("job", label_name(i.MODEL))
"""Labels of a model whose engines share one past."""
_BY = ", ".join(MODEL)
SEEN = "model:driftscope_engines:seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Expressions of a histogram's rates by the labels MODEL."""

    count: str
    total: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Histogram whose mean is compared with its past."""

    instrument: Instrument
    definition: Definition
    window: str
    enough: str
    """Condition under which the current mean is reliable."""
    begins: float
    """Ratio to the reference beyond which an incident begins."""
    ends: float
    """Ratio at which it ends."""
    rates: Rates | None = None
    """Rates that the means are made of; None: those of the histogram."""

    def series(self, what: str, suffix: str = "") -> str:
        """Return the name of one of the recorded series, see `_rules`."""
        return f"model:{metric_name(self.instrument)}{suffix}:{what}"

    @property
    def mean(self) -> str:
        """Series: the current mean over all engines of the model."""
        return self.series("mean")

    @property
    def reference(self) -> str:
        """Series: the value to compare with."""
        return self.series("reference")

    @property
    def ratio(self) -> str:
        """Series: the mean where it is reliable, as a ratio to the reference."""
        return self.series("ratio")

    @property
    def last_ratio(self) -> str:
        """Series: the last value of `ratio`."""
        return self.series("last_ratio")

    @property
    def fired(self) -> str:
        """Expression that has a value, the last ratio, during an incident."""
        return f"{self.last_ratio} and on ({_BY}) ({self.series('away')} == 1)"


def length(times: Times, thresholds: Thresholds, rates: Rates | None = None) -> Compared:
    """Return the comparison of acceptance length, over every round; `rates` are those of
    `Compared`."""
    count = f"model:{metric_name(i.LENGTH)}_count:rate"
    return Compared(
        instrument=i.LENGTH,
        definition=MEAN_LENGTH,
        window=times.window,
        enough=f"{count} >= {thresholds.least_rounds:g}",
        begins=thresholds.acceptance,
        ends=thresholds.acceptance_back,
        rates=rates,
    )


def growth(times: Times) -> Compared:
    """Return the comparison of hidden growth, over recorded chains."""
    count = f"{metric_name(i.GROWTH)}_count[{times.chain_window}]"
    return Compared(
        instrument=i.GROWTH,
        definition=hidden.GROWTH,
        window=times.chain_window,
        enough=f"sum by ({_BY}) (increase({count})) >= {LEAST_CHAINS}",
        begins=GROWTH_ROSE_TO,
        ends=GROWTH_BACK_AT,
    )


def reference_rules(times: Times, thresholds: Thresholds) -> tuple[Rule, ...]:
    """Return the rules of all comparisons; each uses only rules before it, or its own past."""
    by_growth = growth(times)
    lengths = length_rules(length(times, thresholds), times, thresholds)
    return (*lengths, *_means(by_growth), *_compared(by_growth, times, {}))


def length_rules(by_length: Compared, times: Times, thresholds: Thresholds) -> tuple[Rule, ...]:
    """Return the rules of the comparison of acceptance length."""
    seen = Rule(
        record=SEEN,
        meaning="Models whose engines reported within the time that state is kept.",
        expr=f"count by ({_BY}) "
        f"(last_over_time({by_length.series('rate', '_count')}[{times.memory}]))",
    )
    return (*_means(by_length), seen, *_compared(by_length, times, thresholds.references))


def _means(one: Compared) -> tuple[Rule, ...]:
    """Return the rules of the current mean; it is weighted by traffic over the engines."""
    meaning, name = one.definition.meaning, metric_name(one.instrument)
    count, total = one.series("rate", "_count"), one.series("rate", "_sum")
    rates = one.rates or Rates(
        count=f"sum by ({_BY}) (rate({name}_count[{one.window}]))",
        total=f"sum by ({_BY}) (rate({name}_sum[{one.window}]))",
    )
    return (
        Rule(
            record=count,
            meaning=f"Observations per second, of all engines of a model: {meaning}",
            unit="1/s",
            expr=rates.count,
        ),
        Rule(
            record=total,
            meaning=f"Their sum per second: {meaning}",
            unit="1/s",
            expr=rates.total,
        ),
        Rule(
            record=one.mean,
            meaning=f"{meaning} Mean over all engines of a model.",
            unit=one.definition.unit,
            expr=f"{total} / ({count} > 0)",
        ),
    )


def _compared(one: Compared, times: Times, configured: Mapping[str, float]) -> tuple[Rule, ...]:
    """Return the rules of the reference, the ratio to it and the state."""
    was = one.series("was_away")
    return (
        Rule(
            record=was,
            meaning="1 while the model was away from its reference at the last evaluation.",
            expr=_carried(one.series("away"), times),
        ),
        *(
            Rule(
                record=one.series("learned", part),
                meaning="The same series without the times of incidents, to learn a past from.",
                unit="1/s",
                expr=f"{one.series('rate', part)} unless on ({_BY}) ({was} == 1)",
            )
            for part in ("_sum", "_count")
        ),
        Rule(
            record=one.reference,
            unit=one.definition.unit,
            meaning=f"{one.definition.meaning} The value to compare with: the model's own past, "
            "which keeps its last value during an incident.",
            expr=_reference(one, times, configured),
        ),
        Rule(
            record=one.ratio,
            meaning="The model's mean, divided by its reference, where it is reliable.",
            expr=f"{one.mean} / {one.reference} and on ({_BY}) ({one.enough})",
        ),
        Rule(
            record=one.last_ratio,
            meaning="The same ratio, or its last value while there is none.",
            expr=f"{one.ratio} or ({_carried(one.last_ratio, times)})",
        ),
        Rule(
            record=one.series("away"),
            meaning="1 while the model is away from its reference: from the first bound until it "
            f"is back at the second, each for {times.hold}.",
            expr=f"{_state(one, times.hold)} or {was} or 0 * {one.ratio}",
        ),
    )


def _state(one: Compared, hold: str) -> str:
    """Return an expression that is 1 where every ratio of the last `hold` is beyond the first
    bound, 0 where every one is back at the second, and has no value elsewhere."""
    falls = one.begins < 1
    sign, nearest, farthest = ("<", "max", "min") if falls else (">", "min", "max")
    # Both now and then there must be a ratio: a window that has just filled tells nothing.
    throughout = f"and {one.ratio} and {one.ratio} offset {hold}"
    begun = f"{nearest}_over_time({one.ratio}[{hold}]) {sign} bool {one.begins:g} {throughout}"
    lasting = f"{farthest}_over_time({one.ratio}[{hold}]) {sign} bool {one.ends:g} {throughout}"
    return f"({begun}) == 1 or ({lasting}) == 0"


def _reference(one: Compared, times: Times, configured: Mapping[str, float]) -> str:
    """Return the first that exists: a configured value, the model's past, the last reference, the
    mean reference of other jobs that serve the model."""
    past = f"[{times.past}] offset {times.gap}"
    total, count = (
        f"sum_over_time({one.series('learned', part)}{past})" for part in ("_sum", "_count")
    )
    mean = f"{total} / ({count} > 0)"
    given = [f"{_with(MODEL[1], model)} + {value:g}" for model, value in sorted(configured.items())]
    return " or ".join(
        (
            *given,
            f"({mean} unless on ({_BY}) ({one.series('was_away')} == 1))",
            f"({_carried(one.reference, times)})",
            f"0 * {SEEN} + on ({MODEL[1]}) group_left () avg by ({MODEL[1]}) ({one.reference})",
        )
    )


def _with(label: str, value: str) -> str:
    """Return an expression that is 0 for each model with that label."""
    return f"0 * {SEEN}{{{label}={strict_json.dumps(value, ensure_ascii=False)}}}"


def _carried(series: str, times: Times) -> str:
    """Return the last value of `series`, while an engine of the model is remembered."""
    return f"last_over_time({series}[{times.memory}]) and on ({_BY}) {SEEN}"
